package scheduler_test

import (
	"errors"
	"fmt"
	"hash"
	"hash/fnv"
	"slices"
	"strings"
	"time"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/kvcache"
	"github.com/sluice-serving/sluice/scheduler"
)

// rig is a scheduler with its cache, an executor and a connector, driven by
// tests. Every call is followed by a check of all invariants.
type rig struct {
	s      *scheduler.Scheduler
	cache  *kvcache.Cache
	exec   *executor
	conn   *scripted
	cfg    scheduler.Config
	now    scheduler.Time
	flight []flying
	ids    map[string]scheduler.RequestID
	names  map[scheduler.RequestID]string
	reqs   map[string]scheduler.Request // as they were added
	got    map[string][]scheduler.Token
	ends   map[string]scheduler.FinishReason
	order  []string
	stream hash.Hash64 // of all plans

	loads map[scheduler.RequestID]loading
	log   func(string)
	idle  int  // plans in a row without rows or a reason
	timed bool // steps take a ms for each row and token

	// syncFails says at which block of its table a load into a step breaks off;
	// -1: it does not. Nil: none does.
	syncFails func(name string, from, to int) int
}

type flying struct {
	p      *scheduler.Plan
	res    scheduler.Result
	events []scheduler.Event // come with the result
}

// loading is a load that the test has not completed.
type loading struct {
	table    []kvcache.BlockID
	tokens   []scheduler.Token
	from, to int
}

type rigConfig struct {
	scheduler.Config
	blocks, blockSize int
	caching           kvcache.Caching
	connector         bool
	producer          bool
	graphs            bool
	groups            []kvcache.GroupSpec
	opts              []scheduler.Option
}

func newRig(c rigConfig) (*rig, error) {
	if c.blocks == 0 {
		c.blocks = 64
	}
	if c.blockSize == 0 {
		c.blockSize = 4
	}
	cache, err := kvcache.New(kvcache.Config{Blocks: c.blocks, BlockSize: c.blockSize, Caching: c.caching, Groups: c.groups})
	if err != nil {
		return nil, err
	}
	r := &rig{
		cache: cache, exec: newExecutor(c.blocks, c.blockSize),
		ids: map[string]scheduler.RequestID{}, names: map[scheduler.RequestID]string{}, reqs: map[string]scheduler.Request{},
		got: map[string][]scheduler.Token{}, ends: map[string]scheduler.FinishReason{}, loads: map[scheduler.RequestID]loading{},
		stream: fnv.New64a(),
	}
	opts := c.opts
	if c.connector {
		r.conn = newScripted()
		r.conn.producer = c.producer
		opts = append(opts, scheduler.WithConnector(r.conn))
	}
	if c.graphs {
		gc := graphs.Config{MaxNumSeqs: max(c.MaxNumSeqs, 1), MaxNumBatchedTokens: max(c.MaxBatchedTokens, 64), K: c.Drafts}
		for _, k := range c.DynamicDrafts {
			gc.Widths = append(gc.Widths, k+1)
		}
		d, err := graphs.New(gc)
		if err != nil {
			return nil, err
		}
		d.SetCaptureState(graphs.AllCaptured)
		opts = append(opts, scheduler.WithGraphs(d))
	}
	if c.Lookahead == 0 && c.Drafts == 0 {
		c.Lookahead = scheduler.NoLookahead
	}
	if r.s, err = scheduler.New(c.Config, cache, opts...); err != nil {
		return nil, err
	}
	r.cfg = r.s.Config()
	r.exec.async = r.cfg.Scheduling == scheduler.Async
	return r, nil
}

// add gives a request to the scheduler; kv is what the connector has for it.
func (r *rig) add(req scheduler.Request, kv remote) error {
	if r.conn != nil {
		req.Params = kv
	}
	prompt := slices.Clone(req.Prompt)
	id, err := r.s.Add(req)
	if err != nil {
		return err
	}
	req.Prompt = prompt
	if _, ok := r.names[id]; !ok {
		r.exec.prompts[id] = prompt
		r.order = append(r.order, req.ID)
	}
	r.ids[req.ID], r.names[id], r.reqs[req.ID] = id, req.ID, req
	return r.s.Check()
}

