package engine

import (
	"time"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/connector/pd"
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
		if s == nil || !s.times.scheduled.IsZero() {
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
	}
	r.trace.add(admitLine{"admit", s.req.TraceID, r.index, s.route.String(), s.prompt, s.local, s.external})
}

// noteOps remembers the loads that begin, so that their ends can be reported.
func (r *rank) noteOps(ops []connector.Op) {
	for i := range ops {
		switch op := &ops[i]; op.Kind {
		case connector.OpLoad:
			l := &load{}
			if s := r.streams[op.Request]; s != nil {
				l.name = s.req.TraceID
			}
			r.loads[op.Request] = l
		case connector.OpSend:
			r.metrics.counter(r.metrics.m.transferBlocks, "sent").Add(float64(op.Blocks.Blocks()))
		}
	}
}

// noteEvent reports the end of a load.
func (r *rank) noteEvent(ev connector.Event) {
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
		t, _ := ev.Payload.(pd.Transfer)
		m := r.metrics
		if l.failed != "" {
			m.counter(m.m.transferFailures, "received").Inc()
		}
		m.counter(m.m.transferBlocks, "received").Add(float64(t.Blocks))
		r.trace.add(readLine{"kv_read", l.name, r.index, t.Blocks, int(t.Bytes), t.Peer, l.failed})
	}
}

// gauges brings the gauges up to date.
func (r *rank) gauges() {
	r.metrics.state(r.sched.Stats(), r.cache.Stats())
	if r.transfer != nil {
		in, out := r.transfer()
		r.metrics.counter(r.metrics.m.transferBytes, "received").Add(float64(in - r.bytesIn))
		r.metrics.counter(r.metrics.m.transferBytes, "sent").Add(float64(out - r.bytesOut))
		r.bytesIn, r.bytesOut = in, out
	}
}
