package pd

import (
	"crypto/subtle"
	"sync"
	"time"

	"github.com/google/btree"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/connector/transport"
)

// held is a lease that P has given.
type held struct {
	request  connector.RequestID
	name     string
	lease    Lease
	open     []transport.Capability // per KV group
	life     time.Duration          // of the first term; 0: the usual one
	deadline time.Time              // ends then unless renewed
	last     time.Time              // cannot be renewed beyond
	seq      uint64
}

// leases is P's table, ordered by deadline. Whoever takes a lease out of it
// ends it, so a lease ends once.
type leases struct {
	life time.Duration
	hold time.Duration

	mu     sync.Mutex
	m      map[connector.RequestID]*held
	byTime *btree.BTreeG[*held]
	seq    uint64
	wake   chan struct{} // 1: the first deadline may have changed
}

func newLeases(life, hold time.Duration) *leases {
	return &leases{
		life: life, hold: hold, m: map[connector.RequestID]*held{}, wake: make(chan struct{}, 1),
		byTime: btree.NewG(16, func(a, b *held) bool {
			if !a.deadline.Equal(b.deadline) {
				return a.deadline.Before(b.deadline)
			}
			return a.seq < b.seq
		}),
	}
}

// add begins a lease now.
func (l *leases) add(h *held, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seq++
	h.seq = l.seq
	life := l.life
	if h.life > 0 {
		life = h.life
	}
	h.deadline, h.last = now.Add(life), now.Add(max(l.hold, life))
	if h.deadline.After(h.last) {
		h.deadline = h.last
	}
	l.m[h.request] = h
	l.byTime.ReplaceOrInsert(h)
	poke(l.wake)
}

// find returns the live lease that r names. A wrong name, generation or
// secret finds nothing. The lock is held.
func (l *leases) find(r leaseRef) *held {
	h := l.m[connector.NewRequestID(r.Slot, r.Generation)]
	if h == nil || h.name != r.Request || subtle.ConstantTimeCompare(h.lease.Secret[:], r.Secret[:]) != 1 {
		return nil
	}
	return h
}

// renew prolongs a lease and says what it opens.
func (l *leases) renew(r leaseRef, now time.Time) leaseState {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.find(r)
	if h == nil || !now.Before(h.deadline) {
		return leaseState{}
	}
	l.byTime.Delete(h)
	if d := now.Add(l.life); d.After(h.deadline) {
		h.deadline = d
	}
	if h.deadline.After(h.last) {
		h.deadline = h.last
	}
	l.byTime.ReplaceOrInsert(h)
	return leaseState{Held: true, Open: h.open, LeftMS: h.deadline.Sub(now).Milliseconds()}
}

// confirm says whether a lease is unbroken.
func (l *leases) confirm(r leaseRef, now time.Time) leaseState {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.find(r)
	if h == nil || !now.Before(h.deadline) {
		return leaseState{}
	}
	return leaseState{Held: true, LeftMS: h.deadline.Sub(now).Milliseconds()}
}

// take removes a lease that its holder releases; nil if there is none.
func (l *leases) take(r leaseRef) *held {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.find(r)
	if h != nil {
		l.remove(h)
	}
	return h
}

// own removes a lease that this engine itself ends; nil if there is none.
func (l *leases) own(id connector.RequestID) *held {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := l.m[id]
	if h != nil {
		l.remove(h)
	}
	return h
}

func (l *leases) remove(h *held) {
	delete(l.m, h.request)
	l.byTime.Delete(h)
}

// expired removes the leases whose time is over, and says when the next one
// is; ok is false if there is none.
func (l *leases) expired(now time.Time) (ended []*held, next time.Time, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		h, some := l.byTime.Min()
		if !some {
			return ended, time.Time{}, false
		}
		if now.Before(h.deadline) {
			return ended, h.deadline, true
		}
		l.remove(h)
		ended = append(ended, h)
	}
}

func (l *leases) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.m)
}

// poke fills a channel of capacity 1.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
