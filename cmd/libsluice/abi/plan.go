package abi

// #include "sluice.h"
import "C"

import (
	"errors"
	"slices"
	"time"
	"unsafe"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/scheduler"
)

// The arrays of plans are handed out as the scheduler wrote them. These do not
// compile if an element has another size in C.
var (
	_ [unsafe.Sizeof(scheduler.Refusal{}) - C.sizeof_sluice_refusal_t]struct{}
	_ [C.sizeof_sluice_refusal_t - unsafe.Sizeof(scheduler.Refusal{})]struct{}
	_ [unsafe.Sizeof(connector.RequestID(0)) - C.sizeof_sluice_request_id]struct{}
	_ [unsafe.Sizeof(graphs.RowVerdict(0)) - 1]struct{}
)

// exported is what a scheduler has handed out to C.
type exported struct {
	mem    *memory
	flight []*planned // oldest first
	spare  []*planned

	outputs   *C.sluice_outputs_t
	list      array[C.sluice_output_t]
	tokens    array[scheduler.Token]
	transfers transferArrays

	events *eventArrays
}

// planned is a plan in flight as C sees it.
type planned struct {
	plan      *scheduler.Plan
	c         *C.sluice_plan_t
	local     array[int32]
	transfers transferArrays
}

// transferArrays are transfers as C sees them.
type transferArrays struct {
	kinds    array[uint8]
	requests array[connector.RequestID]
	tokens   array[int32]
	blocks   array[int32]
	at       array[int32]
}

func (a *transferArrays) fill(m *memory, list []transfer, groups int, c *C.sluice_transfers_t) {
	a.kinds, a.requests, a.tokens, a.blocks, a.at = a.kinds[:0], a.requests[:0], a.tokens[:0], a.blocks[:0], a.at[:0]
	a.at.add(m, 0)
	for i := range list {
		t := &list[i]
		a.kinds.add(m, uint8(t.kind))
		a.requests.add(m, t.request)
		a.tokens.add(m, int32(t.tokens))
		for g := range groups {
			if g < len(t.blocks) {
				for _, b := range t.blocks[g] {
					a.blocks.add(m, int32(b))
				}
			}
			a.at.add(m, int32(len(a.blocks)))
		}
	}
	c.size, c.groups = C.int32_t(len(list)), C.int32_t(groups)
	c.kinds, c.requests, c.tokens = at[C.uint8_t](a.kinds), at[C.sluice_request_id](a.requests), at[C.int32_t](a.tokens)
	c.blocks, c.blocks_at = at[C.int32_t](a.blocks), at[C.int32_t](a.at)
}

func (a *transferArrays) free(m *memory) {
	a.kinds.free(m)
	a.requests.free(m)
	a.tokens.free(m)
	a.blocks.free(m)
	a.at.free(m)
}

// structure is a zeroed structure in C memory.
func structure[T any](m *memory) *T {
	var zero T
	b := m.Alloc(int(unsafe.Sizeof(zero)))
	clear(b)
	return (*T)(unsafe.Pointer(unsafe.SliceData(b)))
}

func freeStructure[T any](m *memory, t *T) {
	if t != nil {
		m.Free(unsafe.Slice((*byte)(unsafe.Pointer(t)), int(unsafe.Sizeof(*t))))
	}
}

// close gives all C memory back.
func (x *exported) close() {
	for _, p := range slices.Concat(x.flight, x.spare) {
		p.local.free(x.mem)
		p.transfers.free(x.mem)
		freeStructure(x.mem, p.c)
	}
	x.flight, x.spare = nil, nil
	freeStructure(x.mem, x.outputs)
	x.outputs = nil
	x.list.free(x.mem)
	x.tokens.free(x.mem)
	x.transfers.free(x.mem)
	if x.events != nil {
		x.events.free(x.mem)
	}
}

//export sluiceGoPlan
func sluiceGoPlan(h C.sluice_handle, now C.int64_t, out **C.sluice_plan_t) (status C.int) {
	o, status := enterScheduler(h)
	if status != C.SLUICE_OK {
		return status
	}
	defer o.leave(&status)
	if out == nil {
		return o.missing("plan")
	}
	k := o.core
	x := &k.out
	p := k.s.Plan(scheduler.Time(now))
	if p == nil {
		hand(out, nil)
		return o.fail(faultf(C.SLUICE_E_PLANS, "%d plans are in flight: one must be applied first", len(x.flight)))
	}
	k.planned = p.Seq
	e := x.take()
	e.plan = p
	e.fill(o)
	x.flight = append(x.flight, e)
	hand(out, e.c)
	return C.SLUICE_OK
}

