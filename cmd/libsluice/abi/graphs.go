package abi

// #include "sluice.h"
import "C"

import (
	"unsafe"

	"github.com/sluice-serving/sluice/graphs"
)

func setDecision(c *C.sluice_decision_t, d *graphs.Decision) {
	c.mode, c.reason, c.tokens, c.reqs = C.int32_t(d.Mode), C.int32_t(d.Reason), C.int32_t(d.Tokens), C.int32_t(d.Reqs)
	c.padded_tokens, c.padded_reqs, c.uniform = C.int32_t(d.PaddedTokens), C.int32_t(d.PaddedReqs), C.int32_t(d.Uniform)
	c.key_id, c.tails, c.padded_tails = C.int32_t(d.KeyID), C.int32_t(d.Tails), C.int32_t(d.PaddedTails)
	setKey(&c.key, d.Key)
}

func setKey(c *C.sluice_graph_key_t, k graphs.Key) {
	c.mode, c.tokens, c.reqs = C.int32_t(k.Mode), C.int32_t(k.Tokens), C.int32_t(k.Reqs)
	c.uniform, c.bound, c.lora = C.int32_t(k.Uniform), C.int32_t(k.Bound), C.int32_t(k.LoRA)
}

// enterGraphs is enter for handles with a dispatcher.
func enterGraphs(h C.sluice_handle) (*object, C.int) {
	o, status := enter(h)
	if status == C.SLUICE_OK && o.graphs == nil {
		status = o.fail(faultf(C.SLUICE_E_ABSENT, "the configuration has no graphs"))
		o.busy.Store(false)
	}
	return o, status
}

//export sluiceGoClassify
func sluiceGoClassify(h C.sluice_handle, c *C.sluice_batch_t, verdicts *C.uint8_t, decision *C.sluice_decision_t) (status C.int) {
	o, status := enterGraphs(h)
	if status != C.SLUICE_OK {
		return status
	}
	defer o.leave(&status)
	switch {
	case c == nil:
		return o.missing("batch")
	case decision == nil:
		return o.missing("decision")
	}
	if st := o.sized("batch", c.struct_size, unsafe.Sizeof(*c)); st != C.SLUICE_OK {
		return st
	}
	if c.flags&^(C.SLUICE_ENCODER_INPUTS|C.SLUICE_FORCED_EAGER|C.SLUICE_CASCADE) != 0 {
		return o.fail(faultf(C.SLUICE_E_ARGUMENT, "batch.flags have a bit that is not defined"))
	}
	if c.loras < 0 || c.trimmed_tokens < 0 || c.rank_tokens < 0 || c.fewer_drafts < 0 {
		return o.fail(faultf(C.SLUICE_E_ARGUMENT, "batch: a number is negative"))
	}
	var rows graphs.Rows
	for _, a := range [...]struct {
		name string
		data **C.int32_t
		into *[]int32
	}{
		{"batch.scheduled", &c.scheduled, &rows.Scheduled}, {"batch.drafts", &c.drafts, &rows.Drafts}, {"batch.placeholders", &c.placeholders, &rows.Placeholders},
		{"batch.computed", &c.computed, &rows.Computed}, {"batch.prefill", &c.prefill, &rows.Prefill},
	} {
		list, st := view[int32](o, a.name, a.data, c.size)
		if st != C.SLUICE_OK {
			return st
		}
		*a.into = list
	}
	out, st := view[graphs.RowVerdict](o, "verdicts", &verdicts, c.size)
	if st != C.SLUICE_OK {
		return st
	}
	d := o.graphs.d.Dispatch(rows, graphs.Step{
		Flags: graphs.StepFlags(c.flags), LoRAs: int32(c.loras), TrimmedTokens: int32(c.trimmed_tokens), RankTokens: int32(c.rank_tokens), FewerDrafts: int32(c.fewer_drafts),
	}, out)
	setDecision(decision, &d)
	return C.SLUICE_OK
}

//export sluiceGoGraphKeys
func sluiceGoGraphKeys(h C.sluice_handle, keys *C.sluice_graph_key_t, capacity C.size_t, size *C.size_t) (status C.int) {
	o, status := enterGraphs(h)
	if status != C.SLUICE_OK {
		return status
	}
	defer o.leave(&status)
	if size == nil {
		return o.missing("size")
	}
	all := o.graphs.d.Keys()
	*size = C.size_t(len(all))
	out, st := view[C.sluice_graph_key_t](o, "keys", &keys, min(capacity, *size))
	for i := range out {
		setKey(&out[i], all[i])
	}
	return st
}

//export sluiceGoSetCaptured
func sluiceGoSetCaptured(h C.sluice_handle, captured C.int, marked *C.int32_t, size C.size_t) (status C.int) {
	o, status := enterGraphs(h)
	if status != C.SLUICE_OK {
		return status
	}
	defer o.leave(&status)
	if captured < C.SLUICE_NOTHING_CAPTURED || captured > C.SLUICE_PARTLY_CAPTURED {
		return o.fail(faultf(C.SLUICE_E_ARGUMENT, "captured is %d, which is no state", int(captured)))
	}
	ids, st := view[int32](o, "marked", &marked, size)
	if st != C.SLUICE_OK {
		return st
	}
	d := o.graphs.d
	for i, id := range ids {
		if id < 0 || int(id) >= len(d.Keys()) {
			return o.fail(faultf(C.SLUICE_E_ARGUMENT, "marked[%d] is %d, there are %d keys", i, id, len(d.Keys())))
		}
	}
	d.Unmark()
	for _, id := range ids {
		d.MarkCaptured(graphs.KeyID(id))
	}
	d.SetCaptureState(graphs.CaptureState(captured))
	return C.SLUICE_OK
}