// plan makes a plan and runs it; its result waits until apply.
func (r *rig) plan(fail bool) (*scheduler.Plan, error) {
	p := r.s.Plan(r.now)
	if p == nil {
		return nil, errors.New("no plan")
	}
	digest(r.stream, p)
	var events []scheduler.Event
	for i, id := range p.Loads {
		l := loading{tokens: slices.Clone(r.reqs[r.names[id]].Prompt), from: int(p.LoadsFrom[i]), to: int(p.LoadsTo[i])}
		if l.to > len(l.tokens) { // a restored run of a preempted request
			l.tokens = append(l.tokens, r.got[r.names[id]]...)
		}
		if p.LoadsAsync[i] == 1 {
			l.table = slices.Clone(p.LoadTable(i, 0))
			r.loads[id] = l
			continue
		}
		row := slices.Index(p.Requests, id)
		_, l.table = p.Table(row, 0)
		if r.syncFails != nil {
			if at := r.syncFails(r.names[id], l.from/r.exec.blockSize, (l.to-1)/r.exec.blockSize); at >= 0 {
				last := (l.to - 1) / r.exec.blockSize
				events = append(events, scheduler.Event{Kind: connector.Failed, Request: id, Blocks: slices.Clone(l.table[at : last+1])})
				r.exec.spoil(l.table[at : last+1]...)
				l.to = min(l.to, max(at*r.exec.blockSize, l.from))
			}
		}
		if !fail {
			r.exec.write(l.table, l.tokens, l.from, l.to)
		}
	}
	res := r.exec.run(p, fail)
	if r.timed {
		res.Elapsed = time.Duration(p.Rows()+int(p.Total)) * time.Millisecond
	}
	r.flight = append(r.flight, flying{p, res, events})
	if r.log != nil {
		r.log(r.describe(p))
	}
	for i, v := range p.Verdicts {
		if v.Class() == graphs.ClassMalformed {
			return p, fmt.Errorf("plan %d, row %d: %s", p.Seq, i, v)
		}
	}
	// Somebody progresses within two plans, or the plan says what it waits for.
	q := r.s.Queues()
	if p.Rows() > 0 || p.Waits != scheduler.NoWait || len(q.Running)+len(q.Waiting)+len(q.Skipped) == 0 {
		r.idle = 0
	} else if r.idle++; r.idle > 1 || !r.s.HasWork() {
		return p, fmt.Errorf("plan %d has no rows, does not say what it waits for, and requests are there:\n%s", p.Seq, r.s.Dump())
	}
	return p, r.s.Check()
}

// apply gives the oldest plan's result to the scheduler.
func (r *rig) apply() ([]scheduler.Output, error) {
	if len(r.flight) == 0 {
		return nil, errors.New("nothing in flight")
	}
	f := r.flight[0]
	r.flight = r.flight[1:]
	seq := f.p.Seq
	r.s.Deliver(f.events...)
	outs, err := r.s.Apply(f.p, f.res)
	if err != nil {
		return nil, err
	}
	r.exec.applied(seq)
	for _, o := range outs {
		name := r.names[o.Request]
		r.got[name] = append(r.got[name], o.Tokens...)
		if o.Finish != scheduler.NotFinished {
			r.ends[name] = o.Finish
		}
	}
	if r.log != nil {
		r.log(fmt.Sprintf("applied %d\n%s", seq, tell(outs)))
	}
	return outs, r.s.Check()
}

// received completes a load: its bytes are written now.
func (r *rig) received(name string, worker int) error {
	id := r.ids[name]
	if l, ok := r.loads[id]; ok {
		r.exec.write(l.table, l.tokens, l.from, l.to)
		delete(r.loads, id)
	}
	r.s.Deliver(scheduler.Event{Kind: connector.Received, Request: id, Worker: worker})
	return r.s.Check()
}

// loadFailed reports blocks of a request's table, by index, as not arrived.
func (r *rig) loadFailed(name string, at []int) error {
	id := r.ids[name]
	st := r.conn.reqs[id]
	ev := scheduler.Event{Kind: connector.Failed, Request: id}
	for _, i := range at {
		ev.Blocks = append(ev.Blocks, st.table[0][i])
	}
	r.exec.spoil(ev.Blocks...)
	if l, ok := r.loads[id]; ok && len(at) > 0 {
		// The good part arrives with the completion, the rest never.
		l.to = min(l.to, slices.Min(at)*r.exec.blockSize)
		r.loads[id] = l
	}
	r.s.Deliver(ev)
	return r.s.Check()
}

// digest adds a plan to a hash. Its fields and their order are frozen: hashes
// of whole histories are recorded.
func digest(h hash.Hash64, p *scheduler.Plan) {
	fmt.Fprintln(h, p.Seq, p.Requests, p.Kinds, p.Scheduled, p.Drafts, p.Placeholders, p.Computed, p.Prefill, p.Samples, p.Inputs,
		p.TableFrom, p.Blocks, p.BlocksAt, p.Loads, p.LoadsFrom, p.LoadsTo, p.Pending, p.Finished, p.Reasons, p.Preempted, p.RolledBack,
		p.Refused, p.Released, p.Free)
}

