package engine

import (
	"time"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/connector/multi"
	"github.com/sluice-serving/sluice/connector/offload"
	"github.com/sluice-serving/sluice/connector/pd"
	"github.com/sluice-serving/sluice/connector/transport"
	"github.com/sluice-serving/sluice/kvcache"
	"github.com/sluice-serving/sluice/scheduler"
)

// note records what a plan decided: admissions, loads, preemptions, refusals.
func (r *rank) note(p *scheduler.Plan, now time.Time) {
	for i, id := range p.Loads {
		if s := r.streams[id]; s != nil {
			s.local, s.external = int(p.LoadsFrom[i]), int(p.LoadsTo[i]-p.LoadsFrom[i])
		}
	}
	for i, id := range p.Requests {
		if p.Kinds[i] == scheduler.RowRunning {
			continue
		}
		s := r.streams[id]
		if s == nil {
			continue
		}
		if !s.times.scheduled.IsZero() {
			s.preempted = false
			r.trace.add(resumeLine{"resume", s.req.TraceID, r.index, int(p.Computed[i])})
			continue
		}
		s.times.scheduled = now
		if s.external == 0 {
			s.local = int(p.LocalHits[i])
		}
		r.admitted(s)
		r.metrics.seconds(r.metrics.m.queued, now.Sub(s.times.arrived))
	}
	for i, id := range p.Preempted {
		r.metrics.counter(r.metrics.m.preemptions).Inc()
		if s := r.streams[id]; s != nil {
			s.preempted = true
			r.trace.add(preemptLine{"preempt", s.req.TraceID, r.index, p.PreemptedSaved[i] != 0})
		}
	}
	for i, id := range p.Refused {
		if s := r.streams[id]; s != nil {
			ref := p.Refusals[i]
			r.trace.add(refuseLine{"refuse", s.req.TraceID, r.index, ref.Reason.String(), int(ref.PromptTokens), int(ref.CachedTokens)})
		}
	}
}

// admitted records a request's first step.
func (r *rank) admitted(s *Stream) {
	m := r.metrics
	m.counter(m.m.queries).Add(float64(s.prompt))
	m.counter(m.m.hits).Add(float64(s.local))
	if s.route == scheduler.RemotePrefill {
		m.counter(m.m.externalQueries).Add(float64(s.prompt - s.local))
		m.counter(m.m.externalHits).Add(float64(s.external))
	}
	if s.route == scheduler.AppendPrefill {
		m.counter(m.m.appends, "hit", "").Inc()
		m.counter(m.m.appendTokens, "cached").Add(float64(s.local))
		m.counter(m.m.appendTokens, "restored").Add(float64(s.external))
		m.counter(m.m.appendTokens, "suffix").Add(float64(s.prompt - s.local - s.external))
	}
	r.noteHistory(s)
	r.trace.add(admitLine{"admit", s.req.TraceID, r.index, s.route.String(), s.prompt, s.local, s.external})
}

// save is a copy to the host tier that has not ended.
type save struct {
	name   string // the request's, in traces
	ofTurn bool   // of a finished turn; else of a preempted request
}

// noteOps remembers the loads and saves that begin, so that their ends can be
// reported.
func (r *rank) noteOps(ops []connector.Op) {
	for i := range ops {
		s := r.streams[ops[i].Request]
		name := ""
		if s != nil {
			name = s.req.TraceID
		}
		switch op := &ops[i]; op.Kind {
		case connector.OpLoad:
			r.loads[op.Request] = &load{name: name}
		case connector.OpSend:
			r.metrics.counter(r.metrics.m.transferBlocks, "sent").Add(float64(op.Blocks.Blocks()))
		case connector.OpSave:
			r.saves[op.Request] = &save{name: name, ofTurn: s == nil || !s.preempted}
		}
	}
}

// noteSaved reports the saves of preempted requests, which are on the host now.
func (r *rank) noteSaved(ops []connector.Op) {
	for i := range ops {
		op := &ops[i]
		if sv := r.saves[op.Request]; op.Kind == connector.OpSave && !sv.ofTurn {
			r.trace.add(saveLine{"kv_save", sv.name, r.index, op.Blocks.Blocks(), op.Tokens.To})
		}
	}
}

// noteEvent reports the end of a load or a save.
func (r *rank) noteEvent(ev connector.Event) {
	if ev.Kind == connector.Saved {
		if sv := r.saves[ev.Request]; sv != nil {
			delete(r.saves, ev.Request)
			if !sv.ofTurn {
				line := readyLine{Event: "kv_ready", Request: sv.name, Rank: r.index}
				if ev.Err != nil {
					line.Failed = ev.Err.Error()
				}
				r.trace.add(line)
			}
		}
		return
	}
	l := r.loads[ev.Request]
	if l == nil {
		return
	}
	switch ev.Kind {
	case connector.Failed:
		l.failed = "failed"
		if ev.Err != nil {
			l.failed = ev.Err.Error()
		}
	case connector.Received:
		delete(r.loads, ev.Request)
		for _, p := range multi.Payloads(ev) {
			r.noteLoaded(l, p)
		}
	}
}

