package golden

import (
	"cmp"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/kvcache"
	"github.com/sluice-serving/sluice/scheduler"
)

// Difference is the first decision that is not the recorded one.
type Difference struct {
	Step  int
	Field string
	Want  string
	Got   string
}

func (d *Difference) String() string {
	return fmt.Sprintf("step %d: %s\n  recorded %s\n  here     %s", d.Step, d.Field, d.Want, d.Got)
}

// Core is what a history is replayed on: a scheduler, or something that speaks
// to one. Requests carry their KV as Params.
type Core interface {
	Add(req scheduler.Request) (scheduler.RequestID, error)
	Abort(id scheduler.RequestID) error
	Deliver(events ...scheduler.Event)
	Plan(now scheduler.Time) *scheduler.Plan
	Apply(p *scheduler.Plan, res scheduler.Result) ([]scheduler.Output, error)
	Status(id scheduler.RequestID) (scheduler.Status, bool)
	Queues() scheduler.Queues
	Stats() scheduler.Stats
	Free() int
}

var _ Core = (*scheduler.Scheduler)(nil)

// NewCore makes the core of a history. A history whose requests load KV has a
// connector.
type NewCore func(cfg scheduler.Config, cache kvcache.Config, connector Connector) (Core, error)

// Connector says whether a history has one.
type Connector uint8

const (
	NoConnector Connector = iota
	StandIn               // what it answers follows from the requests' KV alone
)

// replayer is one history under way.
type replayer struct {
	h       *History
	s       Core
	tables  map[scheduler.RequestID][]kvcache.BlockID // as they were at the last admission
	reqs    map[string]*Request
	handles map[string]scheduler.RequestID
	names   map[scheduler.RequestID]string
	sampled map[string]int
	step    int
	diff    *Difference
	totals  End
}

// Replay drives a fresh scheduler through the history. It returns the first
// difference, nil if there is none. An error is a history that cannot be
// replayed.
func Replay(h *History) (*Difference, error) { return ReplayOn(h, local) }

// local is the scheduler of this process.
func local(cfg scheduler.Config, cc kvcache.Config, conn Connector) (Core, error) {
	cache, err := kvcache.New(cc)
	if err != nil {
		return nil, err
	}
	var opts []scheduler.Option
	if conn == StandIn {
		opts = append(opts, scheduler.WithConnector(newStandIn()))
	}
	return scheduler.New(cfg, cache, opts...)
}

// ReplayOn is Replay on another core.
func ReplayOn(h *History, start NewCore) (*Difference, error) {
	r, err := newReplayer(h, start)
	if err != nil {
		return nil, err
	}
	for _, ev := range h.Events {
		if ev.Request != nil {
			r.reqs[ev.Request.ID] = ev.Request
			continue
		}
		if err := r.play(ev.Step); err != nil {
			return nil, fmt.Errorf("%s, step %d: %w", h.Header.Scenario, ev.Step.T, err)
		}
		if r.diff != nil {
			return r.diff, nil
		}
	}
	r.finish()
	return r.diff, nil
}

func newReplayer(h *History, start NewCore) (*replayer, error) {
	c := h.Header.Config
	cc := kvcache.Config{Blocks: c.NumBlocks, BlockSize: c.BlockSize}
	if !c.EnablePrefixCaching {
		cc.Caching = kvcache.CachingOff
	}
	policy, err := scheduler.ParsePolicy(c.Policy)
	if err != nil {
		return nil, err
	}
	sc := scheduler.Config{
		MaxNumSeqs: c.MaxNumSeqs, MaxBatchedTokens: c.MaxNumBatchedTokens, MaxModelLen: c.MaxModelLen,
		LongPrefillThreshold: c.LongPrefillThreshold, MaxLoRAs: c.MaxLoRAs, Policy: policy,
	}
	if !c.EnableChunkedPrefill {
		sc.Chunking = scheduler.WholePrefill
	}
	if !c.ReserveFullISL {
		sc.Admission = scheduler.FirstChunk
	}
	if c.KVLoadFailurePolicy == "recompute" {
		sc.LoadFailure = scheduler.RecomputeLoad
	}
	r := &replayer{
		h: h, reqs: map[string]*Request{}, handles: map[string]scheduler.RequestID{},
		names: map[scheduler.RequestID]string{}, sampled: map[string]int{}, tables: map[scheduler.RequestID][]kvcache.BlockID{},
	}
	conn := NoConnector
	if c.KVConnector {
		conn = StandIn
	}
	r.s, err = start(sc, cc, conn)
	return r, err
}

