package route

import "time"

// speed is how fast a Prefiller was seen to compute prompts, and what waits
// there, in body bytes: the proxy knows no tokens before an answer.
type speed struct {
	queued  int64     // bytes of the prompts being computed or waiting
	perByte float64   // nanoseconds, a moving mean; 0 while nothing was seen
	last    time.Time // when the last prompt was done
}

func (s *speed) entered(bytes int) { s.queued += int64(bytes) }

func (s *speed) left(bytes int) { s.queued = max(s.queued-int64(bytes), 0) }

// done learns from one prompt. A Prefiller computes one after the other, so the
// time counts from the end of the one before, or from when this one came.
func (s *speed) done(now, began time.Time, bytes int) {
	if began.Before(s.last) {
		began = s.last
	}
	s.last = now
	took := now.Sub(began)
	if bytes < minLearn || took <= 0 {
		return
	}
	sample := float64(took) / float64(bytes)
	if s.perByte == 0 {
		s.perByte = sample
		return
	}
	s.perByte += (sample - s.perByte) / 8
}

// minLearn is the fewest bytes that teach a speed: of a shorter prompt most of
// the time is not the prompt's.
const minLearn = 256

// toCompute is how many bytes of a turn's body a Prefiller is thought to have
// to compute: those after what it had of the session.
func (r *Router) toCompute(p *prefiller, t *Turn) int {
	if t.bindable() {
		if row := r.table.get(t.key); row != nil && row.prefiller == p.serial {
			return t.Bytes - min(int(row.bytes), t.Bytes)
		}
	}
	return t.Bytes
}

// remoteETA is how long the prompt of a turn would take on the Prefiller that
// would be chosen: what waits there and the prompt itself at the speed that was
// measured, there or else on any other Prefiller. 0 is unknown.
func (r *Router) remoteETA(now time.Time, t *Turn) time.Duration {
	p := r.choosePrefiller(now, t)
	if p == nil {
		return 0
	}
	perByte := p.speed.perByte
	for i := 0; perByte == 0 && i < len(r.prefillers); i++ {
		perByte = r.prefillers[i].speed.perByte
	}
	bytes := float64(p.speed.queued) + float64(r.toCompute(p, t))
	if l := p.external; !l.At.IsZero() && now.Sub(l.At) < r.cfg.LoadMaxAge {
		bytes += float64(max(l.Waiting+l.Running-p.inFlight, 0)) * r.meanBytes
	}
	return time.Duration(bytes * perByte)
}
