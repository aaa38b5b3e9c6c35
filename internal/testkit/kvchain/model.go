package kvchain

import (
	"encoding/binary"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/kvcache"
	"github.com/sluice-serving/sluice/scheduler"
)

const (
	slotBytes = 16 // of one token: digest of the chain, digest of the token
	vocab     = 1000
)

func mix(a, b uint64) uint64 {
	x := a ^ (b+0x9e3779b97f4a7c15)*0xbf58476d1ce4e5b9
	x ^= x >> 29
	x *= 0x94d049bb133111eb
	return x ^ x>>32
}

// step is the KV of a position.
func step(before uint64, tok kvcache.Token) (chain, own uint64) {
	own = mix(uint64(tok)+1, 77)
	return mix(before, own), own
}

// Answer is what the model generates after a prompt, without any cache.
func Answer(prompt []kvcache.Token, n int) []kvcache.Token {
	var chain, sum uint64
	for _, t := range prompt {
		var own uint64
		chain, own = step(chain, t)
		sum = mix(sum, chain^own)
	}
	out := make([]kvcache.Token, 0, n)
	for len(out) < n {
		tok := kvcache.Token(sum % vocab)
		out = append(out, tok)
		var own uint64
		chain, own = step(chain, tok)
		sum = mix(sum, chain^own)
	}
	return out
}

// Memory is the KV of an engine: two regions, the one with the chain and the
// one with the tokens' digests.
type Memory struct {
	blockSize int
	chain     host
	own       host
}

type host []byte

// Bytes is the memory itself.
func (h host) Bytes() []byte                            { return h }
func (h host) ReadAt(p []byte, off int64) (int, error)  { return copy(p, h[off:]), nil }
func (h host) WriteAt(p []byte, off int64) (int, error) { return copy(h[off:], p), nil }

func newMemory(blocks, blockSize int) *Memory {
	n := blocks * blockSize * slotBytes / 2
	return &Memory{blockSize: blockSize, chain: make(host, n), own: make(host, n)}
}

func (m *Memory) layout(blocks int) (connector.Layout, []connector.Region) {
	b := m.blockSize * slotBytes / 2
	l := connector.Layout{
		Model: "chain", DType: "u64", BlockSize: m.blockSize, Blocks: blocks,
		Groups: []connector.LayoutGroup{{Kind: kvcache.FullAttention.String(), Layers: 1, BlockBytes: 2 * b}},
	}
	return l, []connector.Region{{Name: "chain", BlockBytes: b, Memory: m.chain}, {Name: "own", BlockBytes: b, Memory: m.own}}
}

func (m *Memory) at(b kvcache.BlockID, i int) int { return (int(b)*m.blockSize + i) * 8 }

// executor runs plans on the memory, in order.
type executor struct {
	mem    *Memory
	tables map[uint32][]kvcache.BlockID
	last   map[uint32]kvcache.Token // sampled last, by slot
}

// tabulate takes up the changes of the block tables.
func (e *executor) tabulate(p *scheduler.Plan) {
	for i, id := range p.Requests {
		from, blocks := p.Table(i, 0)
		e.tables[id.Slot()] = append(e.tables[id.Slot()][:from], blocks...)
	}
}

// run computes a plan whose tables were taken up.
func (e *executor) run(p *scheduler.Plan) scheduler.Result {
	var res scheduler.Result
	bs := int32(e.mem.blockSize)
	for i, id := range p.Requests {
		table := e.tables[id.Slot()]
		pos := p.Computed[i]
		for _, tok := range p.Input(i) {
			if tok == scheduler.Unknown {
				tok = e.last[id.Slot()]
			}
			var before uint64
			if pos > 0 {
				before = binary.LittleEndian.Uint64(e.mem.chain[e.mem.at(table[(pos-1)/bs], int((pos-1)%bs)):])
			}
			chain, own := step(before, tok)
			at := e.mem.at(table[pos/bs], int(pos%bs))
			binary.LittleEndian.PutUint64(e.mem.chain[at:], chain)
			binary.LittleEndian.PutUint64(e.mem.own[at:], own)
			pos++
		}
		if p.Samples[i] == 1 {
			var sum uint64
			for k := range pos {
				at := e.mem.at(table[k/bs], int(k%bs))
				sum = mix(sum, binary.LittleEndian.Uint64(e.mem.chain[at:])^binary.LittleEndian.Uint64(e.mem.own[at:]))
			}
			tok := kvcache.Token(sum % vocab)
			e.last[id.Slot()] = tok
			res.Tokens = append(res.Tokens, tok)
		}
	}
	return res
}