// play drives one step and compares it.
func (r *replayer) play(st *Step) error {
	r.step = st.T
	for _, id := range st.Add {
		if err := r.add(id); err != nil {
			return err
		}
	}
	for _, id := range st.Abort {
		r.abort(id)
	}
	p := r.s.Plan(scheduler.Time(time.Duration(st.T) * time.Millisecond))
	if p == nil {
		return fmt.Errorf("no plan")
	}
	r.comparePlan(st, p)
	r.keepTables(p)
	queues := r.s.Queues()
	r.compareQueues("q1", st.Q1, queues)
	for _, id := range st.AbortMid {
		r.abort(id)
	}
	res := scheduler.Result{}
	for i, id := range p.Requests {
		if p.Samples[i] == 1 {
			name := r.names[id]
			res.Tokens = append(res.Tokens, r.reqs[name].sample(r.sampled[name]))
		}
	}
	if st.KVIn != nil {
		if err := r.failed(st.KVIn.Invalid); err != nil {
			return err
		}
	}
	outs, err := r.s.Apply(p, res)
	if err != nil {
		return err
	}
	r.compareOutputs(st, outs)
	if st.KVIn != nil {
		for _, id := range st.KVIn.Recv {
			r.s.Deliver(scheduler.Event{Kind: connector.Received, Request: r.handles[id]})
		}
		for _, id := range st.KVIn.Send {
			r.s.Deliver(scheduler.Event{Kind: connector.Sent, Request: r.handles[id]})
		}
	}
	stats := r.s.Stats()
	r.equal("free after applying", st.Free2, r.s.Free())
	r.equal("running, waiting, skipped", st.N, [3]int{stats.Running, stats.Waiting, stats.Skipped})
	r.compareQueues("q2", st.Q2, r.s.Queues())
	return nil
}

func (r *replayer) add(id string) error {
	q := r.reqs[id]
	if q == nil {
		return fmt.Errorf("request %s has no line", id)
	}
	req := scheduler.Request{
		ID: id, Prompt: slices.Clone(q.tokens), MaxTokens: q.MaxTokens, MinTokens: q.MinTokens, StopIDs: q.StopTokenIDs,
		Priority: q.Priority, Arrival: scheduler.Time(q.ArrivalTime * 1e9), Namespace: kvcache.Namespace{Salt: q.Salt},
	}
	if q.EOS != nil && !q.IgnoreEOS {
		req.EOS = []scheduler.Token{*q.EOS}
	}
	if q.LoRA != 0 {
		req.Namespace.LoRA = kvcache.LoRA{ID: q.LoRA, Name: fmt.Sprintf("lora%d", q.LoRA)}
	}
	if q.KV != nil {
		req.Params = *q.KV
	}
	h, err := r.s.Add(req)
	if err != nil {
		return err
	}
	r.handles[id], r.names[h] = h, id
	return nil
}

// abort ends a request; one that has ended already stays as it is.
func (r *replayer) abort(id string) { _ = r.s.Abort(r.handles[id]) }

// keepTables notes the tables of admissions.
func (r *replayer) keepTables(p *scheduler.Plan) {
	for i, id := range p.Requests {
		if p.Kinds[i] != scheduler.RowRunning {
			_, blocks := p.Table(i, 0)
			r.tables[id] = slices.Clone(blocks)
		}
	}
	for i, id := range p.Loads {
		if p.LoadsAsync[i] == 1 {
			r.tables[id] = slices.Clone(p.LoadTable(i, 0))
		}
	}
}

// failed reports blocks that did not arrive, by their place in the table.
func (r *replayer) failed(lines []json.RawMessage) error {
	for _, line := range lines {
		var id string
		var at []int
		if err := json.Unmarshal(line, &[]any{&id, &at}); err != nil {
			return err
		}
		ev := scheduler.Event{Kind: connector.Failed, Request: r.handles[id]}
		table := r.tables[r.handles[id]]
		for _, i := range at {
			ev.Blocks = append(ev.Blocks, table[i])
		}
		r.s.Deliver(ev)
	}
	return nil
}

