package sim

import (
	"time"

	"github.com/sluice-serving/sluice/connector"
)

// transfer is what the front door says about a request's KV: the opaque
// connector parameters of a request in the simulator.
type transfer struct {
	keep   bool                // Prefiller: hold the prompt's blocks when it has run
	from   int32               // Decoder: rank that holds the blocks; -1 none
	life   uint32              // of that rank
	id     connector.RequestID // there
	tokens int                 // of the prompt that it holds
	back   int                 // Prefiller: tokens that a Decoder holds
	backOn int32               // on this rank
	used   bool                // the blocks were asked for

	backLife uint32
}

// link is the connector of one rank. On a Prefiller it holds finished prompts,
// on a Decoder it pulls them. Bytes do not move: the cluster turns its work
// into events on the virtual clock.
type link struct {
	connector.Base
	work   []linkWork
	host   *tier       // nil: none
	copies []*copyTask // that have come since the last step or its end
	urgent int         // tokens of preempted requests, to be saved before the next step
}

// linkWork is one transfer or release that the last plan began.
type linkWork struct {
	id     connector.RequestID // on this rank
	from   int32
	life   uint32 // of from
	peer   connector.RequestID
	tokens int // 0: only a release
}

var (
	_ connector.Scheduler  = (*link)(nil)
	_ connector.Tier       = (*link)(nil)
	_ connector.Recovering = (*link)(nil)
)

func (l *link) Lookup(r *connector.Request, local int) connector.Answer {
	if p := l.saved(r.ID); p != nil {
		if n := min(p.tokens, len(r.Tokens)) - local; n > 0 && !p.going {
			return connector.Answer{Tokens: n, Async: true}
		}
		return connector.Answer{}
	}
	t, ok := connector.ParamsOf[*transfer](r)
	switch {
	case !ok || t.used:
	case t.keep:
		if t.back > local {
			return connector.Answer{Tokens: t.back - local, Async: true}
		}
	case t.from < 0 && l.host != nil && r.Route == connector.AppendPrefill:
		if n, coming := l.host.shared(r, local); n > 0 || coming {
			return connector.Answer{Tokens: n, Async: true, Pending: coming}
		}
	case t.tokens > local:
		return connector.Answer{Tokens: t.tokens - local, Async: true}
	}
	return connector.Answer{}
}

// Restorable is what the host tier has for an append attempt.
func (l *link) Restorable(r *connector.Request, local int) (int, time.Duration) {
	if l.host == nil || r.Route != connector.AppendPrefill {
		return 0, 0
	}
	n, _ := l.host.shared(r, local)
	if p := l.saved(r.ID); p != nil && !p.going {
		n = max(n, min(p.tokens, len(r.Tokens))-local)
	}
	return n, l.host.takes(n)
}

// saved is what the tier has of a preempted request.
func (l *link) saved(id connector.RequestID) *preempted {
	if l.host == nil {
		return nil
	}
	return l.host.preempted[id]
}

// Recovering is true while the KV of a preempted request is in the tier.
func (l *link) Recovering(id connector.RequestID) bool { return l.saved(id) != nil }

// Preempting saves a request's blocks before they are taken, whole or not at all.
func (l *link) Preempting(r *connector.Request, _ connector.Tables, computed int) bool {
	if l.host == nil {
		return false
	}
	if l.saved(r.ID) != nil {
		return true
	}
	n, ok := l.host.preempt(r, computed)
	l.urgent += n
	return ok
}

func (l *link) Allocated(r *connector.Request, _ connector.Tables, _, external int) {
	if p := l.saved(r.ID); p != nil {
		if external > 0 {
			l.copies = append(l.copies, l.host.load(r.ID, r.Session, external))
		} else if !p.going {
			l.host.giveUp(r.ID)
		}
		return
	}
	t, ok := connector.ParamsOf[*transfer](r)
	if !ok || t.used || t.from < 0 && external == 0 {
		return
	}
	t.used = true
	if t.from < 0 && !t.keep {
		l.copies = append(l.copies, l.host.load(r.ID, r.Session, external))
		return
	}
	l.work = append(l.work, linkWork{id: r.ID, from: t.from, life: t.life, peer: t.id, tokens: external})
}

func (l *link) Finished(r *connector.Request, _ connector.Tables, end connector.End) (hold connector.Hold) {
	if p := l.saved(r.ID); p != nil && !p.going {
		l.host.giveUp(r.ID)
	}
	if l.host != nil && r.Session != "" && end.Reason.Complete() {
		if c := l.host.save(r.ID, r.Session, r.Tokens[:end.Computed]); c != nil {
			l.copies = append(l.copies, c)
			hold.Delay = true
		}
	}
	t, ok := connector.ParamsOf[*transfer](r)
	switch {
	case !ok:
	case t.keep && end.Reason.Complete():
		hold.Delay = true
	case t.from >= 0 && !t.used: // never read: let the Prefiller go
		t.used = true
		l.work = append(l.work, linkWork{id: r.ID, from: t.from, life: t.life, peer: t.id})
	}
	return hold
}
