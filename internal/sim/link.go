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
	work []linkWork
	host *tier // nil: none
}

// linkWork is one transfer or release that the last plan began.
type linkWork struct {
	id     connector.RequestID // on this rank
	from   int32
	life   uint32 // of from
	peer   connector.RequestID
	tokens int // 0: only a release
	tier   bool
}

var (
	_ connector.Scheduler = (*link)(nil)
	_ connector.Tier      = (*link)(nil)
)

func (l *link) Lookup(r *connector.Request, local int) connector.Answer {
	t, ok := connector.ParamsOf[*transfer](r)
	switch {
	case !ok || t.used:
	case t.keep:
		if t.back > local {
			return connector.Answer{Tokens: t.back - local, Async: true}
		}
	case t.from < 0:
		if n, _ := l.Restorable(r, local); n > 0 {
			return connector.Answer{Tokens: n, Async: true}
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
	n := l.host.beyond(r, local)
	return n, l.host.takes(n)
}

func (l *link) Allocated(r *connector.Request, _ connector.Tables, _, external int) {
	t, ok := connector.ParamsOf[*transfer](r)
	if !ok || t.used || t.from < 0 && external == 0 {
		return
	}
	t.used = true
	l.work = append(l.work, linkWork{id: r.ID, from: t.from, life: t.life, peer: t.id, tokens: external, tier: t.from < 0 && !t.keep})
}

func (l *link) Finished(r *connector.Request, _ connector.Tables, end connector.End) connector.Hold {
	if l.host != nil && r.Session != "" && end.Reason.Complete() {
		l.host.save(r.Session, r.Tokens[:end.Computed])
	}
	t, ok := connector.ParamsOf[*transfer](r)
	switch {
	case !ok:
	case t.keep && end.Reason.Complete():
		return connector.Hold{Delay: true}
	case t.from >= 0 && !t.used: // never read: let the Prefiller go
		t.used = true
		l.work = append(l.work, linkWork{id: r.ID, from: t.from, life: t.life, peer: t.id})
	}
	return connector.Hold{}
}
