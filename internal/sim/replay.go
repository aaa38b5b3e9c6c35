package sim

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/sluice-serving/sluice/internal/sim/trace"
	"github.com/sluice-serving/sluice/kvcache"
)

// ReplayOptions say how a trace is played.
type ReplayOptions struct {
	Sessions   int     // play the first so many sessions; 0: all
	MaxTurns   int     // of each session; 0: all
	ScaleTime  float64 // times and gaps are multiplied by it; 0 means 1
	ScaleToken float64 // lengths and blocks are multiplied by it; 0 means 1
	Gap        float64 // seconds between the starts of sessions where a trace does not say; 0 means 60
}

// Replay plays a trace: two prompts share a prefix exactly where the trace
// says so. A block's tokens are made from its id; what stands behind the last
// full block, and the answer, are what the next prompt of the conversation has
// at these positions, where it continues this one.
//
// Sessions of traces without sessions have one turn. The agents of a session
// are conversations of their own, which start when the trace says so.
type Replay struct {
	opt   ReplayOptions
	trace *trace.Trace
	block int // tokens
	local bool
	conv  []conversation
}

type conversation struct {
	start  Time
	parent int
	salt   uint64 // of ids that hold within a session only
	turns  []*trace.Request
}

var (
	_ Workload   = (*Replay)(nil)
	_ ToolCaller = (*Replay)(nil)
)

// InTool says whether a turn's answer calls a tool.
func (r *Replay) InTool(session, t int) bool { return r.conv[session].turns[t].InTool }

// NewReplay prepares a trace. The ids say whether equal ones of different
// sessions are the same block.
func NewReplay(t *trace.Trace, ids trace.IDs, opt ReplayOptions) (*Replay, error) {
	for _, f := range []struct {
		name string
		v    *float64
		def  float64
	}{{"time scale", &opt.ScaleTime, 1}, {"token scale", &opt.ScaleToken, 1}, {"gap", &opt.Gap, 60}} {
		if *f.v == 0 {
			*f.v = f.def
		}
		if !(*f.v > 0) {
			return nil, fmt.Errorf("replay: %s is %v, must be positive", f.name, *f.v)
		}
	}
	if opt.Sessions < 0 || opt.MaxTurns < 0 {
		return nil, fmt.Errorf("replay: sessions is %d and turns is %d, must not be negative", opt.Sessions, opt.MaxTurns)
	}
	r := &Replay{opt: opt, trace: t, local: t.Resolve(ids) == trace.SessionIDs, block: max(1, int(float64(t.BlockSize)*opt.ScaleToken+0.5))}
	type key struct{ session, agent string }
	index := map[key]int{}
	order := map[string]int{}
	for i := range t.Requests {
		q := &t.Requests[i]
		if t.Sessions == trace.NoSessions {
			r.conv = append(r.conv, conversation{start: r.time(float64(q.At) / 1e3), parent: -1, turns: []*trace.Request{q}})
			continue
		}
		n, seen := order[q.Session]
		if !seen {
			n = len(order)
			order[q.Session] = n
		}
		if opt.Sessions > 0 && n >= opt.Sessions {
			continue
		}
		k := key{q.Session, q.Agent}
		c, ok := index[k]
		if !ok {
			c = len(r.conv)
			index[k] = c
			start := float64(q.At) / 1e3
			if t.Sessions == trace.WithSessions {
				start += opt.Gap * float64(n)
			}
			nc := conversation{start: r.time(start), parent: -1, salt: uint64(n) + 1}
			if main, ok := index[key{q.Session, ""}]; ok && q.Agent != "" {
				nc.parent = main
			}
			r.conv = append(r.conv, nc)
		}
		if opt.MaxTurns == 0 || len(r.conv[c].turns) < opt.MaxTurns {
			r.conv[c].turns = append(r.conv[c].turns, q)
		}
	}
	if opt.Sessions > 0 && t.Sessions == trace.NoSessions {
		r.conv = r.conv[:min(opt.Sessions, len(r.conv))]
	}
	// Conversations are numbered in the order of their starts.
	perm := make([]int, len(r.conv))
	for i := range perm {
		perm[i] = i
	}
	slices.SortStableFunc(perm, func(a, b int) int { return cmp.Compare(r.conv[a].start, r.conv[b].start) })
	at := make([]int, len(perm))
	sorted := make([]conversation, len(perm))
	for to, from := range perm {
		at[from], sorted[to] = to, r.conv[from]
	}
	for i := range sorted {
		if sorted[i].parent >= 0 {
			sorted[i].parent = at[sorted[i].parent]
		}
	}
	r.conv = sorted
	return r, nil
}

