package scheduler

import "time"

// startLoad parks a request until its KV has arrived. Its computed tokens
// count already, so that the prefix it will have is known.
func (s *Scheduler) startLoad(r *request, local, external int32, timeout time.Duration, p *Plan) {
	r.status = WaitingKV
	r.prefilling = true
	r.load = loadState{running: true}
	r.acks.clear()
	s.timers.loads++
	s.wait(r, s.now.Add(orDefault(timeout, s.cfg.LoadTimeout)+s.cfg.Grace))
	s.passed = append(s.passed, r)
	s.addLoad(r, local, local+external, true, p)
	s.stats.Loads++
}

// addLoad lists a load in the plan.
func (s *Scheduler) addLoad(r *request, from, to int32, async bool, p *Plan) {
	a := s.alloc
	p.Loads = add(a, p.Loads, r.id)
	p.LoadsFrom = add(a, p.LoadsFrom, from)
	p.LoadsTo = add(a, p.LoadsTo, to)
	var flag uint8
	if async {
		flag = 1
	}
	p.LoadsAsync = add(a, p.LoadsAsync, flag)
	for g := range int(s.groups) {
		if async {
			p.LoadBlocks = add(a, p.LoadBlocks, r.seq.Table(g)...)
		}
		p.LoadBlocksAt = add(a, p.LoadBlocksAt, int32(len(p.LoadBlocks)))
	}
}

func orDefault(d, otherwise time.Duration) time.Duration {
	if d > 0 {
		return d
	}
	return otherwise
}