// noteLoaded reports what one connector has brought.
func (r *rank) noteLoaded(l *load, payload any) {
	m := r.metrics
	switch t := payload.(type) {
	case pd.Transfer:
		if l.failed != "" {
			m.counter(m.m.transferFailures, "received").Inc()
		}
		m.counter(m.m.transferBlocks, "received").Add(float64(t.Blocks))
		r.trace.add(readLine{"kv_read", l.name, r.index, t.Blocks, int(t.Bytes), t.Peer, l.failed})
	case offload.Report:
		r.trace.add(restoreLine{"kv_restore", l.name, r.index, t.Blocks, int(t.Bytes), t.Tokens, l.failed})
	}
}

// computing tells a worker that sends KV while it is computed which prompts the
// step computes.
func (r *rank) computing(p *scheduler.Plan) {
	if r.links.layered == nil || p.Rows() == 0 {
		return
	}
	var rows []connector.Computing
	for i, id := range p.Requests {
		if p.Computed[i] >= p.Prefill[i] || !r.links.layered.Wants(id) {
			continue
		}
		from, blocks := p.Table(i, 0)
		table := append(append([]kvcache.BlockID(nil), r.exec.Blocks(id)[:from]...), blocks...)
		rows = append(rows, connector.Computing{
			Request: id, Tables: connector.Tables{table}, From: int(p.Computed[i]), To: int(p.Computed[i] + p.Scheduled[i]),
		})
	}
	r.links.layered.Computing(p.Seq, rows)
}

// minMeasured is the least number of prompt tokens in a step from which the
// speed of prefilling is measured.
const minMeasured = 64

// computed tells it that the step has run, and measures how fast prompts are
// computed, for the choice between computing and reading.
func (r *rank) computed(p *scheduler.Plan, took time.Duration) {
	if r.links.layered == nil {
		return
	}
	r.links.layered.StepDone(p.Seq)
	n := 0
	for i := range p.Requests {
		if p.Computed[i] < p.Prefill[i] {
			n += int(p.Scheduled[i])
		}
	}
	if n < minMeasured || took <= 0 {
		return
	}
	x := float64(n) / took.Seconds()
	if r.links.rate == 0 {
		r.links.rate = x
	}
	r.links.rate += (x - r.links.rate) / 5
	r.links.pd.SetPrefillRate(r.links.rate)
}

// drain refuses new attempts and gives up what is kept for peers that may never come.
func (r *rank) drain() {
	r.sched.Drain()
	if r.links.pd != nil {
		r.links.pd.EndOffers()
		r.flushOps()
	}
}

// gauges brings the gauges up to date.
func (r *rank) gauges() {
	stats := r.sched.Stats()
	r.metrics.state(stats, r.cache.Stats())
	r.speculated(stats)
	l, m := &r.links, r.metrics
	if l.pdw != nil {
		m.gauge(m.m.leases).Set(float64(l.pdw.Stats().LeasesNow))
		if t, ok := l.pdw.Transport().(interface{ Stats() transport.Stats }); ok {
			s := t.Stats()
			in, out := s.ReadBytes+s.ServedWrites, s.ServedReads+s.WrittenBytes
			m.counter(m.m.transferBytes, "received").Add(float64(in - l.in))
			m.counter(m.m.transferBytes, "sent").Add(float64(out - l.out))
			l.in, l.out = in, out
			m.counter(m.m.transferWay, "direct").Add(float64(s.Fetched - l.direct))
			m.counter(m.m.transferWay, "connection").Add(float64(in - s.Fetched - l.connection))
			l.direct, l.connection = s.Fetched, in-s.Fetched
			m.counter(m.m.transferFar).Add(float64(s.Far - l.far))
			l.far = s.Far
		}
	}
	if l.offload != nil {
		w := l.offw.Stats()
		m.tier(l.offload.Stats(), l.tier)
		l.tier = l.offload.Stats()
		m.counter(m.m.offloadBytes, "saved").Add(float64(w.SavedBytes - l.tierBytes[0]))
		m.counter(m.m.offloadBytes, "restored").Add(float64(w.LoadedBytes - l.tierBytes[1]))
		l.tierBytes = [2]uint64{w.SavedBytes, w.LoadedBytes}
		m.gauge(m.m.offloadFiles).Set(float64(w.FileBytes))
	}
}