func (r *replayer) comparePlan(st *Step, p *scheduler.Plan) {
	var want, got []string
	hits := map[string][2]int{}
	for _, line := range st.Sched {
		var id, kind string
		var n, computed int
		var blocks []int
		if err := json.Unmarshal(line, &[]any{&id, &kind, &n, &computed, &blocks}); err != nil {
			r.differ("sched", string(line), err.Error())
			return
		}
		want = append(want, fmt.Sprintf("%s %s tokens=%d computed=%d blocks=%d", id, kind, n, computed, len(blocks)))
	}
	for i, id := range p.Requests {
		_, blocks := p.Table(i, 0)
		name := r.names[id]
		kind := [...]string{scheduler.RowNew: "N", scheduler.RowResumed: "R", scheduler.RowRunning: "C"}[p.Kinds[i]]
		got = append(got, fmt.Sprintf("%s %s tokens=%d computed=%d blocks=%d", name, kind, p.Scheduled[i], p.Computed[i], len(blocks)))
		if p.Kinds[i] != scheduler.RowRunning {
			hits[name] = [2]int{int(p.LocalHits[i]), int(p.ExternalHits[i])}
		}
		if p.Kinds[i] == scheduler.RowNew {
			r.totals.FirstAdmissionHits += int(p.LocalHits[i])
		}
	}
	r.equal("sched", want, got)
	r.equal("total", st.Total, int(p.Total))
	if st.Hits == nil {
		st.Hits = map[string][2]int{}
	}
	r.equal("hits", st.Hits, hits)
	want, got = nil, nil
	for _, line := range st.Load {
		var id string
		var local, remote int
		var table []int
		if err := json.Unmarshal(line, &[]any{&id, &local, &remote, &table}); err != nil {
			r.differ("load", string(line), err.Error())
			return
		}
		want = append(want, fmt.Sprintf("%s local=%d remote=%d blocks=%d", id, local, remote, len(table)))
	}
	for i, id := range p.Loads {
		if p.LoadsAsync[i] == 0 {
			continue
		}
		got = append(got, fmt.Sprintf("%s local=%d remote=%d blocks=%d", r.names[id], p.LoadsFrom[i], p.LoadsTo[i]-p.LoadsFrom[i], len(p.LoadTable(i, 0))))
	}
	r.totals.RemoteLoads += len(got)
	r.equal("load", want, got)
	r.equal("unknown", st.Unknown, r.all(p.Pending))
	r.equal("preempt", st.Preempt, r.all(p.Preempted))
	r.equal("rollback", st.Rollback, r.all(p.RolledBack))
	ended := r.all(p.Finished)
	slices.Sort(ended)
	r.equal("fin_ids", st.FinIDs, ended)
	r.equal("cpb", st.CPB, int(p.CommonPrefix[0]))
	r.equal("free after planning", st.Free1, int(p.Free))
	r.totals.TotalTokens += int(p.Total)
	r.totals.Preemptions += len(p.Preempted)
	r.totals.Rollbacks += len(p.RolledBack)
	r.totals.Steps++
}

func (r *replayer) compareOutputs(st *Step, outs []scheduler.Output) {
	type output struct {
		id     string
		tokens []scheduler.Token
		finish string
		stop   scheduler.Token
	}
	var want, got []output
	for _, line := range st.Out {
		o := output{stop: -1}
		var finish *string
		if err := json.Unmarshal(line, &[]any{&o.id, &o.tokens, &finish, &o.stop}); err != nil {
			r.differ("out", string(line), err.Error())
			return
		}
		if finish != nil {
			o.finish = *finish
		}
		want = append(want, o)
	}
	for _, out := range outs {
		o := output{r.names[out.Request], slices.Clone(out.Tokens), out.Finish.String(), -1}
		if out.Stop == scheduler.StopID {
			o.stop = out.StopToken
		}
		r.sampled[o.id] += len(o.tokens)
		if o.finish != "" {
			r.totals.Finished++
		}
		got = append(got, o)
	}
	// Ends by error are no rows; where they stand among the rows is open.
	byRow := func(a, b output) int { return cmp.Compare(btoi(a.finish == "error"), btoi(b.finish == "error")) }
	slices.SortStableFunc(want, byRow)
	slices.SortStableFunc(got, byRow)
	r.equal("out", fmt.Sprint(want), fmt.Sprint(got))
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (r *replayer) compareQueues(field string, want *Queues, got scheduler.Queues) {
	if want == nil {
		return
	}
	r.equal(field, fmt.Sprint(want.Run, want.Wait, want.Skip), fmt.Sprint(got.Running, got.Waiting, got.Skipped))
}

// finish compares the totals.
func (r *replayer) finish() {
	end := r.h.End
	unfinished := map[string]bool{}
	for id, h := range r.handles {
		if st, ok := r.s.Status(h); ok && st != scheduler.Finished {
			unfinished[id] = true
		}
	}
	want := map[string]bool{}
	for _, id := range end.Unfinished {
		want[id] = true
	}
	r.equal("unfinished", want, unfinished)
	r.totals.Unfinished, end.Unfinished = nil, nil
	r.totals.Free = r.s.Free()
	r.equal("totals", fmt.Sprintf("%+v", end), fmt.Sprintf("%+v", r.totals))
}

func (r *replayer) all(ids []scheduler.RequestID) []string {
	var out []string
	for _, id := range ids {
		out = append(out, r.names[id])
	}
	return out
}

// equal notes a difference, the first one only.
func (r *replayer) equal(field string, want, got any) {
	if !reflect.DeepEqual(want, got) {
		r.differ(field, fmt.Sprint(want), fmt.Sprint(got))
	}
}

func (r *replayer) differ(field, want, got string) {
	if r.diff == nil {
		r.diff = &Difference{Step: r.step, Field: field, Want: want, Got: got}
	}
}
