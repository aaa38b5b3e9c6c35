package scheduler_test

import (
	"slices"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/kvcache"
	"github.com/sluice-serving/sluice/scheduler"
)

// The model of these tests: the KV of a position is a number that depends on
// the tokens up to it, made from the KV of the position before. A token
// sampled there depends on that number. An executor that reads one slot that
// was not written, or was written for other tokens, samples something else.

func link(before uint64, tok scheduler.Token) uint64 {
	x := before*0x9E3779B97F4A7C15 + uint64(uint32(tok)) + 0x632BE59BD9B4E019
	x ^= x >> 29
	x *= 0xBF58476D1CE4E5B9
	return x ^ x>>32
}

// sample is the token that follows a position with this KV. One in 64 is the
// model's end of sequence.
func sample(kv uint64) scheduler.Token {
	if kv>>40%64 == 0 {
		return eos
	}
	return scheduler.Token(100 + kv%3000)
}

const (
	eos    scheduler.Token = 2
	poison uint64          = 0xBADBADBADBAD
)

// answer is what a request yields by itself: at most n tokens after the prompt.
func answer(prompt []scheduler.Token, n int) []scheduler.Token {
	var kv uint64
	for _, t := range prompt {
		kv = link(kv, t)
	}
	var out []scheduler.Token
	for range n {
		t := sample(kv)
		out = append(out, t)
		kv = link(kv, t)
	}
	return out
}

// executor runs plans over a cache of such numbers.
type executor struct {
	blockSize int
	kv        []uint64
	seqs      map[uint32]*sequence
	drafts    func(id scheduler.RequestID, known []scheduler.Token, k int) []scheduler.Token // proposes drafts; nil: none
	async     bool
	rejected  []rejection // of steps that may not be applied yet
	prompts   map[scheduler.RequestID][]scheduler.Token
}

// sequence is what the executor knows of a request in a slot.
type sequence struct {
	id     scheduler.RequestID
	table  []kvcache.BlockID
	tokens []scheduler.Token // known or sampled here
	drafts []scheduler.Token // proposed for the next step
}

type rejection struct {
	seq uint64
	id  scheduler.RequestID
	n   int32
}

func newExecutor(blocks, blockSize int) *executor {
	e := &executor{blockSize: blockSize, kv: make([]uint64, blocks*blockSize), seqs: map[uint32]*sequence{}, prompts: map[scheduler.RequestID][]scheduler.Token{}}
	for i := range e.kv {
		e.kv[i] = poison
	}
	return e
}

func (e *executor) slot(table []kvcache.BlockID, pos int) int {
	return int(table[pos/e.blockSize])*e.blockSize + pos%e.blockSize
}

// before is the KV of the position before pos.
func (e *executor) before(table []kvcache.BlockID, pos int) uint64 {
	if pos == 0 {
		return 0
	}
	return e.kv[e.slot(table, pos-1)]
}

// write fills the slots of positions [from, to) as a transfer does.
func (e *executor) write(table []kvcache.BlockID, tokens []scheduler.Token, from, to int) {
	var kv uint64
	for i, t := range tokens[:to] {
		kv = link(kv, t)
		if i >= from {
			e.kv[e.slot(table, i)] = kv
		}
	}
}

// spoil makes the KV of blocks worthless.
func (e *executor) spoil(blocks ...kvcache.BlockID) {
	for _, b := range blocks {
		for i := range e.blockSize {
			e.kv[int(b)*e.blockSize+i] = poison
		}
	}
}

// follow takes over what a plan says about requests and tables.
func (e *executor) follow(p *scheduler.Plan) {
	for _, ids := range [][]scheduler.RequestID{p.Finished, p.Preempted} {
		for _, id := range ids {
			if q := e.seqs[id.Slot()]; q != nil && q.id == id {
				delete(e.seqs, id.Slot())
			}
		}
	}
	for i, id := range p.Requests {
		q := e.seqs[id.Slot()]
		if q == nil || q.id != id {
			q = &sequence{id: id, tokens: slices.Clone(e.prompts[id])}
			e.seqs[id.Slot()] = q
		}
		from, blocks := p.Table(i, 0)
		q.table = append(q.table[:from], blocks...)
	}
}