// describe writes a plan as text.
func (r *rig) describe(p *scheduler.Plan) string {
	var b strings.Builder
	fmt.Fprintf(&b, "plan %d: %d tokens, free %d", p.Seq, p.Total, p.Free)
	if p.Waits != scheduler.NoWait {
		fmt.Fprintf(&b, ", waits for %s", p.Waits)
	}
	if p.Graph.Mode != graphs.None {
		fmt.Fprintf(&b, ", graph %s", p.Graph.Key)
	}
	b.WriteByte('\n')
	list := func(what string, ids []scheduler.RequestID) {
		if len(ids) > 0 {
			fmt.Fprintf(&b, "  %s", what)
			for _, id := range ids {
				fmt.Fprintf(&b, " %s", r.names[id])
			}
			b.WriteByte('\n')
		}
	}
	list("finished", p.Finished)
	list("released", p.Released)
	list("preempted", p.Preempted)
	list("taken back", p.RolledBack)
	list("pending", p.Pending)
	for i, id := range p.Refused {
		ref := p.Refusals[i]
		fmt.Fprintf(&b, "  refused %s: %s, %d of %d cached\n", r.names[id], ref.Reason, ref.CachedTokens, ref.PromptTokens)
	}
	for i, id := range p.Loads {
		mode := "now"
		if p.LoadsAsync[i] == 1 {
			mode = fmt.Sprint("into ", p.LoadTable(i, 0))
		}
		fmt.Fprintf(&b, "  load %s tokens %d-%d %s\n", r.names[id], p.LoadsFrom[i], p.LoadsTo[i], mode)
	}
	for i, id := range p.Requests {
		fmt.Fprintf(&b, "  %s %s %d after %d", r.names[id], p.Kinds[i], p.Scheduled[i], p.Computed[i])
		if p.Kinds[i] != scheduler.RowRunning && p.LocalHits[i]+p.ExternalHits[i] > 0 {
			fmt.Fprintf(&b, ", hit %d", p.LocalHits[i])
			if p.ExternalHits[i] > 0 {
				fmt.Fprintf(&b, "+%d", p.ExternalHits[i])
			}
		}
		if p.Drafts[i] > 0 {
			fmt.Fprintf(&b, ", drafts %d", p.Drafts[i])
			if p.Placeholders[i] > 0 {
				b.WriteString(" empty")
			}
		}
		if _, blocks := p.Table(i, 0); len(blocks) > 0 {
			fmt.Fprintf(&b, ", blocks %v", blocks)
		}
		if p.Samples[i] == 0 {
			b.WriteString(", more to come")
		}
		if len(p.Verdicts) > 0 {
			fmt.Fprintf(&b, ", %s", p.Verdicts[i].Class())
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// tell writes outputs as text.
func tell(outs []scheduler.Output) string {
	var b strings.Builder
	for _, o := range outs {
		fmt.Fprintf(&b, "  -> %s", o.ID)
		if len(o.Tokens) > 0 {
			fmt.Fprintf(&b, " %d", o.Tokens)
		}
		switch o.Finish {
		case scheduler.NotFinished:
		case scheduler.FinishRefused:
			fmt.Fprintf(&b, " refused %s (%d of %d cached)", o.Refusal.Reason, o.Refusal.CachedTokens, o.Refusal.PromptTokens)
		case scheduler.FinishRecomputed:
			b.WriteString(" recomputed elsewhere")
		default:
			fmt.Fprintf(&b, " %s", o.Finish)
		}
		switch o.Stop {
		case scheduler.StopEOS:
			b.WriteString(" (eos)")
		case scheduler.StopID:
			fmt.Fprintf(&b, " (token %d)", o.StopToken)
		}
		if o.Err != nil {
			fmt.Fprintf(&b, ": %v", o.Err)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// quiesce runs until nothing is left to do, completing loads and sends. It
// fails if that takes more than limit plans.
func (r *rig) quiesce(limit int) error {
	for range limit {
		if len(r.flight) > 0 && len(r.flight) >= r.cfg.InFlight {
			if _, err := r.apply(); err != nil {
				return err
			}
			continue
		}
		for _, name := range r.order {
			if _, ok := r.loads[r.ids[name]]; ok {
				if err := r.received(name, 0); err != nil {
					return err
				}
			}
		}
		p, err := r.plan(false)
		if err != nil {
			return err
		}
		if p.Rows() > 0 {
			continue
		}
		for len(r.flight) > 0 {
			if _, err := r.apply(); err != nil {
				return err
			}
		}
		for _, name := range r.s.Queues().Held {
			r.s.Deliver(scheduler.Event{Kind: connector.Sent, Request: r.ids[name]})
		}
		if !r.s.HasWork() && r.s.Unfinished() == 0 {
			return r.s.Check()
		}
	}
	return fmt.Errorf("not done after %d plans:\n%s", limit, r.s.Dump())
}

// verify compares what a request yielded with what the model says.
func (r *rig) verify(name string) error {
	req := r.reqs[name]
	got := r.got[name]
	want := answer(req.Prompt, len(got))
	if !slices.Equal(got, want) {
		return fmt.Errorf("request %s: got %d, the model says %d", name, got, want)
	}
	switch r.ends[name] {
	case scheduler.FinishRefused:
		if len(got) > 0 {
			return fmt.Errorf("request %s: refused after %d tokens", name, len(got))
		}
	case scheduler.FinishLength:
		limit := min(req.MaxTokens, r.s.MaxLen()-len(req.Prompt))
		if len(got) != max(limit, 1) {
			return fmt.Errorf("request %s: ended by length after %d tokens, not %d", name, len(got), limit)
		}
	case scheduler.FinishStop:
		last := got[len(got)-1]
		if !slices.Contains(req.EOS, last) && !slices.Contains(req.StopIDs, last) {
			return fmt.Errorf("request %s: ended by a stop rule with token %d", name, last)
		}
	}
	return nil
}

func ms(n int) scheduler.Time { return scheduler.Time(time.Duration(n) * time.Millisecond) }
