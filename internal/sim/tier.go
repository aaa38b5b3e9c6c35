package sim

import (
	"time"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/kvcache"
)

// tier is a rank's host memory: the KV of sessions' last turns, the one used
// longest ago given up first. It is all or nothing for a session.
type tier struct {
	capacity  int     // tokens
	perToken  float64 // seconds to bring one back
	used      int
	bySession map[string]*saved
	first     *saved // used longest ago
	last      *saved
}

type saved struct {
	session    string
	tokens     []kvcache.Token
	prev, next *saved
}

func newTier(capacity int, perToken float64) *tier {
	return &tier{capacity: capacity, perToken: perToken, bySession: map[string]*saved{}}
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

func (t *tier) drop(session string) {
	if e := t.bySession[session]; e != nil {
		t.unlink(e)
		t.used -= len(e.tokens)
		delete(t.bySession, session)
	}
}

// save keeps the computed tokens of a turn. tokens is copied.
func (t *tier) save(session string, tokens []kvcache.Token) {
	t.drop(session)
	if len(tokens) > t.capacity {
		return
	}
	for t.used+len(tokens) > t.capacity {
		t.drop(t.first.session)
	}
	e := &saved{session: session, tokens: append([]kvcache.Token(nil), tokens...)}
	t.append(e)
	t.bySession[session] = e
	t.used += len(tokens)
}

// beyond is the number of tokens of a prompt that the tier has behind the
// first local ones. The last token of a prompt is always computed.
func (t *tier) beyond(r *connector.Request, local int) int {
	e := t.bySession[r.Session]
	if e == nil || r.Session == "" {
		return 0
	}
	n := min(len(e.tokens), len(r.Tokens)-1)
	for i := range n {
		if e.tokens[i] != r.Tokens[i] {
			n = i
			break
		}
	}
	return max(n-local, 0)
}

func (t *tier) takes(tokens int) time.Duration {
	return time.Duration(float64(tokens) * t.perToken * 1e9)
}
