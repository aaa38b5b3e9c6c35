package compare

import (
	"container/list"
	"encoding/binary"
	"unsafe"

	"github.com/zeebo/xxh3"
)

// MapLRU keeps blocks in a map by the hash of their tokens and everything
// before them, and those that nobody holds in a list, the least recently used in front.
type MapLRU struct {
	cached map[xxh3.Uint128]*entry
	free   []int32 // blocks without content
	unheld *list.List
	table  []*entry // of the turn in progress
}

type entry struct {
	key  xxh3.Uint128
	id   int32
	refs int
	full bool // in the map
	lru  *list.Element
}

// NewMapLRU returns a cache of the given number of blocks.
func NewMapLRU(blocks int) *MapLRU {
	m := &MapLRU{cached: map[xxh3.Uint128]*entry{}, unheld: list.New()}
	for id := blocks; id > 0; id-- {
		m.free = append(m.free, int32(id))
	}
	return m
}

// chain hashes a block behind its parent. The tokens are hashed where they are.
func chain(parent xxh3.Uint128, block []Token) xxh3.Uint128 {
	var b [16 + 4*blockSize]byte
	binary.LittleEndian.PutUint64(b[:], parent.Lo)
	binary.LittleEndian.PutUint64(b[8:], parent.Hi)
	copy(b[16:], unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(block))), 4*blockSize))
	return xxh3.Hash128(b[:])
}

// Match returns how many leading tokens of a prompt are cached.
func (m *MapLRU) Match(prompt []Token) int {
	n, key := 0, xxh3.Uint128{}
	for ; n+blockSize <= len(prompt); n += blockSize {
		key = chain(key, prompt[n:n+blockSize])
		if m.cached[key] == nil {
			break
		}
	}
	return n
}

// Turn admits a prompt and lets it go.
func (m *MapLRU) Turn(prompt []Token) {
	m.table = m.table[:0]
	key, hit := xxh3.Uint128{}, true
	for at := 0; at < len(prompt); at += blockSize {
		full := at+blockSize <= len(prompt)
		if full {
			key = chain(key, prompt[at:at+blockSize])
		}
		if hit = hit && at+blockSize < len(prompt); hit {
			if e := m.cached[key]; e != nil {
				if e.refs == 0 {
					m.unheld.Remove(e.lru)
				}
				e.refs++
				m.table = append(m.table, e)
				continue
			}
			hit = false
		}
		e := m.take()
		if full && m.cached[key] == nil { // a second copy stays private
			e.key, e.full = key, true
			m.cached[key] = e
		}
		m.table = append(m.table, e)
	}
	for i := len(m.table) - 1; i >= 0; i-- {
		e := m.table[i]
		if e.refs--; e.refs > 0 {
			continue
		}
		if e.full {
			e.lru = m.unheld.PushBack(e)
		} else {
			m.free = append(m.free, e.id)
		}
	}
}

func (m *MapLRU) take() *entry {
	if n := len(m.free); n > 0 {
		id := m.free[n-1]
		m.free = m.free[:n-1]
		return &entry{id: id, refs: 1}
	}
	e := m.unheld.Remove(m.unheld.Front()).(*entry)
	delete(m.cached, e.key)
	*e = entry{id: e.id, refs: 1}
	return e
}
