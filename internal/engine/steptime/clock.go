package main

import (
	"time"

	"github.com/sluice-serving/sluice/ascendrt"
)

// clock is a device whose stream of steps notes how long each submission takes: what
// of a step's submission is the driver's, with the translation of a few commands.
type clock struct {
	ascendrt.Device
	took []time.Duration
}

// NewStream gives the executor's stream of steps a clock.
func (c *clock) NewStream(o ascendrt.StreamOptions) (ascendrt.Stream, error) {
	s, err := c.Device.NewStream(o)
	if err != nil || o.Role != "steps" {
		return s, err
	}
	return &clockedStream{s, c}, nil
}

type clockedStream struct {
	ascendrt.Stream
	c *clock
}

func (s *clockedStream) Submit(c *ascendrt.Commands) (ascendrt.Point, int, error) {
	t0 := time.Now()
	p, n, err := s.Stream.Submit(c)
	s.c.took = append(s.c.took, time.Since(t0))
	return p, n, err
}

// driver sums up what was noted since the last reset, in µs.
func (c *clock) driver() (mean, middle, most float64) {
	if len(c.took) == 0 {
		return 0, 0, 0
	}
	us := make([]float64, len(c.took))
	for i, d := range c.took {
		us[i] = d.Seconds() * 1e6
		mean += us[i] / float64(len(us))
		most = max(most, us[i])
	}
	return mean, median(us), most
}

func (c *clock) reset() { c.took = c.took[:0] }
