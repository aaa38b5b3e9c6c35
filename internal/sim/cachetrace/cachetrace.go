// Package cachetrace runs the block ids of a request trace through a prefix
// cache and counts hits: what a cache of a given size would have saved.
//
// The model: requests come in order of time. A request hits its leading blocks
// that are cached; then all its blocks, of a request longer than the cache the
// first ones that fit, become the most recently used, the last block first. Output
// never enters the cache, and nothing runs at the same time. One block of
// the trace is one token at block size 1, and the match is not limited: a
// prompt may be hit as a whole.
package cachetrace

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/sluice-serving/sluice/internal/sim/trace"
	"github.com/sluice-serving/sluice/kvcache"
)

// SessionGap is the time between the starts of two sessions where the trace
// has only times within a session: session i, in order of first appearance, begins at i times this, in ms.
const SessionGap = 60_000

// Result counts what a trace did to a cache.
type Result struct {
	Requests int   `json:"requests"`
	Blocks   int64 `json:"blocks"`     // of all requests together
	Hits     int64 `json:"hit_blocks"` // of them found cached
}

// Ratio returns the share of blocks that were hit.
func (r Result) Ratio() float64 {
	if r.Blocks == 0 {
		return 0
	}
	return float64(r.Hits) / float64(r.Blocks)
}

// ErrNoBlocks says that a trace has lengths only.
var ErrNoBlocks = errors.New("the trace has no block ids")

// Run replays a trace in a cache of the given number of blocks; 0 means unbounded.
func Run(t *trace.Trace, blocks int, ids trace.IDs) (Result, error) {
	var res Result
	if blocks < 0 || blocks > kvcache.MaxBlocks-1 {
		return res, fmt.Errorf("blocks is %d, must be 0 to %d", blocks, kvcache.MaxBlocks-1)
	}
	if t.BlockSize == 0 && !slices.ContainsFunc(t.Requests, func(r trace.Request) bool { return len(r.Blocks) > 0 }) {
		return res, ErrNoBlocks
	}
	total := int64(0)
	for i := range t.Requests {
		total += int64(t.Requests[i].NumBlocks())
	}
	unbounded := blocks == 0
	if unbounded {
		blocks = int(min(max(total, 1), kvcache.MaxBlocks-1))
	}
	c, err := kvcache.New(kvcache.Config{Blocks: blocks + 1, BlockSize: 1})
	if err != nil {
		return res, err
	}
	ids = t.Resolve(ids)
	var p player
	for _, i := range order(t) {
		r := &t.Requests[i]
		ns := kvcache.Namespace{}
		if ids == trace.SessionIDs {
			ns.Salt = r.Session
		}
		n, hit, err := p.play(c, ns, r)
		if err != nil {
			return res, fmt.Errorf("line %d: %w", r.Line, err)
		}
		res.Requests++
		res.Blocks += int64(n)
		res.Hits += int64(hit)
	}
	if st := c.Stats(); unbounded && st.EvictedPlain > 0 {
		return res, fmt.Errorf("the trace has more than %d distinct blocks, so no pool is unbounded for it", blocks)
	}
	return res, nil
}

// player keeps memory between requests.
type player struct {
	seq  kvcache.Seq
	toks []kvcache.Token
}

// play runs one request and returns the number of its blocks and of its hits.
func (p *player) play(c *kvcache.Cache, ns kvcache.Namespace, r *trace.Request) (blocks, hits int, err error) {
	p.toks = p.toks[:0]
	for _, run := range r.Blocks {
		if run.Start+run.Len-1 > math.MaxInt32 {
			return 0, 0, fmt.Errorf("block id %d is larger than %d", run.Start+run.Len-1, math.MaxInt32)
		}
		for id := run.Start; id < run.Start+run.Len; id++ {
			p.toks = append(p.toks, kvcache.Token(id))
		}
	}
	if len(p.toks) == 0 {
		return 0, 0, nil
	}
	m := c.Match(ns, p.toks, len(p.toks))
	if err := c.Attach(&p.seq, ns); err != nil {
		return 0, 0, err
	}
	kept := p.toks[:min(len(p.toks), c.Usable())]
	g, err := c.Allocate(&p.seq, &kvcache.Alloc{Tokens: kept, Hit: m, New: len(kept) - m.Tokens})
	if err != nil {
		return 0, 0, err
	}
	if !g.OK {
		return 0, 0, fmt.Errorf("%d blocks do not fit in %d", len(kept), c.Usable())
	}
	return len(p.toks), m.Tokens, c.Free(&p.seq)
}

// order returns the requests in order of time, those of one time in file order.
func order(t *trace.Trace) []int {
	at := make([]int64, len(t.Requests))
	starts := map[string]int64{}
	out := make([]int, len(t.Requests))
	for i := range t.Requests {
		r := &t.Requests[i]
		at[i], out[i] = r.At, i
		if t.Sessions != trace.WithSessions {
			continue
		}
		start, ok := starts[r.Session]
		if !ok {
			start = int64(len(starts)) * SessionGap
			starts[r.Session] = start
		}
		at[i] += start
	}
	slices.SortStableFunc(out, func(a, b int) int { return cmp.Compare(at[a], at[b]) })
	return out
}
