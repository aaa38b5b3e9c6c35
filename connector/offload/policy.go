package offload

import (
	"container/list"
	"fmt"
)

// Policy chooses what to evict from the slots that nobody uses.
type Policy uint8

const (
	// LRU evicts what was used longest ago.
	LRU Policy = iota
	// ARC keeps apart what was used once and what was used again, and learns
	// from its ghosts how much room each deserves (Megiddo and Modha 2003).
	ARC
)

func (p Policy) String() string {
	switch p {
	case LRU:
		return "lru"
	case ARC:
		return "arc"
	}
	return fmt.Sprintf("Policy(%d)", uint8(p))
}

// ParsePolicy reads the name. Empty is LRU.
func ParsePolicy(s string) (Policy, error) {
	switch s {
	case "", "lru":
		return LRU, nil
	case "arc":
		return ARC, nil
	}
	return 0, fmt.Errorf("eviction policy: want lru or arc, got %q", s)
}

// evictor orders the slots that hold shared content.
type evictor interface {
	// add makes a slot known, as just used.
	add(s slot, k Key)
	// touch marks a slot as used.
	touch(s slot)
	// remove forgets a slot without a trace.
	remove(s slot)
	// victims picks n slots that may go, in the order in which they should; it
	// changes nothing. Fewer than n means that there are no more.
	victims(n int, may func(slot) bool) []slot
	// evict forgets a slot that was a victim.
	evict(s slot)
}

func newEvictor(p Policy, capacity int) evictor {
	if p == ARC {
		return newARC(capacity)
	}
	return &lru{at: map[slot]*list.Element{}}
}

// lru keeps the slot that was used longest ago in front.
type lru struct {
	order list.List
	at    map[slot]*list.Element
}

func (l *lru) add(s slot, _ Key) { l.at[s] = l.order.PushBack(s) }

func (l *lru) touch(s slot) {
	if e := l.at[s]; e != nil {
		l.order.MoveToBack(e)
	}
}

func (l *lru) remove(s slot) {
	if e := l.at[s]; e != nil {
		l.order.Remove(e)
		delete(l.at, s)
	}
}

func (l *lru) evict(s slot) { l.remove(s) }

func (l *lru) victims(n int, may func(slot) bool) []slot { return pick(nil, &l.order, n, may) }

// pick appends up to n slots from the front of a list that may go.
func pick(out []slot, from *list.List, n int, may func(slot) bool) []slot {
	for e := from.Front(); e != nil && n > 0; e = e.Next() {
		if s := e.Value.(slot); may(s) {
			out = append(out, s)
			n--
		}
	}
	return out
}

// arc keeps what was used once (recent) and again (frequent), the oldest in
// front, and the keys of what it evicted from each (ghosts).
type arc struct {
	capacity int
	target   int // wanted size of recent
	recent   list.List
	frequent list.List
	at       map[slot]*arcEntry
	ghosts   [2]ghosts // of recent, of frequent
}

type arcEntry struct {
	key  Key
	list *list.List
	e    *list.Element
}

// ghosts are keys of evicted slots, the oldest in front.
type ghosts struct {
	order list.List
	at    map[Key]*list.Element
}

func (g *ghosts) add(k Key, capacity int) {
	g.drop(k)
	g.at[k] = g.order.PushBack(k)
	for g.order.Len() > capacity {
		g.drop(g.order.Front().Value.(Key))
	}
}

func (g *ghosts) drop(k Key) bool {
	e := g.at[k]
	if e == nil {
		return false
	}
	g.order.Remove(e)
	delete(g.at, k)
	return true
}

func newARC(capacity int) *arc {
	a := &arc{capacity: capacity, at: map[slot]*arcEntry{}}
	for i := range a.ghosts {
		a.ghosts[i].at = map[Key]*list.Element{}
	}
	return a
}

func (a *arc) add(s slot, k Key) {
	r, f := &a.ghosts[0], &a.ghosts[1]
	to := &a.recent
	switch {
	case r.at[k] != nil: // recent was too small
		a.target = min(a.capacity, a.target+max(1, f.order.Len()/r.order.Len()))
		r.drop(k)
		to = &a.frequent
	case f.at[k] != nil: // frequent was too small
		a.target = max(0, a.target-max(1, r.order.Len()/f.order.Len()))
		f.drop(k)
		to = &a.frequent
	}
	a.at[s] = &arcEntry{k, to, to.PushBack(s)}
}

func (a *arc) touch(s slot) {
	x := a.at[s]
	if x == nil {
		return
	}
	x.list.Remove(x.e)
	x.list = &a.frequent
	x.e = a.frequent.PushBack(s)
}

func (a *arc) remove(s slot) {
	if x := a.at[s]; x != nil {
		x.list.Remove(x.e)
		delete(a.at, s)
	}
}

func (a *arc) evict(s slot) {
	x := a.at[s]
	if x == nil {
		return
	}
	g := &a.ghosts[0]
	if x.list == &a.frequent {
		g = &a.ghosts[1]
	}
	a.remove(s)
	g.add(x.key, a.capacity)
}

// victims takes from recent while it is above its target, and then from
// frequent, and from the other one when one has no more.
func (a *arc) victims(n int, may func(slot) bool) []slot {
	fromRecent := pick(nil, &a.recent, n, may)
	fromFrequent := pick(nil, &a.frequent, n, may)
	var out []slot
	for size := a.recent.Len(); len(out) < n && len(fromRecent)+len(fromFrequent) > 0; {
		if len(fromFrequent) == 0 || len(fromRecent) > 0 && size > 0 && size >= a.target {
			out, fromRecent = append(out, fromRecent[0]), fromRecent[1:]
			size--
		} else {
			out, fromFrequent = append(out, fromFrequent[0]), fromFrequent[1:]
		}
	}
	return out
}
