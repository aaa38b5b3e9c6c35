package sim

import (
	"fmt"
	"time"

	"github.com/sluice-serving/sluice/scheduler"
)

// pump plans as far ahead as the group may and starts the next step.
func (c *Cluster) pump(g *group) error {
	for len(g.queue) < g.depth && g.hasWork() {
		s := g.plan(c.now)
		c.began(g, &s)
		if !s.rows && len(g.queue) == 0 { // nothing to compute: what the plans say happens at once
			if err := c.apply(g, s); err != nil {
				return err
			}
			continue
		}
		g.queue = append(g.queue, s)
		if !s.rows {
			break
		}
	}
	if g.busy {
		return nil
	}
	if len(g.queue) > 0 {
		g.busy = true
		s := &g.queue[0]
		if s.rows {
			g.stats.Steps++
			g.stats.Seconds += s.seconds
			if s.mixed {
				g.stats.Mixed++
			}
			if !s.full {
				g.stats.NonFull++
			}
		}
		c.cal.push(c.now+Seconds(s.seconds), eventStepEnd, g.index, g.life, 0)
		return nil
	}
	for _, r := range g.ranks { // nobody computes: somebody may wait for a deadline
		if at, ok := r.sched.NextDeadline(); ok && (g.wakeAt <= c.now || at < g.wakeAt) {
			g.wakeAt = at
			c.cal.push(max(at, c.now+1), eventWake, g.index, g.life, 0)
		}
	}
	return nil
}

// began turns the connectors' work of a step into events, and counts prompts
// that leave a Prefiller's queue.
func (c *Cluster) began(g *group, s *slot) {
	for k, r := range g.ranks {
		if int(r.index) < c.cfg.Prefillers {
			for i, kind := range s.plans[k].Kinds {
				if kind == scheduler.RowNew {
					c.waiting--
					c.turns[r.turn(s.plans[k].Requests[i])].begun = true
				}
			}
		}
		for _, w := range r.link.work {
			at := c.now
			if w.tokens > 0 {
				at += Seconds(c.cfg.TransferAt + c.cfg.Transfer*float64(w.tokens))
				if w.tier {
					at = c.now + Time(r.link.host.takes(w.tokens))
				}
				c.cal.push(at, eventKV, r.index, int32(r.life), uint64(w.id))
			}
			if w.from >= 0 {
				c.cal.push(at, eventSent, w.from, int32(w.life), uint64(w.peer))
			}
		}
		r.link.work = r.link.work[:0]
	}
}

func (c *Cluster) stepEnd(g *group) error {
	s := g.queue[0]
	g.queue = append(g.queue[:0], g.queue[1:]...)
	g.busy = false
	if s.rows {
		g.last.seconds, g.last.tokens = s.seconds, s.tokens
		g.pure += s.pure
	}
	if err := c.apply(g, s); err != nil {
		return err
	}
	return c.pump(g)
}

// apply gives every rank the tokens of a step and acts on what its requests gain.
func (c *Cluster) apply(g *group, s slot) error {
	for k, r := range g.ranks {
		p := s.plans[k]
		res := &r.res
		res.Tokens = res.Tokens[:0]
		for i, samples := range p.Samples {
			if samples == 0 {
				continue
			}
			tr := &c.turns[r.turn(p.Requests[i])]
			res.Tokens = append(res.Tokens, c.load.Answer(int(tr.rec.Session), int(tr.rec.Turn), int(p.Outputs[i])))
		}
		// A rank that waits for a slower one cannot measure its own step.
		res.Elapsed = 0
		if s.took[k] == s.seconds {
			res.Elapsed = time.Duration(s.seconds * 1e9)
		}
		outs, err := r.sched.Apply(p, *res)
		if err != nil {
			return fmt.Errorf("rank %d: %w", r.index, err)
		}
		for i := range outs {
			if err := c.output(r, &outs[i]); err != nil {
				return err
			}
			if outs[i].Finish != scheduler.NotFinished {
				r.unbind(outs[i].Request)
			}
		}
	}
	g.free = append(g.free, s)
	return nil
}
