package abi

// #include "sluice.h"
import "C"

import (
	"slices"
	"time"
	"unsafe"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/kvcache"
	"github.com/sluice-serving/sluice/scheduler"
)

// text is a string of C's, empty for NULL.
func text(s *C.char) string {
	if s == nil {
		return ""
	}
	return C.GoString(s)
}

//export sluiceGoAdd
func sluiceGoAdd(h C.sluice_handle, req *C.sluice_request_t, id *C.sluice_request_id) (status C.int) {
	o, status := enterScheduler(h)
	if status != C.SLUICE_OK {
		return status
	}
	defer o.leave(&status)
	if req == nil {
		return o.missing("request")
	}
	if id == nil {
		return o.missing("id")
	}
	if st := o.sized("request", req.struct_size, unsafe.Sizeof(*req)); st != C.SLUICE_OK {
		return st
	}
	k := o.core
	r, st := o.request(req)
	if st != C.SLUICE_OK {
		return st
	}
	off, given, st := o.offer("request.offer", &req.offer)
	if st != C.SLUICE_OK {
		return st
	}
	hold := req.flags&C.SLUICE_HOLD_AT_END != 0
	if k.conn == nil && (hold || given && off.kind != offerNothing) {
		return o.fail(faultf(C.SLUICE_E_ABSENT, "request: an offer or a hold needs a connector in the configuration"))
	}
	_, continues := k.s.Lookup(r.ID)
	got, err := k.s.Add(r)
	if err != nil {
		return o.fail(err)
	}
	if k.conn != nil {
		if given {
			k.conn.set(got, off)
		} else if continues {
			k.conn.set(got, k.conn.byDefault())
		}
		k.conn.hold(got, hold)
	}
	*id = C.sluice_request_id(got)
	return C.SLUICE_OK
}

// request is C's request with memory of its own.
func (o *object) request(c *C.sluice_request_t) (r scheduler.Request, status C.int) {
	bad := func(field, reason string) (scheduler.Request, C.int) {
		return r, o.fail(&scheduler.RequestError{ID: text(c.name), Field: field, Reason: reason})
	}
	if c.flags&^(C.SLUICE_SKIP_CACHE_READ|C.SLUICE_RESUMABLE|C.SLUICE_HOLD_AT_END) != 0 {
		return bad("flags", "have a bit that is not defined")
	}
	for _, e := range [...]struct {
		field  string
		v, end C.int32_t
	}{
		{"route", c.route, C.SLUICE_APPEND_PREFILL}, {"grammar", c.grammar, C.SLUICE_GRAMMAR_FAILED}, {"turn_end", c.turn_end, C.SLUICE_END_OF_SESSION},
	} {
		if e.v < 0 || e.v > e.end {
			return bad(e.field, "is unknown")
		}
	}
	if c.prompt_size > 0 && uint64(c.prompt_size) > uint64(o.core.s.Config().MaxModelLen) && c.prompt != nil {
		size := int(min(uint64(c.prompt_size), 1<<62))
		return r, o.fail(&scheduler.TooLongError{ID: text(c.name), Prompt: size, Limit: o.core.s.Config().MaxModelLen})
	}
	var prompt, eos, stop []scheduler.Token
	for _, a := range [...]struct {
		field string
		data  **C.int32_t
		size  C.size_t
		into  *[]scheduler.Token
	}{{"prompt", &c.prompt, c.prompt_size, &prompt}, {"eos", &c.eos, c.eos_size, &eos}, {"stop", &c.stop, c.stop_size, &stop}} {
		tokens, st := view[scheduler.Token](o, "request."+a.field, a.data, a.size)
		if st != C.SLUICE_OK {
			return r, st
		}
		*a.into = slices.Clone(tokens)
	}
	return scheduler.Request{
		ID: text(c.name), Prompt: prompt, Route: scheduler.Route(c.route), Session: text(c.session), Tenant: text(c.tenant),
		Namespace: kvcache.Namespace{
			Tenant: text(c.space_tenant), Salt: text(c.salt), LoRA: kvcache.LoRA{ID: int64(c.lora_id), Name: text(c.lora_name)},
			Media: text(c.media), Variant: text(c.variant),
		},
		MaxTokens: int(c.max_tokens), MinTokens: int(c.min_tokens), EOS: eos, StopIDs: stop,
		Repetition: scheduler.Repetition{MinSize: int(c.repeat_min), MaxSize: int(c.repeat_max), MinCount: int(c.repeat_count)},
		Priority:   int(c.priority), Arrival: scheduler.Time(c.arrival), Deadline: scheduler.Time(c.deadline),
		TurnEnd: scheduler.TurnEnd(c.turn_end), RemoteETA: time.Duration(c.remote_eta), CacheHitThreshold: float64(c.hit_threshold),
		SkipCacheRead: c.flags&C.SLUICE_SKIP_CACHE_READ != 0, Resumable: c.flags&C.SLUICE_RESUMABLE != 0,
		Grammar: scheduler.GrammarState(c.grammar),
	}, C.SLUICE_OK
}

