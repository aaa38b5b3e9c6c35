package compare

import (
	"container/list"
	"encoding/binary"

	iradix "github.com/hashicorp/go-immutable-radix/v2"
)

// Radix keeps blocks in an immutable radix tree by all tokens up to their end,
// and those that nobody holds in a list, the least recently used in front.
type Radix struct {
	tree   *iradix.Tree[*node]
	free   []int32
	unheld *list.List
	key    []byte // of the prompt at hand
	table  []*node
}

type node struct {
	key  []byte // nil when it is not in the tree
	id   int32
	refs int
	lru  *list.Element
}

// NewRadix returns a cache of the given number of blocks.
func NewRadix(blocks int) *Radix {
	r := &Radix{tree: iradix.New[*node](), unheld: list.New()}
	for id := blocks; id > 0; id-- {
		r.free = append(r.free, int32(id))
	}
	return r
}

const blockBytes = 4 * blockSize

// bytes writes the tokens as bytes, since the tree's keys are bytes.
func (r *Radix) bytes(prompt []Token) []byte {
	r.key = r.key[:0]
	for _, t := range prompt {
		r.key = binary.BigEndian.AppendUint32(r.key, uint32(t))
	}
	return r.key
}

// Match returns how many leading tokens of a prompt are cached.
func (r *Radix) Match(prompt []Token) int {
	k, _, _ := r.tree.Root().LongestPrefix(r.bytes(prompt))
	return len(k) / 4
}

// Turn admits a prompt and lets it go.
func (r *Radix) Turn(prompt []Token) {
	key := r.bytes(prompt)
	r.table = r.table[:0]
	r.tree.Root().WalkPath(key[:(len(prompt)-1)/blockSize*blockBytes], func(_ []byte, n *node) bool {
		if n.refs == 0 {
			r.unheld.Remove(n.lru)
		}
		n.refs++
		r.table = append(r.table, n)
		return false
	})
	txn := r.tree.Txn()
	for at := len(r.table) * blockBytes; at < len(key); at += blockBytes {
		n := r.take(txn)
		if at+blockBytes <= len(key) {
			k := append([]byte(nil), key[:at+blockBytes]...)
			if _, ok := txn.Get(k); !ok { // a second copy stays private
				n.key = k
				txn.Insert(k, n)
			}
		}
		r.table = append(r.table, n)
	}
	r.tree = txn.Commit()
	for i := len(r.table) - 1; i >= 0; i-- {
		n := r.table[i]
		if n.refs--; n.refs > 0 {
			continue
		}
		if n.key != nil {
			n.lru = r.unheld.PushBack(n)
		} else {
			r.free = append(r.free, n.id)
		}
	}
}

func (r *Radix) take(txn *iradix.Txn[*node]) *node {
	if n := len(r.free); n > 0 {
		id := r.free[n-1]
		r.free = r.free[:n-1]
		return &node{id: id, refs: 1}
	}
	n := r.unheld.Remove(r.unheld.Front()).(*node)
	txn.Delete(n.key)
	return &node{id: n.id, refs: 1}
}
