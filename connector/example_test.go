package connector_test

import (
	"fmt"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/kvcache"
)

// shelf is the scheduler's side of a connector that remembers how many tokens
// of each conversation a store outside holds.
type shelf struct {
	connector.Base // finds nothing, saves nothing, holds nothing
	blockSize      int
	known          map[string]int // tokens, by the request's name
	staged         []connector.Op
}

// Lookup offers what is stored beyond the local hit, in whole blocks.
func (s *shelf) Lookup(r *connector.Request, local int) connector.Answer {
	n := min(s.known[r.Name], r.Prompt-1) / s.blockSize * s.blockSize
	return connector.Answer{Tokens: max(0, n-local), Async: true}
}

// Allocated stages the load into the blocks behind the local hit.
func (s *shelf) Allocated(r *connector.Request, tables connector.Tables, local, external int) {
	if external > 0 {
		blocks := tables[0][local/s.blockSize : (local+external)/s.blockSize]
		s.staged = append(s.staged, connector.Op{Kind: connector.OpLoad, Request: r.ID, Blocks: connector.Tables{blocks}})
	}
}

// Ops hands the staged work out, for the worker that moves the bytes.
func (s *shelf) Ops(_ uint64, dst []connector.Op) []connector.Op {
	dst = append(dst, s.staged...)
	s.staged = nil
	return dst
}

var _ connector.Scheduler = (*shelf)(nil)

// What a scheduler asks of a connector when it admits a request that has one
// block in the local cache and two more in the store.
func Example() {
	c := &shelf{blockSize: 4, known: map[string]int{"talk": 14}}
	r := &connector.Request{ID: connector.NewRequestID(0, 1), Name: "talk", Tokens: make([]kvcache.Token, 16), Prompt: 16}
	a := c.Lookup(r, 4)
	fmt.Println(a.Tokens, "tokens can be loaded")
	c.Allocated(r, connector.Tables{{7, 3, 5, 2}}, 4, a.Tokens)
	for _, op := range c.Ops(1, nil) {
		fmt.Println(op.Kind, "into blocks", op.Blocks[0])
	}
	fmt.Println("held at the end:", c.Finished(r, nil, connector.End{}).Delay)
	// Output:
	// 8 tokens can be loaded
	// load into blocks [3 5]
	// held at the end: false
}