// offer is C's offer; given is false if it leaves the default.
func (o *object) offer(name string, c *C.sluice_offer_t) (off offer, given bool, status C.int) {
	if c.struct_size == 0 {
		return offer{}, false, C.SLUICE_OK
	}
	if st := o.sized(name, c.struct_size, unsafe.Sizeof(*c)); st != C.SLUICE_OK {
		return offer{}, false, st
	}
	if c.tokens < 0 || c.tokens > 1<<31-1 || c.beyond < 0 || c.beyond > c.tokens || c.timeout < 0 || c.async_load&^1 != 0 || c.repeat&^1 != 0 {
		return offer{}, false, o.fail(faultf(C.SLUICE_E_ARGUMENT, "%s: a number is out of range", name))
	}
	off = offer{upTo: int(c.tokens), beyond: int(c.beyond), async: c.async_load == 1, repeat: c.repeat == 1, timeout: time.Duration(c.timeout)}
	switch c.lookup {
	case C.SLUICE_LOOKUP_DEFAULT:
		return offer{}, false, C.SLUICE_OK
	case C.SLUICE_LOOKUP_NONE:
		off.kind = offerNothing
	case C.SLUICE_LOOKUP_ASK:
		off.kind = offerPending
	case C.SLUICE_LOOKUP_OFFER:
		off.kind = offerTokens
	default:
		return offer{}, false, o.fail(faultf(C.SLUICE_E_ARGUMENT, "%s: lookup is %d, which is none", name, int32(c.lookup)))
	}
	return off, true, C.SLUICE_OK
}

//export sluiceGoOffer
func sluiceGoOffer(h C.sluice_handle, id C.sluice_request_id, c *C.sluice_offer_t) (status C.int) {
	o, status := enterScheduler(h)
	if status != C.SLUICE_OK {
		return status
	}
	defer o.leave(&status)
	k := o.core
	switch {
	case c == nil:
		return o.missing("offer")
	case k.conn == nil:
		return o.fail(faultf(C.SLUICE_E_ABSENT, "the configuration has no connector"))
	case c.struct_size == 0:
		return o.sized("offer", 0, unsafe.Sizeof(*c))
	}
	off, given, st := o.offer("offer", c)
	if st != C.SLUICE_OK {
		return st
	}
	if !given {
		off = k.conn.byDefault()
	}
	if !k.conn.set(connector.RequestID(id), off) {
		return o.fail(scheduler.ErrUnknown)
	}
	// Plan is worth calling again: an answer has come.
	k.s.Deliver(scheduler.Event{Kind: connector.Answered, Request: connector.RequestID(id)})
	return C.SLUICE_OK
}

//export sluiceGoFinish
func sluiceGoFinish(h C.sluice_handle, id C.sluice_request_id, reason C.int) (status C.int) {
	o, status := enterScheduler(h)
	if status != C.SLUICE_OK {
		return status
	}
	defer o.leave(&status)
	if reason <= C.SLUICE_NOT_FINISHED || reason > C.SLUICE_FINISH_RECOMPUTED {
		return o.fail(faultf(C.SLUICE_E_ARGUMENT, "reason is %d, which ends no request", int(reason)))
	}
	return o.fail(o.core.s.Finish(connector.RequestID(id), scheduler.FinishReason(reason)))
}