// take is room for one more plan in flight.
func (x *exported) take() *planned {
	if n := len(x.spare); n > 0 {
		e := x.spare[n-1]
		x.spare = x.spare[:n-1]
		return e
	}
	e := &planned{c: structure[C.sluice_plan_t](x.mem)}
	e.c.struct_size = C.sizeof_sluice_plan_t
	return e
}

// fill points C's structure at the plan's arrays.
func (e *planned) fill(o *object) {
	p, c, k := e.plan, e.c, o.core
	c.rows, c.seq, c.now, c.applied = C.int32_t(p.Rows()), C.uint64_t(p.Seq), C.int64_t(p.Now), C.uint64_t(p.Applied)
	c.groups, c.total, c.loras, c.next_drafts = C.int32_t(p.Groups), C.int32_t(p.Total), C.int32_t(p.LoRAs), C.int32_t(p.NextDrafts)
	c.free, c.waits = C.int32_t(p.Free), C.int32_t(p.Waits)

	c.requests, c.kinds = at[C.sluice_request_id](p.Requests), at[C.uint8_t](p.Kinds)
	c.scheduled, c.drafts, c.placeholders = at[C.int32_t](p.Scheduled), at[C.int32_t](p.Drafts), at[C.int32_t](p.Placeholders)
	c.computed, c.prefill, c.outputs = at[C.int32_t](p.Computed), at[C.int32_t](p.Prefill), at[C.int32_t](p.Outputs)
	c.samples, c.local_hits, c.external_hits = at[C.uint8_t](p.Samples), at[C.int32_t](p.LocalHits), at[C.int32_t](p.ExternalHits)
	c.inputs, c.inputs_at = at[C.int32_t](p.Inputs), at[C.int32_t](p.InputsAt)
	c.known, c.known_at = at[C.int32_t](p.Known), at[C.int32_t](p.KnownAt)
	c.table_from, c.blocks, c.blocks_at = at[C.int32_t](p.TableFrom), at[C.int32_t](p.Blocks), at[C.int32_t](p.BlocksAt)
	c.common_prefix = at[C.int32_t](p.CommonPrefix)

	c.verdicts = at[C.uint8_t](p.Verdicts)
	if k.graphs != nil {
		setDecision(&c.graph, &p.Graph)
	} else {
		c.graph.key_id = -1
	}

	c.grammar_size = C.int32_t(len(p.GrammarRows))
	c.grammar_rows, c.grammar_waits = at[C.int32_t](p.GrammarRows), at[C.uint8_t](p.GrammarWaits)

	c.loads_size = C.int32_t(len(p.Loads))
	c.loads, c.loads_from, c.loads_to = at[C.sluice_request_id](p.Loads), at[C.int32_t](p.LoadsFrom), at[C.int32_t](p.LoadsTo)
	c.loads_async, c.load_blocks, c.load_blocks_at = at[C.uint8_t](p.LoadsAsync), at[C.int32_t](p.LoadBlocks), at[C.int32_t](p.LoadBlocksAt)

	c.finished_size = C.int32_t(len(p.Finished))
	c.finished, c.finished_reasons = at[C.sluice_request_id](p.Finished), at[C.uint8_t](p.Reasons)
	c.preempted_size = C.int32_t(len(p.Preempted))
	c.preempted, c.preempted_saved = at[C.sluice_request_id](p.Preempted), at[C.uint8_t](p.PreemptedSaved)
	c.rolled_back_size, c.rolled_back = C.int32_t(len(p.RolledBack)), at[C.sluice_request_id](p.RolledBack)
	c.refused_size = C.int32_t(len(p.Refused))
	c.refused, c.refusals = at[C.sluice_request_id](p.Refused), at[C.sluice_refusal_t](p.Refusals)
	c.released_size, c.released = C.int32_t(len(p.Released)), at[C.sluice_request_id](p.Released)

	c.pending_size, c.pending = C.int32_t(len(p.Pending)), at[C.sluice_request_id](p.Pending)
	if k.conn == nil {
		return
	}
	e.local = e.local[:0]
	for _, id := range p.Pending {
		e.local.add(k.out.mem, int32(k.conn.local(id)))
	}
	c.pending_local = at[C.int32_t](e.local)
	e.transfers.fill(k.out.mem, k.conn.take(), int(p.Groups), &c.transfers)
}