// run computes a plan's rows. A failed step leaves garbage behind.
func (e *executor) run(p *scheduler.Plan, fail bool) scheduler.Result {
	e.follow(p)
	type work struct {
		q      *sequence
		from   int
		inputs []scheduler.Token
		out    []scheduler.Token
		done   bool
	}
	rows := make([]work, p.Rows())
	writer := map[int]int{}
	for i, id := range p.Requests {
		q := e.seqs[id.Slot()]
		from := int(p.Computed[i])
		if p.Input(i)[0] != scheduler.Unknown {
			e.rejected = slices.DeleteFunc(e.rejected, func(r rejection) bool { return r.id == id })
		}
		for _, r := range e.rejected {
			if r.id == id && r.seq > p.Applied {
				from -= int(r.n)
			}
		}
		inputs := slices.Clone(p.Input(i))
		first := len(inputs) - int(p.Drafts[i]) // the first draft
		for j, t := range inputs {
			pos := from + j
			switch {
			case t != scheduler.Unknown:
			case j >= first && p.Placeholders[i] == 0 && j-first < len(q.drafts):
				inputs[j] = q.drafts[j-first]
			case j < first && pos < len(q.tokens):
				inputs[j] = q.tokens[pos]
			default:
				inputs[j] = 1 // a placeholder
			}
			for j < first && len(q.tokens) < pos { // known before a preemption
				q.tokens = append(q.tokens, 0)
			}
			if j < first {
				q.tokens = append(q.tokens[:min(pos, len(q.tokens))], inputs[j])
			}
		}
		rows[i] = work{q: q, from: from, inputs: inputs}
		for j := range inputs {
			writer[e.slot(q.table, from+j)] = i
		}
	}
	// A row that reads what another row of the step writes comes after it, as
	// all KV of a layer is written before any of it is read.
	for left := len(rows); left > 0; {
		progress := false
		for i := range rows {
			w := &rows[i]
			if w.done {
				continue
			}
			if w.from > 0 {
				if by, ok := writer[e.slot(w.q.table, w.from-1)]; ok && by != i && !rows[by].done {
					continue
				}
			}
			w.done, progress = true, true
			left--
			kv := e.before(w.q.table, w.from)
			d := int(p.Drafts[i])
			var after []uint64
			for j, t := range w.inputs {
				kv = link(kv, t)
				if fail {
					kv = poison
				}
				e.kv[e.slot(w.q.table, w.from+j)] = kv
				after = append(after, kv)
			}
			if p.Samples[i] == 1 {
				w.out = append(w.out, sample(after[len(after)-1-d]))
				for j := range d {
					draft := w.inputs[len(w.inputs)-d+j]
					if p.Placeholders[i] > 0 || draft != w.out[j] {
						break
					}
					w.out = append(w.out, sample(after[len(after)-d+j]))
				}
			}
		}
		if !progress {
			panic("rows wait for each other")
		}
	}
	var res scheduler.Result
	if fail {
		res.Outcome = scheduler.Failed
	}
	for i := range rows {
		w, id := &rows[i], p.Requests[i]
		res.Tokens = append(res.Tokens, w.out...)
		res.Counts = append(res.Counts, int32(len(w.out)))
		w.q.tokens = append(w.q.tokens, w.out...)
		if d := p.Drafts[i]; d > 0 && len(w.out) > 0 {
			e.rejected = append(e.rejected, rejection{p.Seq, id, d - int32(len(w.out)-1)})
		}
		w.q.drafts = nil
		if e.drafts != nil && len(w.out) > 0 {
			w.q.drafts = e.drafts(id, w.q.tokens, 0)
		}
		if !e.async && e.drafts != nil {
			res.Drafts = append(res.Drafts, w.q.drafts...)
			res.DraftCounts = append(res.DraftCounts, int32(len(w.q.drafts)))
		}
	}
	return res
}

// applied forgets what only matters while a step is in flight.
func (e *executor) applied(seq uint64) {
	e.rejected = slices.DeleteFunc(e.rejected, func(r rejection) bool { return r.seq+8 < seq })
}

// remote is what a test's connector knows about a request's KV elsewhere.
type remote struct {
	tokens  int  // prompt tokens whose KV can be loaded
	sync    bool // loaded in the admission's step
	pending int  // lookups that are not answered
	send    bool // blocks are held at the end
	always  bool // can be loaded more than once
	save    bool // saved at preemption
}

// scripted is a connector that does what each request's remote says.
type scripted struct {
	connector.Base
	reqs     map[scheduler.RequestID]*remoteState
	producer bool
}

type remoteState struct {
	remote
	used      bool
	lookups   int
	saved     int // tokens saved at a preemption
	table     connector.Tables
	local     int
	external  int
	finishes  int
	endTables connector.Tables
	end       connector.End
}

func newScripted() *scripted { return &scripted{reqs: map[scheduler.RequestID]*remoteState{}} }

var (
	_ connector.Scheduler  = (*scripted)(nil)
	_ connector.Recovering = (*scripted)(nil)
	_ connector.Delivery   = (*scripted)(nil)
)

func (c *scripted) RequiresDelivery() bool { return c.producer }

func (c *scripted) Recovering(id scheduler.RequestID) bool {
	r := c.reqs[id]
	return r != nil && r.saved > 0
}

func (c *scripted) Added(r *connector.Request) {
	kv, _ := connector.ParamsOf[remote](r)
	c.reqs[r.ID] = &remoteState{remote: kv}
}

func (c *scripted) Lookup(r *connector.Request, local int) connector.Answer {
	st := c.reqs[r.ID]
	st.lookups++
	if st.pending > 0 {
		st.pending--
		return connector.Answer{Pending: true}
	}
	if st.saved > 0 {
		return connector.Answer{Tokens: max(st.saved-local, 0), Async: !st.sync}
	}
	if st.used && !st.always {
		return connector.Answer{}
	}
	return connector.Answer{Tokens: max(st.tokens-local, 0), Async: !st.sync}
}

func (c *scripted) Allocated(r *connector.Request, tables connector.Tables, local, external int) {
	st := c.reqs[r.ID]
	st.table, st.local = tables.Clone(), local
	st.external = external
	if external > 0 {
		st.used = true
		st.saved = 0
	}
}

func (c *scripted) Preempting(r *connector.Request, _ connector.Tables, computed int) bool {
	st := c.reqs[r.ID]
	if st.save {
		st.saved = computed
	}
	return st.save
}

func (c *scripted) Finished(r *connector.Request, tables connector.Tables, end connector.End) connector.Hold {
	st := c.reqs[r.ID]
	st.finishes++
	st.endTables, st.end = tables.Clone(), end
	return connector.Hold{Delay: st.send && end.Reason.Complete() && tables.Blocks() > 0, Params: nil}
}
