package abi

// #include "sluice.h"
import "C"

import (
	"unsafe"

	"github.com/sluice-serving/sluice/kvcache"
	"github.com/sluice-serving/sluice/scheduler"
)

//export sluiceGoStats
func sluiceGoStats(h C.sluice_handle, c *C.sluice_stats_t) (status C.int) {
	o, status := enterScheduler(h)
	if status != C.SLUICE_OK {
		return status
	}
	defer o.leave(&status)
	if c == nil {
		return o.missing("stats")
	}
	if st := o.sized("stats", c.struct_size, unsafe.Sizeof(*c)); st != C.SLUICE_OK {
		return st
	}
	s, b := o.core.s.Stats(), o.core.cache.Stats()
	c.running, c.waiting, c.skipped = C.int32_t(s.Running), C.int32_t(s.Waiting), C.int32_t(s.Skipped)
	c.idle, c.held = C.int32_t(s.Idle), C.int32_t(s.Held)
	c.blocks_usable, c.blocks_free = C.int32_t(b.Usable), C.int32_t(b.Free)
	c.blocks_cached, c.blocks_held = C.int32_t(b.Cached), C.int32_t(b.Held)
	c.blocks_available = C.int32_t(o.core.s.Free())
	c.added = C.uint64_t(s.Added)
	for i, n := range s.Finished {
		c.finished[i] = C.uint64_t(n)
	}
	for i, n := range s.Refused {
		c.refused[i] = C.uint64_t(n)
	}
	c.steps, c.rows, c.tokens, c.generated = C.uint64_t(s.Steps), C.uint64_t(s.Rows), C.uint64_t(s.Tokens), C.uint64_t(s.Generated)
	c.preemptions, c.loads, c.leases = C.uint64_t(s.Preemptions), C.uint64_t(s.Loads), C.uint64_t(s.Leases)
	c.dropped, c.timeouts, c.ignored = C.uint64_t(s.Dropped), C.uint64_t(s.Timeouts), C.uint64_t(s.Ignored)
	c.failed_blocks, c.failed_steps = C.uint64_t(s.FailedBlocks), C.uint64_t(s.FailedSteps)
	for _, p := range [...]struct {
		from                    scheduler.PrefixStats
		requests, queries, hits *C.uint64_t
	}{
		{s.Prefix, &c.prefix_requests, &c.prefix_queries, &c.prefix_hits},
		{s.Resumed, &c.resumed_requests, &c.resumed_queries, &c.resumed_hits},
		{s.Connector, &c.connector_requests, &c.connector_queries, &c.connector_hits},
	} {
		*p.requests, *p.queries, *p.hits = C.uint64_t(p.from.Requests), C.uint64_t(p.from.Queries), C.uint64_t(p.from.Hits)
	}
	c.prompt_tokens, c.prompt_local, c.prompt_external = C.uint64_t(s.PromptTokens), C.uint64_t(s.PromptLocal), C.uint64_t(s.PromptExternal)
	c.draft_rows, c.draft_tokens, c.drafts_accepted = C.uint64_t(s.DraftRows), C.uint64_t(s.DraftTokens), C.uint64_t(s.DraftsAccepted)
	c.evictions = C.uint64_t(b.EvictedPlain + b.EvictedPrioritised + b.EvictedAwaited + b.EvictedLeased)
	c.c_bytes = C.uint64_t(o.core.out.mem.bytes)
	return C.SLUICE_OK
}

// eventArrays are KV events as C sees them.
type eventArrays struct {
	c         *C.sluice_kv_events_t
	taken     []kvcache.Event
	kinds     array[uint8]
	groups    array[int32]
	hashes    array[uint8]
	hashesAt  array[int32]
	parents   array[uint8]
	hasParent array[uint8]
	tokens    array[kvcache.Token]
	tokensAt  array[int32]
	loras     array[int64]
	texts     array[uint8]
	textsAt   array[int32]
}