// oldest is the plan in flight with the number seq, which must be the oldest.
func (k *core) oldest(seq uint64) (*planned, error) {
	switch flight := k.out.flight; {
	case seq == 0 || seq > k.planned:
		return nil, faultf(C.SLUICE_E_FOREIGN_PLAN, "plan %d was not made; the last one is %d", seq, k.planned)
	case len(flight) == 0 || seq < flight[0].plan.Seq:
		return nil, faultf(C.SLUICE_E_STALE_PLAN, "plan %d was applied already", seq)
	case seq > flight[0].plan.Seq:
		return nil, faultf(C.SLUICE_E_PLAN_ORDER, "plan %d is to be applied before plan %d", flight[0].plan.Seq, seq)
	default:
		return flight[0], nil
	}
}

//export sluiceGoApply
func sluiceGoApply(h C.sluice_handle, seq C.uint64_t, c *C.sluice_result_t, out **C.sluice_outputs_t) (status C.int) {
	o, status := enterScheduler(h)
	if status != C.SLUICE_OK {
		return status
	}
	defer o.leave(&status)
	if c == nil {
		return o.missing("result")
	}
	if st := o.sized("result", c.struct_size, unsafe.Sizeof(*c)); st != C.SLUICE_OK {
		return st
	}
	k := o.core
	e, err := k.oldest(uint64(seq))
	if err != nil {
		return o.fail(err)
	}
	res, st := o.result(c)
	if st != C.SLUICE_OK {
		return st
	}
	outs, err := k.s.Apply(e.plan, res)
	if err != nil {
		return o.fail(err)
	}
	x := &k.out
	x.flight = append(x.flight[:0], x.flight[1:]...)
	e.plan = nil
	x.spare = append(x.spare, e)
	x.export(outs)
	if k.conn != nil {
		x.transfers.fill(x.mem, k.conn.take(), k.cache.Groups(), &x.outputs.transfers)
	}
	if out != nil {
		hand(out, x.outputs)
	}
	return C.SLUICE_OK
}

// result is C's result, read in its place.
func (o *object) result(c *C.sluice_result_t) (res scheduler.Result, status C.int) {
	switch {
	case c.failed == 1:
		return scheduler.Result{Outcome: scheduler.Failed}, C.SLUICE_OK
	case c.failed != 0:
		return res, o.fail(faultf(C.SLUICE_E_RESULT, "result.failed is %d, neither 0 nor 1", int32(c.failed)))
	case c.elapsed < 0:
		return res, o.fail(faultf(C.SLUICE_E_RESULT, "result.elapsed is %d, must not be negative", int64(c.elapsed)))
	}
	res.Elapsed = time.Duration(c.elapsed)
	var st C.int
	if res.Tokens, st = view[scheduler.Token](o, "result.tokens", &c.tokens, c.tokens_size); st != C.SLUICE_OK {
		return res, st
	}
	if res.Drafts, st = view[scheduler.Token](o, "result.drafts", &c.drafts, c.drafts_size); st != C.SLUICE_OK {
		return res, st
	}
	if res.GrammarErrors, st = view[int32](o, "result.grammar_errors", &c.grammar_errors, c.grammar_errors_size); st != C.SLUICE_OK {
		return res, st
	}
	if res.Counts, st = optional(o, "result.counts", &c.counts, c.counts_size); st != C.SLUICE_OK {
		return res, st
	}
	res.DraftCounts, st = optional(o, "result.draft_counts", &c.draft_counts, c.draft_counts_size)
	return res, st
}

// optional is a view that is nil for NULL alone.
func optional(o *object, name string, data **C.int32_t, size C.size_t) ([]int32, C.int) {
	list, st := view[int32](o, name, data, size)
	if *(*uintptr)(unsafe.Pointer(data)) != 0 && list == nil {
		list = []int32{}
	}
	return list, st
}

