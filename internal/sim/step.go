package sim

import (
	"fmt"
	"time"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/scheduler"
)

// pump plans as far ahead as the group may and starts the next step.
func (c *Cluster) pump(g *group) error {
	for len(g.queue) < g.depth && g.hasWork(c.now) {
		s := g.plan(c.now)
		c.began(g, &s)
		if !s.rows && len(g.queue) == 0 { // nothing to compute: what the plans say happens at once
			if err := c.apply(g, s); err != nil {
				return err
			}
			continue
		}
		g.queue = append(g.queue, s)
		if !s.rows || s.ready > c.now {
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
		c.start(g)
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
				c.cal.push(at, eventKV, r.index, int32(r.life), uint64(w.id))
			}
			if w.from >= 0 {
				c.cal.push(at, eventSent, w.from, int32(w.life), uint64(w.peer))
			}
		}
		r.link.work = r.link.work[:0]
		if n := r.link.urgent; n > 0 {
			r.link.urgent = 0
			saved := r.link.host.way.hurry(c.now, n)
			s.ready = max(s.ready, saved)
			if r.slowed > 0 {
				c.cal.push(saved, eventPace, 0, 0, 0)
			}
			c.await(r)
		}
		c.submit(r)
	}
}

// submit begins the copies between a rank and its host tier that have come.
func (c *Cluster) submit(r *rank) {
	if len(r.link.copies) == 0 {
		return
	}
	for _, t := range r.link.copies {
		r.link.host.way.push(c.now, t)
	}
	r.link.copies = r.link.copies[:0]
	c.await(r)
}

// await makes an event of the next copy's end.
func (c *Cluster) await(r *rank) {
	if at, ok := r.link.host.way.next(); ok {
		c.cal.push(at, eventCopied, r.index, int32(r.life), r.link.host.way.version)
	}
	c.repace()
}

// copied ends copies of a rank: a load has arrived, and what was saved is no
// longer needed on the device.
func (c *Cluster) copied(r *rank) {
	host := r.link.host
	for _, t := range host.way.ended(c.now) {
		host.copied(t)
		c.deliver(r, connector.Event{Kind: [...]connector.EventKind{toHost: connector.Sent, fromHost: connector.Received}[t.direction], Request: t.id})
	}
	c.await(r)
}

func (c *Cluster) stepEnd(g *group) error {
	s := g.queue[0]
	g.queue = append(g.queue[:0], g.queue[1:]...)
	g.busy = false
	s.wall = s.seconds
	if g.pace.runs {
		g.pace.runs = false
		took := c.now - g.pace.begun
		g.computed += took
		if took != Seconds(s.seconds) {
			s.wall = float64(took) / 1e9
		}
	}
	if s.rows {
		g.stats.Seconds += s.wall - s.seconds
		g.last.seconds, g.last.tokens = s.wall, s.tokens
		g.pure += s.pure
	}
	if err := c.apply(g, s); err != nil {
		return err
	}
	err := c.pump(g)
	c.repace()
	return err
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
			res.Elapsed = time.Duration(s.wall * 1e9)
		}
		outs, err := r.sched.Apply(p, *res)
		if err != nil {
			return fmt.Errorf("rank %d: %w", r.index, err)
		}
		c.submit(r)
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
