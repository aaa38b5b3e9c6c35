package sim

import "github.com/sluice-serving/sluice/scheduler"

// Time is a moment of the virtual clock, in nanoseconds from its start.
type Time = scheduler.Time

// Seconds converts a duration in seconds.
func Seconds(s float64) Time { return Time(s * 1e9) }

// event is something that happens at a time. Which it is, its receiver knows:
// events carry two small numbers and no closure, so that the queue allocates
// nothing but its own growth.
type event struct {
	at   Time
	seq  uint64
	kind eventKind
	a, b int32
	tag  uint64
}

type eventKind uint8

const (
	eventEligible  eventKind = iota // turn a may be sent
	eventArrive                     // turn a reaches rank b
	eventStepStart                  // the first planned step of group a in its life b begins
	eventStepEnd                    // the running step of group a in its life b ends, if its pace is still that of version tag
	eventPace                       // something has ended that slowed steps down
	eventWake                       // group a in its life b should look at its work
	eventKV                         // the KV of request tag has arrived at rank a in its life b
	eventCopied                     // the way between rank a in its life b and its host tier, of version tag, ends a copy
	eventSent                       // the blocks of request tag of rank a in its life b have been read
	eventBack                       // a refusal or failure of turn a has reached the proxy
	eventDone                       // the answer of turn a reached the client
	eventRound                      // the proxy begins another P/D round for turn a
	eventFailed                     // the client of turn a learns that it has failed
	eventAgain                      // the client of turn a asks again
	eventFault                      // fault a begins, or ends if b is 1
)

// calendar is a binary heap of events.
type calendar struct {
	heap []event
	seq  uint64
}

func (c *calendar) len() int { return len(c.heap) }

func before(x, y *event) bool { return x.at < y.at || x.at == y.at && x.seq < y.seq }

// push puts an event behind those of the same time.
func (c *calendar) push(at Time, kind eventKind, a, b int32, tag uint64) {
	c.seq++
	c.heap = append(c.heap, event{at, c.seq, kind, a, b, tag})
	h := c.heap
	for i := len(h) - 1; i > 0; {
		up := (i - 1) / 2
		if !before(&h[i], &h[up]) {
			break
		}
		h[i], h[up] = h[up], h[i]
		i = up
	}
}

// pop takes the earliest event.
func (c *calendar) pop() event {
	h := c.heap
	first := h[0]
	last := len(h) - 1
	h[0] = h[last]
	c.heap = h[:last]
	h = c.heap
	for i := 0; ; {
		down := 2*i + 1
		if down >= len(h) {
			break
		}
		if r := down + 1; r < len(h) && before(&h[r], &h[down]) {
			down = r
		}
		if !before(&h[down], &h[i]) {
			break
		}
		h[i], h[down] = h[down], h[i]
		i = down
	}
	return first
}