func (r *Replay) time(seconds float64) Time { return Seconds(seconds * r.opt.ScaleTime) }

func (r *Replay) tokens(n int) int {
	return max(1, int(float64(n)*float64(r.block)/float64(max(r.trace.BlockSize, 1))+0.5))
}

func (r *Replay) Sessions() int             { return len(r.conv) }
func (r *Replay) Start(session int) Time    { return r.conv[session].start }
func (r *Replay) Turns(session int) int     { return len(r.conv[session].turns) }
func (r *Replay) Parent(session int) int    { return r.conv[session].parent }
func (r *Replay) Output(session, t int) int { return r.tokens(r.conv[session].turns[t].Output) }

// Block is the number of tokens of a block, as scaled; 0 if the trace has none.
func (r *Replay) Block() int {
	if r.trace.BlockSize == 0 {
		return 0
	}
	return r.block
}

// Name is what the trace calls a conversation: its session, and its agent where
// that is not the main one; "" for none.
func (r *Replay) Name(session int) string {
	q := r.conv[session].turns[0]
	if q.Agent == "" {
		return q.Session
	}
	return q.Session + "." + q.Agent
}

// Requests is the number of requests.
func (r *Replay) Requests() int {
	n := 0
	for i := range r.conv {
		n += len(r.conv[i].turns)
	}
	return n
}

// Longest is the largest number of tokens of a prompt with its answer.
func (r *Replay) Longest() int {
	n := 0
	for i := range r.conv {
		for _, q := range r.conv[i].turns {
			n = max(n, r.length(q)+r.tokens(q.Output))
		}
	}
	return n
}

// length of a prompt: its blocks keep their number.
func (r *Replay) length(q *trace.Request) int {
	if r.trace.BlockSize == 0 {
		return r.tokens(q.Input)
	}
	full := q.Input / r.trace.BlockSize
	rest := q.Input % r.trace.BlockSize
	return max(1, full*r.block+rest*r.block/r.trace.BlockSize)
}

// Think is the client's own time where the trace has it, else what is left of
// the gap between two calls when the recorded call is taken off.
func (r *Replay) Think(session, t int) Time {
	turns := r.conv[session].turns
	if t+1 >= len(turns) {
		return 0
	}
	next := turns[t+1]
	ms := next.Think
	if ms < 0 {
		ms = max(next.At-turns[t].At-max(turns[t].API, 0), 0)
	}
	return r.time(float64(ms) / 1e3)
}

// Prompt ignores history: the trace says what is in a prompt.
func (r *Replay) Prompt(session, t int, history []kvcache.Token) []kvcache.Token {
	q := r.conv[session].turns[t]
	n := r.length(q)
	history = slices.Grow(history[:0], n)
	for _, run := range q.Blocks {
		for id := run.Start; id < run.Start+run.Len && len(history) < n; id++ {
			history = r.appendBlock(history, session, id, min(r.block, n-len(history)))
		}
	}
	for len(history) < n {
		history = append(history, r.after(session, t, len(history)))
	}
	return history
}

// stream is the token stream of a block id.
func (r *Replay) stream(session int, id int64) uint64 {
	s := uint64(id)<<1 | 1
	if r.local {
		s ^= r.conv[session].salt << 40
	}
	return s
}

func (r *Replay) appendBlock(dst []kvcache.Token, session int, id int64, n int) []kvcache.Token {
	base := mix(r.stream(session, id) * 0x9E3779B97F4A7C15)
	for i := range n {
		dst = append(dst, streamToken(base, i))
	}
	return dst
}

func streamToken(base uint64, i int) kvcache.Token {
	return kvcache.Token(256 + mix(base+uint64(i))%(vocabulary-256))
}

// after is the token at a position behind the blocks of a prompt: the next
// prompt's, if it continues this one and has a full block there, else one that
// nobody shares.
func (r *Replay) after(session, t, pos int) kvcache.Token {
	turns := r.conv[session].turns
	if t+1 < len(turns) && r.trace.BlockSize > 0 {
		now, next := turns[t], turns[t+1]
		if trace.Common(now.Blocks, next.Blocks) == now.NumBlocks() {
			if id, ok := next.Block(pos / r.block); ok {
				return streamToken(mix(r.stream(session, id)*0x9E3779B97F4A7C15), pos%r.block)
			}
		}
	}
	return streamToken(mix(uint64(session)<<32|uint64(t)<<1), pos)
}

func (r *Replay) Answer(session, t, k int) kvcache.Token {
	return r.after(session, t, r.length(r.conv[session].turns[t])+k)
}
