package proxy

import (
	"container/list"
	"sync"
	"time"

	"github.com/sluice-serving/sluice/proxy/route"
	"github.com/sluice-serving/sluice/proxy/splice"
)

// Where bidirectional_kv_xfer is on, a Decoder keeps the blocks of a finished
// turn for a while and names them in its answer, with the right to read them
// once. The proxy keeps that name per session and gives it to whoever computes
// the next turn elsewhere: to the Prefiller, which reads the session so far back
// and computes the rest, or, when little is new, to the session's next owner.

// kept is the name of one turn's blocks.
type kept struct {
	key     route.SessionKey
	decoder string // that holds them
	params  []byte // kv_transfer_params of its answer
	bytes   int    // of the turn's body
	until   time.Time
}

// keepFor is how long a Decoder keeps a turn's blocks.
const keepFor = 480 * time.Second

// maxKeptBytes bounds the names that are kept; the least recent go first.
const maxKeptBytes = 64 << 20

// keptTurns are the names by session.
type keptTurns struct {
	mu    sync.Mutex
	index map[route.SessionKey]*list.Element
	order list.List // of *kept, oldest first
	size  int
}

func (t *keptTurns) put(k *kept) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.index == nil {
		t.index = map[route.SessionKey]*list.Element{}
	}
	t.remove(t.index[k.key])
	t.index[k.key] = t.order.PushBack(k)
	for t.size += len(k.params); t.size > maxKeptBytes; {
		t.remove(t.order.Front())
	}
}

// take gives a session's name away: it is good for one reader.
func (t *keptTurns) take(key route.SessionKey, now time.Time) *kept {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.index[key]
	if e == nil {
		return nil
	}
	k := e.Value.(*kept)
	t.remove(e)
	if now.After(k.until) {
		return nil
	}
	return k
}

// remove drops an entry; nil is none. The lock is held.
func (t *keptTurns) remove(e *list.Element) {
	if e == nil {
		return
	}
	k := t.order.Remove(e).(*kept)
	delete(t.index, k.key)
	t.size -= len(k.params)
}

// keep notes what an answer says of the turn's blocks, if its Decoder's pool
// reads turns back.
func (x *exchange) keep(decoder string, params []byte) {
	if x.session == "" || !x.p.backend(decoder).Bidirectional || !filled(params) || string(splice.Field(params, "do_remote_decode")) != "true" {
		return
	}
	x.lastTurn = &kept{key: x.key, decoder: decoder, params: append([]byte(nil), params...), bytes: x.turn.Bytes}
}

// keepAtEnd makes the blocks known once the turn is complete.
func (x *exchange) keepAtEnd(now time.Time) {
	switch k := x.lastTurn; {
	case x.session == "" || x.outcome.Result != route.Completed:
	case k == nil || x.outcome.End:
		x.p.kept.take(x.key, now) // what an earlier turn left is no longer there
	default:
		k.until = now.Add(keepFor)
		x.p.kept.put(k)
	}
}

// takeTurn takes the session's name once it is clear that the turn is computed
// elsewhere.
func (x *exchange) takeTurn() {
	if x.session != "" && x.before == nil {
		x.before = x.p.kept.take(x.key, time.Now())
	}
}

// computes is the transfer parameters of a prefill leg: those of the turn
// before, which the Prefiller reads back, or none.
func (x *exchange) computes() []byte {
	if x.before == nil {
		return remoteDecode
	}
	return x.before.params
}

// move sends a turn with little new in it straight to the session's next owner,
// which reads the turn before from the last one. ok is false if the ordinary
// round is to be taken: little else is known of the last owner's state, so a
// failure says nothing about the next one.
func (x *exchange) move(target route.Target) (res result, ok bool) {
	k, b := x.before, x.p.backend(target.Decoder)
	if k == nil || k.decoder == target.Decoder || !b.Bidirectional {
		return result{}, false
	}
	limit := b.Guard.MaxSuffixTokens
	if limit == 0 {
		limit = defaultMove
	}
	if (x.turn.Bytes-k.bytes)/4 > limit {
		return result{}, false
	}
	o, err := splice.Parse(k.params)
	if err != nil {
		return result{}, false
	}
	x.before = nil // read or broken: it serves nobody else
	x.legsD++
	c := call{leg: route.LegDecode, id: numbered(x.id, "d", x.legsD), target: target, limit: x.p.cfg.FirstTimeout}
	c.edits = []splice.Edit{splice.Set("kv_transfer_params", o.Apply(nil, splice.Set("do_remote_prefill", jsonTrue), splice.Set("do_remote_decode", jsonFalse)))}
	x.askTokens(b, &c)
	res = x.answerFrom(c, relayMode{})
	return res, res.verdict != failed
}

// defaultMove is the new tokens up to which a pool without a bound of its own
// lets an owner compute them.
const defaultMove = 4096

var jsonTrue = []byte("true")
