package sim

import (
	"math"

	"github.com/sluice-serving/sluice/connector"
)

// copiers is the number of copies under way at a time: that of
// connector/offload by default.
const copiers = 2

// direction is one of a copy between a device and its host tier.
type direction uint8

const (
	toHost direction = iota
	fromHost
)

// copyTask is a copy of some tokens' KV.
type copyTask struct {
	id        connector.RequestID
	direction direction
	tokens    int
	from, to  int     // of the entry, where it is a save
	entry     *saved  // nil: of a preempted request
	left      float64 // seconds that are left of it if it is alone
}

// copyWay is the way between a device and its host tier as connector/offload
// takes it: copies begin in the order of their coming, a few at a time; those of
// one direction share its speed. Saves of preemptions wait for nothing and keep
// the other saves waiting.
type copyWay struct {
	perToken [2]float64 // seconds, by direction
	queue    []*copyTask
	running  []*copyTask
	at       Time // until when what runs is accounted for
	urgent   Time // until when saves of preemptions have the way to the host
	version  uint64
}

// push adds a copy.
func (w *copyWay) push(now Time, c *copyTask) {
	w.advance(now)
	c.left = w.perToken[c.direction] * float64(c.tokens)
	w.queue = append(w.queue, c)
	w.start()
}

// hurry copies so many tokens to the host ahead of all others and returns when they are there.
func (w *copyWay) hurry(now Time, tokens int) Time {
	w.advance(now)
	w.urgent = max(w.urgent, now) + Seconds(w.perToken[toHost]*float64(tokens))
	w.version++
	return w.urgent
}

// start lets copies begin while there are copiers.
func (w *copyWay) start() {
	for len(w.running) < copiers && len(w.queue) > 0 {
		w.running = append(w.running, w.queue[0])
		w.queue = append(w.queue[:0], w.queue[1:]...)
	}
	w.version++
}

// share is the number of running copies of each direction.
func (w *copyWay) share() (n [2]float64) {
	for _, c := range w.running {
		n[c.direction]++
	}
	return n
}

// from is the time from which copies of a direction go on.
func (w *copyWay) from(d direction) Time {
	if d == toHost {
		return max(w.at, w.urgent)
	}
	return w.at
}

// busy reports whether something is copied after now.
func (w *copyWay) busy(now Time) bool { return len(w.running) > 0 || w.urgent > now }

// advance accounts for the time up to now, at which no copy ended before.
func (w *copyWay) advance(now Time) {
	n := w.share()
	for _, c := range w.running {
		c.left -= float64(max(now-w.from(c.direction), 0)) / 1e9 / n[c.direction]
	}
	w.at = now
}

// next is when the next copy ends; not ok when none runs.
func (w *copyWay) next() (at Time, ok bool) {
	n := w.share()
	at = math.MaxInt64
	for _, c := range w.running {
		at = min(at, w.from(c.direction)+Time(math.Ceil(max(c.left, 0)*n[c.direction]*1e9)))
	}
	return at, len(w.running) > 0
}

// ended takes the copies out that end now, and lets others begin.
func (w *copyWay) ended(now Time) []*copyTask {
	w.advance(now)
	var done []*copyTask
	rest := w.running[:0]
	for _, c := range w.running {
		if c.left < 1e-9 {
			done = append(done, c)
		} else {
			rest = append(rest, c)
		}
	}
	w.running = rest
	w.start()
	return done
}
