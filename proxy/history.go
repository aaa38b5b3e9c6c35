package proxy

import (
	"encoding/binary"
	"slices"

	"github.com/zeebo/xxh3"

	"github.com/sluice-serving/sluice/proxy/route"
	"github.com/sluice-serving/sluice/proxy/splice"
)

// A request may name no session and still continue one. It names the answer
// that it goes on from (previous_response_id), or nothing at all but repeats
// the messages of an earlier request and adds to them. Both are chains: each
// turn gets a name of its own, and the turn before is found by its name. Two
// turns may go on from the same one.

// maxHistory is the most messages of a request whose history is looked up.
const maxHistory = 1024

// answerKey is the session key of an answer's id.
func answerKey(tenant, id string) route.SessionKey { return route.KeyOf(tenant, "answer\x00"+id) }

// chain fills in what a turn without a session id continues, and what its own
// name will be where that is known already.
func (x *exchange) chain(q *route.Query) {
	sources := x.p.cfg.Sources
	switch {
	case x.at == responses && slices.Contains(sources, route.SourcePreviousID):
		q.Chained, x.answers = true, true
		if id, ok := x.body.String("previous_response_id"); ok && id != "" {
			q.HasParent, q.Parent = true, answerKey(x.tenant, id)
		}
	case slices.Contains(sources, route.SourceHistory):
		keys := x.histories()
		if len(keys) == 0 {
			return
		}
		q.Chained = true
		x.outcome.HasSession, x.outcome.Session = true, keys[len(keys)-1]
		x.p.mu.Lock()
		for i := len(keys) - 1; i >= 0 && !q.HasParent; i-- {
			if _, _, known := x.p.router.Owner(keys[i]); known {
				q.HasParent, q.Parent = true, keys[i]
			}
		}
		x.p.mu.Unlock()
	}
}

// histories gives a key for each beginning of the request's messages: the
// shortest first, the last for all of them. The keys depend on the tenant, the
// model and everything else that stands before the messages in a prompt, and on
// the messages as they are written. None for a prompt that is no list of messages.
func (x *exchange) histories() []route.SessionKey {
	if x.at.prompt == "prompt" {
		return nil
	}
	base := route.KeyOf(x.tenant, "history\x00"+x.at.path)
	for _, name := range []string{"model", "system", "instructions", "tools", "functions", "chat_template", "chat_template_kwargs", "cache_salt"} {
		base = extend(base, x.body.Raw(name))
	}
	var keys []route.SessionKey
	splice.Elements(x.body.Raw(x.at.prompt), func(message []byte) bool {
		if len(keys) == maxHistory {
			keys = nil
			return false
		}
		base = extend(base, message)
		keys = append(keys, base)
		return true
	})
	return keys
}

// extend is the key of a history with one more part.
func extend(key route.SessionKey, part []byte) route.SessionKey {
	var both [32]byte
	copy(both[:], key[:])
	sum := xxh3.Hash128(part)
	binary.LittleEndian.PutUint64(both[16:], sum.Lo)
	binary.LittleEndian.PutUint64(both[24:], sum.Hi)
	sum = xxh3.Hash128(both[:])
	var out route.SessionKey
	binary.LittleEndian.PutUint64(out[:], sum.Lo)
	binary.LittleEndian.PutUint64(out[8:], sum.Hi)
	return out
}

// named notes the id of an answer, where later requests may go on from it.
func (x *exchange) named(id []byte) {
	if !x.answers || x.outcome.HasSession {
		return
	}
	if s, ok := splice.StringOf(id); ok && s != "" {
		x.outcome.HasSession, x.outcome.Session = true, answerKey(x.tenant, s)
	}
}
