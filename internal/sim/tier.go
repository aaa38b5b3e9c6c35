package sim

import (
	"slices"
	"time"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/kvcache"
)

// tier is a rank's host memory: the KV of sessions' last turns, the one used
// longest ago given up first, and that of preempted requests. It is all or
// nothing for a session and for a request. What is copied just now is not given up.
type tier struct {
	capacity   int     // tokens
	perRestore float64 // seconds to bring one back
	used       int
	bySession  map[string]*saved
	first      *saved // used longest ago
	last       *saved
	preempted  map[connector.RequestID]*preempted
	way        copyWay
}

// saved is the KV of a session's last turn.
type saved struct {
	session    string
	tokens     []kvcache.Token
	coming     []*copyTask // saves that have not ended
	copies     int         // saves and loads that have not ended
	prev, next *saved
}

// preempted is the KV of a request that waits to run again.
type preempted struct {
	tokens int
	going  bool // back to the device
}

func newTier(capacity int, perSave, perRestore float64) *tier {
	return &tier{
		capacity: capacity, perRestore: perRestore, bySession: map[string]*saved{}, preempted: map[connector.RequestID]*preempted{},
		way: copyWay{perToken: [2]float64{toHost: perSave, fromHost: perRestore}},
	}
}

func (t *tier) unlink(e *saved) {
	if e.prev != nil {
		e.prev.next = e.next
	} else {
		t.first = e.next
	}
	if e.next != nil {
		e.next.prev = e.prev
	} else {
		t.last = e.prev
	}
	e.prev, e.next = nil, nil
}

func (t *tier) append(e *saved) {
	e.prev = t.last
	if t.last != nil {
		t.last.next = e
	} else {
		t.first = e
	}
	t.last = e
}

func (t *tier) drop(e *saved) {
	t.unlink(e)
	t.used -= len(e.tokens)
	delete(t.bySession, e.session)
}

// room gives sessions up until so many tokens more fit, or none if they never do.
func (t *tier) room(tokens int, keep *saved) bool {
	spare := t.capacity - t.used
	for e := t.first; e != nil && spare < tokens; e = e.next {
		if e != keep && e.copies == 0 {
			spare += len(e.tokens)
		}
	}
	if spare < tokens {
		return false
	}
	for e := t.first; t.used+tokens > t.capacity; {
		next := e.next
		if e != keep && e.copies == 0 {
			t.drop(e)
		}
		e = next
	}
	return true
}

// save takes the computed tokens of a turn in and returns the copy of those that
// the tier does not have or get already; nil without any. tokens is copied.
func (t *tier) save(id connector.RequestID, session string, tokens []kvcache.Token) *copyTask {
	e := t.bySession[session]
	known := e != nil
	if !known {
		e = &saved{session: session}
	}
	if !t.room(len(tokens)-len(e.tokens), e) {
		if known && e.copies == 0 {
			t.drop(e)
		}
		return nil
	}
	if known {
		t.unlink(e)
	}
	t.bySession[session] = e
	t.append(e)
	have := common(e.tokens, tokens)
	t.used += len(tokens) - len(e.tokens)
	e.tokens = append(e.tokens[:have:have], tokens[have:]...)
	e.coming = slices.DeleteFunc(e.coming, func(c *copyTask) bool {
		c.to = min(c.to, have)
		return c.to <= c.from
	})
	if have == len(tokens) {
		return nil
	}
	c := &copyTask{id: id, direction: toHost, from: have, to: len(tokens), entry: e}
	c.tokens = c.to - c.from
	e.coming = append(e.coming, c)
	e.copies++
	return c
}

// preempt takes the computed tokens of a preempted request in. The ones that its
// session has here already need no copy; it returns the number of the others.
func (t *tier) preempt(r *connector.Request, computed int) (copies int, ok bool) {
	if computed <= 0 || !t.room(computed, t.bySession[r.Session]) {
		return 0, false
	}
	here := 0
	if n, coming := t.shared(r, 0); !coming {
		here = min(n, computed)
	}
	t.used += computed
	t.preempted[r.ID] = &preempted{tokens: computed}
	return computed - here, true
}

// giveUp forgets a preempted request.
func (t *tier) giveUp(id connector.RequestID) {
	if p := t.preempted[id]; p != nil {
		t.used -= p.tokens
		delete(t.preempted, id)
	}
}

// shared is the number of tokens of a prompt that the tier has behind the first
// local ones. The last token of a prompt is always computed. coming is true
// while some of them are being saved.
func (t *tier) shared(r *connector.Request, local int) (tokens int, coming bool) {
	e := t.bySession[r.Session]
	if e == nil || r.Session == "" {
		return 0, false
	}
	n := min(common(e.tokens, r.Tokens), len(r.Tokens)-1)
	for _, c := range e.coming {
		if c.from < n && c.to > local {
			return 0, true
		}
	}
	return max(n-local, 0), false
}

// load begins the way back of a request's tokens.
func (t *tier) load(id connector.RequestID, session string, tokens int) *copyTask {
	c := &copyTask{id: id, direction: fromHost, tokens: tokens}
	if p := t.preempted[id]; p != nil {
		p.going = true
	} else if c.entry = t.bySession[session]; c.entry != nil {
		c.entry.copies++
	}
	return c
}

// copied ends a copy: what was saved can be had, and what a preempted request
// had here is gone.
func (t *tier) copied(c *copyTask) {
	if e := c.entry; e != nil {
		e.copies--
		e.coming = slices.DeleteFunc(e.coming, func(x *copyTask) bool { return x == c })
		return
	}
	t.giveUp(c.id)
}

func (t *tier) takes(tokens int) time.Duration {
	return time.Duration(float64(tokens) * t.perRestore * 1e9)
}