// export copies outputs, whose size is that of the step, into C memory.
func (x *exported) export(outs []scheduler.Output) {
	if x.outputs == nil {
		x.outputs = structure[C.sluice_outputs_t](x.mem)
		x.outputs.struct_size = C.sizeof_sluice_outputs_t
	}
	x.list.need(x.mem, len(outs))
	x.list = x.list[:len(outs)]
	list, tokens := x.list, x.tokens[:0]
	for i := range outs {
		from, to := &outs[i], &list[i]
		n := len(tokens)
		if n+len(from.Tokens) > cap(tokens) {
			x.tokens = tokens
			x.tokens.need(x.mem, n+len(from.Tokens))
			tokens = x.tokens
		}
		tokens = tokens[:n+len(from.Tokens)]
		for k, t := range from.Tokens {
			tokens[n+k] = t
		}
		to.request = C.sluice_request_id(from.Request)
		to.tokens_at, to.tokens_size = C.int32_t(n), C.int32_t(len(from.Tokens))
		to.stop_token, to.cached, to.external = C.int32_t(from.StopToken), C.int32_t(from.Cached), C.int32_t(from.External)
		if !from.First && from.Finish == scheduler.NotFinished {
			to.finish, to.stop, to.first, to.cause, to.refusal.reason = 0, 0, 0, 0, 0
			continue
		}
		to.finish, to.stop, to.first, to.cause = C.uint8_t(from.Finish), C.uint8_t(from.Stop), 0, 0
		if from.First {
			to.first = 1
		}
		if from.Err != nil {
			to.cause = C.uint8_t(causeOf(from.Err))
		}
		r := &from.Refusal
		to.refusal = C.sluice_refusal_t{reason: C.uint8_t(r.Reason), prompt_tokens: C.int32_t(r.PromptTokens), cached_tokens: C.int32_t(r.CachedTokens)}
	}
	x.tokens = tokens
	c := x.outputs
	c.size, c.outputs = C.int32_t(len(outs)), at[C.sluice_output_t](x.list)
	c.tokens, c.tokens_size = at[C.int32_t](tokens), C.int32_t(len(tokens))
}

// causes of FinishError, in the order of sluice_cause.
var causes = [...]error{
	nil, scheduler.ErrLoadFailed, scheduler.ErrLoadTimeout, scheduler.ErrLookupTimeout, scheduler.ErrGrammar, scheduler.ErrGrammarTimeout, scheduler.ErrInputTimeout,
}

func causeOf(err error) int {
	for i, c := range causes {
		if c != nil && errors.Is(err, c) {
			return i
		}
	}
	return len(causes)
}

//export sluiceGoEncodePlan
func sluiceGoEncodePlan(h C.sluice_handle, seq C.uint64_t, data unsafe.Pointer, size C.size_t, needed *C.size_t) (status C.int) {
	o, status := enterScheduler(h)
	if status != C.SLUICE_OK {
		return status
	}
	defer o.leave(&status)
	if needed == nil {
		return o.missing("needed")
	}
	k := o.core
	var e *planned
	for _, p := range k.out.flight {
		if p.plan.Seq == uint64(seq) {
			e = p
		}
	}
	if e == nil {
		if _, err := k.oldest(uint64(seq)); err != nil {
			return o.fail(err)
		}
	}
	b, err := e.plan.AppendBinary(nil)
	if err != nil {
		return o.fail(err)
	}
	*needed = C.size_t(len(b))
	if uint64(size) < uint64(len(b)) {
		return o.fail(faultf(C.SLUICE_E_SIZE, "the plan takes %d bytes, the buffer has %d", len(b), uint64(size)))
	}
	if data == nil {
		return o.missing("data")
	}
	copy(unsafe.Slice((*byte)(data), len(b)), b)
	return C.SLUICE_OK
}

//export sluiceGoNextDeadline
func sluiceGoNextDeadline(h C.sluice_handle, out *C.int64_t) (status C.int) {
	o, status := enterScheduler(h)
	if status != C.SLUICE_OK {
		return status
	}
	defer o.leave(&status)
	if out == nil {
		return o.missing("at")
	}
	*out = C.int64_t(scheduler.Never)
	if t, ok := o.core.s.NextDeadline(); ok {
		*out = C.int64_t(t)
	}
	return C.SLUICE_OK
}

//export sluiceGoHasWork
func sluiceGoHasWork(h C.sluice_handle, work *C.int32_t) (status C.int) {
	o, status := enterScheduler(h)
	if status != C.SLUICE_OK {
		return status
	}
	defer o.leave(&status)
	if work == nil {
		return o.missing("work")
	}
	*work = 0
	if o.core.s.HasWork() {
		*work = 1
	}
	return C.SLUICE_OK
}