func (a *eventArrays) reset() {
	a.kinds, a.groups, a.hashes, a.hashesAt = a.kinds[:0], a.groups[:0], a.hashes[:0], a.hashesAt[:0]
	a.parents, a.hasParent, a.tokens, a.tokensAt = a.parents[:0], a.hasParent[:0], a.tokens[:0], a.tokensAt[:0]
	a.loras, a.texts, a.textsAt = a.loras[:0], a.texts[:0], a.textsAt[:0]
}

func (a *eventArrays) free(m *memory) {
	freeStructure(m, a.c)
	for _, b := range [...]*array[uint8]{&a.kinds, &a.hashes, &a.parents, &a.hasParent, &a.texts} {
		b.free(m)
	}
	for _, b := range [...]*array[int32]{&a.groups, &a.hashesAt, &a.tokensAt, &a.textsAt} {
		b.free(m)
	}
	a.tokens.free(m)
	a.loras.free(m)
}

// fill copies the taken events into the arrays.
func (a *eventArrays) fill(m *memory, blockSize, hashSize int) {
	a.reset()
	a.hashesAt.add(m, 0)
	a.tokensAt.add(m, 0)
	a.textsAt.add(m, 0)
	none := make([]byte, hashSize)
	hashes := int32(0)
	for i := range a.taken {
		e := &a.taken[i]
		a.kinds.add(m, uint8(e.Kind))
		a.groups.add(m, int32(e.Group))
		for _, h := range e.Hashes {
			a.hashes.add(m, h.Bytes()...)
			hashes++
		}
		a.hashesAt.add(m, hashes)
		if e.Parent.IsZero() {
			a.parents.add(m, none...)
			a.hasParent.add(m, 0)
		} else {
			a.parents.add(m, e.Parent.Bytes()...)
			a.hasParent.add(m, 1)
		}
		a.tokens.add(m, e.Tokens...)
		a.tokensAt.add(m, int32(len(a.tokens)))
		ns := &e.Namespace
		a.loras.add(m, ns.LoRA.ID)
		for _, s := range [...]string{e.Medium, ns.Tenant, ns.Salt, ns.LoRA.Name, ns.Media, ns.Variant} {
			a.texts.add(m, []byte(s)...)
			a.texts.add(m, 0)
		}
		a.textsAt.add(m, int32(len(a.texts)))
	}
	c := a.c
	c.size, c.block_size, c.hash_size = C.int32_t(len(a.taken)), C.int32_t(blockSize), C.int32_t(hashSize)
	c.kinds, c.groups = at[C.uint8_t](a.kinds), at[C.int32_t](a.groups)
	c.hashes, c.hashes_at = at[C.uint8_t](a.hashes), at[C.int32_t](a.hashesAt)
	c.parents, c.has_parent = at[C.uint8_t](a.parents), at[C.uint8_t](a.hasParent)
	c.tokens, c.tokens_at = at[C.int32_t](a.tokens), at[C.int32_t](a.tokensAt)
	c.lora_ids, c.texts, c.texts_at = at[C.int64_t](a.loras), at[C.char](a.texts), at[C.int32_t](a.textsAt)
}

//export sluiceGoTakeEvents
func sluiceGoTakeEvents(h C.sluice_handle, out **C.sluice_kv_events_t) (status C.int) {
	o, status := enterScheduler(h)
	if status != C.SLUICE_OK {
		return status
	}
	defer o.leave(&status)
	k := o.core
	cfg := k.cache.Config()
	switch {
	case out == nil:
		return o.missing("events")
	case cfg.Events.Mode == kvcache.EventsOff:
		return o.fail(faultf(C.SLUICE_E_ABSENT, "the configuration has no KV events: Cache.Events.Mode"))
	}
	x := &k.out
	if x.events == nil {
		x.events = &eventArrays{c: structure[C.sluice_kv_events_t](x.mem)}
		x.events.c.struct_size = C.sizeof_sluice_kv_events_t
	}
	a := x.events
	clear(a.taken)
	a.taken = k.s.TakeEvents(a.taken[:0])
	size := 32
	if cfg.Events.Algorithm == kvcache.XXH3CBOR {
		size = 16
	}
	a.fill(x.mem, k.cache.BlockSize(), size)
	hand(out, a.c)
	return C.SLUICE_OK
}
