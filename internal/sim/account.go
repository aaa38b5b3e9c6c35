package sim

import "fmt"

// measurePace follows the time per token of steps at Prefillers.
func (c *Cluster) measurePace(r *rank) {
	s := r.group.last
	if s.tokens == 0 {
		return
	}
	now := s.seconds * 1e9 / float64(s.tokens)
	if c.pace == 0 {
		c.pace = now
	}
	c.pace += (now - c.pace) / 16
}

// measureRest follows the time from the end of a prompt at a Prefiller to the
// first token at the client.
func (c *Cluster) measureRest(ns float64) {
	if c.rest == 0 {
		c.rest = ns
	}
	c.rest += (ns - c.rest) / 16
}

// sampleQueue notes the queue's length up to a moment.
func (c *Cluster) sampleQueue(at Time) {
	peak := &c.result.Faults.QueueBefore
	if c.faulted {
		peak = &c.result.Faults.QueueAfter
	}
	*peak = max(*peak, c.waiting)
	if c.cfg.Window == 0 || c.now <= Seconds(c.cfg.Window) {
		c.result.QueuePeak = max(c.result.QueuePeak, c.waiting)
	}
	if c.cfg.Sample == 0 {
		return
	}
	for step := Seconds(c.cfg.Sample); c.sampled <= at; c.sampled += step {
		c.result.Queue = append(c.result.Queue, int32(c.waiting))
	}
}

// finish checks that nothing is left behind and closes the result.
func (c *Cluster) finish() (*Result, error) {
	for _, r := range c.ranks {
		if held := r.cache.Usable() - r.cache.Available(); held != 0 {
			return nil, fmt.Errorf("rank %d holds %d blocks after the last request", r.index, held)
		}
	}
	for _, g := range c.groups {
		if g.prefix == "d" {
			c.result.Decode.merge(g.stats)
		} else {
			c.result.Prefill.merge(g.stats)
		}
	}
	if c.cfg.Sample > 0 { // what follows the last token is only waits that run out
		c.result.Queue = c.result.Queue[:min(len(c.result.Queue), int(c.result.Total/c.cfg.Sample)+2)]
	}
	c.result.Events = c.events
	return &c.result, nil
}
