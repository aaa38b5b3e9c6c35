package proxy

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"sync/atomic"
	"time"

	"github.com/sluice-serving/sluice/proxy/route"
)

// Store keeps the owners of sessions for all replicas of a proxy. With one,
// placement is by load and every replica still finds every owner; without one
// replicas agree by the hash of the session alone. Calls come from many
// goroutines at once and may block until their context ends. Values are the
// proxy's own and small; they may be forgotten after the time to live that the
// store was made with.
type Store interface {
	// Get gives the value of a key; false when there is none.
	Get(ctx context.Context, key string) (value []byte, ok bool, err error)
	// Create sets a key that does not exist. When it does, created is false and
	// value is what it holds.
	Create(ctx context.Context, key string, value []byte) (held []byte, created bool, err error)
	// Put sets a key.
	Put(ctx context.Context, key string, value []byte) error
	// Delete removes a key; one that does not exist is no error.
	Delete(ctx context.Context, key string) error
}

// storePause is how long a store that failed is left alone.
const storePause = time.Second

// shared asks the store and leaves it alone for a while after a failure, so
// that a lost store costs a timeout now and then and not one per request.
type shared struct {
	p     *Proxy
	store Store
	limit time.Duration // of one call
	until atomic.Int64  // left alone until, nanoseconds since 1970
}

// ask makes one call; false when the store cannot be asked.
func (s *shared) ask(ctx context.Context, what string, call func(ctx context.Context) error) bool {
	now := time.Now()
	if s == nil || now.UnixNano() < s.until.Load() {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	err := call(ctx)
	if err == nil || context.Cause(ctx) == context.Canceled { // a client that goes away says nothing about the store
		return err == nil
	}
	s.until.Store(time.Now().Add(storePause).UnixNano())
	s.p.metrics.store.WithLabelValues(what).Inc()
	s.p.cfg.Logger.Warn("the session store does not answer; sessions are placed by their hash meanwhile", "call", what, "err", err)
	return false
}

func storeKey(key route.SessionKey) string { return hex.EncodeToString(key[:]) }

func encode(rec route.Record) []byte {
	raw, err := json.Marshal(rec)
	if err != nil { // texts and numbers always encode
		panic(err)
	}
	return raw
}

// adopt asks the store who owns the session of a request that is about to
// begin, and takes that over.
func (x *exchange) adopt(q *route.Query) {
	s := x.p.shared
	if s == nil || (!q.HasSession && !(q.Chained && q.HasParent)) {
		return
	}
	key := q.Session
	if !q.HasSession {
		key = q.Parent
	}
	var raw []byte
	var found bool
	if !s.ask(x.r.Context(), "get", func(ctx context.Context) (err error) {
		raw, found, err = s.store.Get(ctx, storeKey(key))
		return err
	}) {
		q.ByHash = true
		q.FollowUp = q.HasSession && x.at.prompt != "prompt" && hasAssistant(x.body.Raw(x.at.prompt))
		return
	}
	var rec route.Record
	if !found || json.Unmarshal(raw, &rec) != nil {
		return
	}
	x.p.mu.Lock()
	x.p.router.Adopt(x.start, key, rec)
	x.p.mu.Unlock()
}

// claim tells the store where a session's first turn goes, before it goes
// there; when another replica was faster, the turn follows that one.
func (x *exchange) claim(target route.Target) route.Target {
	s := x.p.shared
	if s == nil || x.claimed {
		return target
	}
	x.p.mu.Lock()
	rec, first := x.p.router.Claimed(x.turn)
	x.p.mu.Unlock()
	if !first {
		return target
	}
	var held []byte
	var created bool
	if !s.ask(x.r.Context(), "create", func(ctx context.Context) (err error) {
		held, created, err = s.store.Create(ctx, storeKey(x.key), encode(rec))
		return err
	}) {
		return target
	}
	if created {
		x.claimed = true
		return target
	}
	var other route.Record
	if json.Unmarshal(held, &other) != nil {
		return target
	}
	x.p.mu.Lock()
	defer x.p.mu.Unlock()
	if t, ok := x.p.router.Follow(time.Now(), x.turn, other); ok {
		return t
	}
	return target
}

// publish tells the store how a turn has left its session. It runs before the
// request ends, so that the next turn finds it, whichever replica gets it.
func (x *exchange) publish() {
	s := x.p.shared
	if s == nil || (x.turn == nil || (!x.turn.HasSession && !x.outcome.HasSession)) {
		return
	}
	key := x.key
	if !x.turn.HasSession {
		key = x.outcome.Session
	}
	ctx := context.WithoutCancel(x.r.Context()) // also when the client has gone
	x.p.mu.Lock()
	rec, ok := x.p.router.Record(key)
	x.p.mu.Unlock()
	switch {
	case ok && rec.Bound && x.outcome.Result == route.Completed:
		s.ask(ctx, "put", func(ctx context.Context) error { return s.store.Put(ctx, storeKey(key), encode(rec)) })
	case !ok && (x.claimed || (x.outcome.End && x.outcome.Result == route.Completed)):
		s.ask(ctx, "delete", func(ctx context.Context) error { return s.store.Delete(ctx, storeKey(key)) })
	}
}
