package sim

import "math"

// pace is how the running step of a group gets on, where something may slow it
// down: the steps of other instances on the same device, or copies between the
// device and its host tier.
type pace struct {
	runs    bool
	left    float64 // nanoseconds that the step takes alone from since on
	rate    float64 // of its speed alone, since then
	since   Time
	begun   Time
	version uint64 // of the event of its end
}

// paced reports whether steps can be slowed down at all. Where they cannot, each
// takes what its cost says.
func (c *ClusterConfig) paced() bool {
	return c.Share > 0 && c.Share < 1 || c.Prefill.Slowed > 0 || c.Decode.Slowed > 0
}

// start begins the first planned step of a group.
func (c *Cluster) start(g *group) {
	s := &g.queue[0]
	switch {
	case !c.cfg.paced():
		c.cal.push(max(c.now, s.ready)+Seconds(s.seconds), eventStepEnd, g.index, g.life, 0)
	case s.ready > c.now:
		c.cal.push(s.ready, eventStepStart, g.index, g.life, 0)
	default:
		c.compute(g)
	}
}

// compute has the device begin the step.
func (c *Cluster) compute(g *group) {
	g.pace = pace{runs: true, left: float64(Seconds(g.queue[0].seconds)), since: c.now, begun: c.now, version: g.pace.version}
	c.repace()
}

// repace looks at all running steps again after something has begun or ended
// that slows them down.
func (c *Cluster) repace() {
	if !c.cfg.paced() {
		return
	}
	running := 0
	for _, g := range c.groups {
		if g.pace.runs {
			running++
		}
	}
	for _, g := range c.groups {
		p := &g.pace
		if !p.runs {
			continue
		}
		rate := 1.0
		if c.cfg.Share > 0 { // at 1/2 each of n has an n-th
			rate = 1 / (1 + float64(running-1)*(1/c.cfg.Share-1))
		}
		rate /= 1 + g.slowed(c.now)
		if rate == p.rate {
			continue
		}
		p.left -= float64(c.now-p.since) * p.rate
		p.since, p.rate = c.now, rate
		p.version++
		c.cal.push(c.now+Time(math.Ceil(max(p.left, 0)/rate)), eventStepEnd, g.index, g.life, p.version)
	}
}

// prompting is for how long Prefillers have computed so far on the device that all share.
func (c *Cluster) prompting() (sum Time) {
	if c.cfg.Share == 0 || c.cfg.Share == 1 {
		return 0
	}
	for _, g := range c.groups {
		if g.prefix != "p" {
			continue
		}
		sum += g.computed
		if g.pace.runs {
			sum += c.now - g.pace.begun
		}
	}
	return sum
}

// slowed is the share by which copies under way make a step of the group longer.
func (g *group) slowed(now Time) float64 {
	most := 0.0
	for _, r := range g.ranks {
		if r.link.host != nil && r.link.host.way.busy(now) {
			most = max(most, r.slowed)
		}
	}
	return most
}