//export sluiceGoFind
func sluiceGoFind(h C.sluice_handle, name *C.char, id *C.sluice_request_id) (status C.int) {
	o, status := enterScheduler(h)
	if status != C.SLUICE_OK {
		return status
	}
	defer o.leave(&status)
	if name == nil || id == nil {
		return o.missing("name or id")
	}
	got, ok := o.core.s.Lookup(text(name))
	if !ok {
		return o.fail(scheduler.ErrUnknown)
	}
	*id = C.sluice_request_id(got)
	return C.SLUICE_OK
}

//export sluiceGoRequestState
func sluiceGoRequestState(h C.sluice_handle, id C.sluice_request_id, state *C.int32_t) (status C.int) {
	o, status := enterScheduler(h)
	if status != C.SLUICE_OK {
		return status
	}
	defer o.leave(&status)
	if state == nil {
		return o.missing("status")
	}
	got, ok := o.core.s.Status(connector.RequestID(id))
	if !ok {
		return o.fail(scheduler.ErrUnknown)
	}
	*state = C.int32_t(got)
	return C.SLUICE_OK
}

//export sluiceGoSetGrammar
func sluiceGoSetGrammar(h C.sluice_handle, id C.sluice_request_id, grammar C.int) (status C.int) {
	o, status := enterScheduler(h)
	if status != C.SLUICE_OK {
		return status
	}
	defer o.leave(&status)
	if grammar < C.SLUICE_GRAMMAR_PENDING || grammar > C.SLUICE_GRAMMAR_FAILED {
		return o.fail(faultf(C.SLUICE_E_ARGUMENT, "grammar is %d, which is no state of one", int(grammar)))
	}
	return o.fail(o.core.s.SetGrammar(connector.RequestID(id), scheduler.GrammarState(grammar)))
}

//export sluiceGoEndTurn
func sluiceGoEndTurn(h C.sluice_handle, session *C.char, end C.int) (status C.int) {
	o, status := enterScheduler(h)
	if status != C.SLUICE_OK {
		return status
	}
	defer o.leave(&status)
	if session == nil {
		return o.missing("session")
	}
	if end < C.SLUICE_END_OF_TURN || end > C.SLUICE_END_OF_SESSION {
		return o.fail(faultf(C.SLUICE_E_ARGUMENT, "turn_end is %d, which is none", int(end)))
	}
	return o.fail(o.core.s.EndTurn(text(session), scheduler.TurnEnd(end)))
}

//export sluiceGoDeliver
func sluiceGoDeliver(h C.sluice_handle, events *C.sluice_event_t, size C.size_t) (status C.int) {
	o, status := enterScheduler(h)
	if status != C.SLUICE_OK {
		return status
	}
	defer o.leave(&status)
	given, st := view[C.sluice_event_t](o, "events", &events, size)
	if st != C.SLUICE_OK || len(given) == 0 {
		return st
	}
	list := make([]scheduler.Event, 0, len(given))
	for i := range given {
		c := &given[i]
		if c.kind < C.SLUICE_RECEIVED || c.kind > C.SLUICE_SAVED {
			return o.fail(faultf(C.SLUICE_E_ARGUMENT, "events[%d].kind is %d, which is none", i, int32(c.kind)))
		}
		blocks, st := view[kvcache.BlockID](o, "blocks of an event", &c.blocks, c.blocks_size)
		if st != C.SLUICE_OK {
			return st
		}
		for _, b := range blocks {
			if b <= kvcache.NullBlock || int(b) >= o.core.blocks {
				return o.fail(faultf(C.SLUICE_E_ARGUMENT, "events[%d]: block %d is none of the pool's", i, b))
			}
		}
		list = append(list, scheduler.Event{
			Kind: connector.EventKind(c.kind), Request: connector.RequestID(c.request), Worker: int(c.worker), Blocks: slices.Clone(blocks),
		})
	}
	o.core.s.Deliver(list...)
	return C.SLUICE_OK
}
