package publish

import (
	"bytes"
	"fmt"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/sluice-serving/sluice/kvcache"
)

// encoder writes batches as msgpack. It belongs to one goroutine.
type encoder struct {
	buf    bytes.Buffer
	enc    *msgpack.Encoder
	hashes HashForm
	events EventForm
	rank   int
}

func newEncoder(c *Config) *encoder {
	e := &encoder{hashes: c.Hashes, events: c.Events, rank: c.Rank}
	e.enc = msgpack.NewEncoder(&e.buf)
	e.enc.UseCompactInts(true)
	return e
}

// batch returns the payload of a message, in memory of its own.
func (e *encoder) batch(at time.Time, events []kvcache.Event) ([]byte, error) {
	e.buf.Reset()
	w := &writer{enc: e.enc}
	w.array(3)
	w.do(e.enc.EncodeFloat64(float64(at.Unix()) + float64(at.Nanosecond())/1e9)) // nanoseconds since 1970 are more digits than a float64 has
	w.array(len(events))
	for i := range events {
		e.event(w, &events[i])
	}
	w.do(e.enc.EncodeInt(int64(e.rank)))
	if w.err != nil {
		return nil, fmt.Errorf("publish: encode batch: %w", w.err)
	}
	return bytes.Clone(e.buf.Bytes()), nil
}

// field is a field of an event; a nil value is the field's default.
type field struct {
	name     string
	optional bool // has a default, and is left out of a map that has it
	put      func(w *writer)
}

func (e *encoder) event(w *writer, ev *kvcache.Event) {
	fields := e.fields(ev)
	if e.events == EventArrays {
		w.array(1 + len(fields))
		w.text(ev.Kind.String())
		for _, f := range fields {
			w.value(f)
		}
		return
	}
	n := 1
	for _, f := range fields {
		if f.put != nil || !f.optional {
			n++
		}
	}
	w.do(e.enc.EncodeMapLen(n))
	w.text("type")
	w.text(ev.Kind.String())
	for _, f := range fields {
		if f.put != nil || !f.optional {
			w.text(f.name)
			w.value(f)
		}
	}
}

// fields returns an event's fields in their order.
func (e *encoder) fields(ev *kvcache.Event) []field {
	hashes := field{name: "block_hashes", put: func(w *writer) {
		w.array(len(ev.Hashes))
		for _, h := range ev.Hashes {
			e.hash(w, h)
		}
	}}
	medium := field{name: "medium", put: func(w *writer) { w.text(ev.Medium) }}
	group := field{name: "group_idx", optional: true, put: func(w *writer) { w.int(int64(ev.Group)) }}
	locality := field{name: "locality", optional: true}
	switch ev.Kind {
	case kvcache.Removed:
		return []field{hashes, medium, group, locality}
	case kvcache.Cleared:
		return nil
	}
	parent := field{name: "parent_block_hash"}
	if !ev.Parent.IsZero() {
		parent.put = func(w *writer) { e.hash(w, ev.Parent) }
	}
	loraID, loraName := field{name: "lora_id"}, field{name: "lora_name"}
	if l := ev.Namespace.LoRA; l != (kvcache.LoRA{}) {
		loraID.put = func(w *writer) { w.int(l.ID) }
		loraName.put = func(w *writer) { w.text(l.Name) }
	}
	window := field{name: "kv_cache_spec_sliding_window", optional: true}
	if ev.Spec.Window > 0 {
		window.put = func(w *writer) { w.int(int64(ev.Spec.Window)) }
	}
	return []field{
		hashes, parent,
		{name: "token_ids", put: func(w *writer) {
			w.array(len(ev.Tokens))
			for _, t := range ev.Tokens {
				w.int(int64(t))
			}
		}},
		{name: "block_size", put: func(w *writer) { w.int(int64(ev.BlockSize)) }},
		loraID, medium, loraName, extraKeys(ev), group,
		{name: "kv_cache_spec_kind", optional: true, put: func(w *writer) { w.text(ev.Spec.Kind.String()) }},
		window, locality,
	}
}

// extraKeys is, for each block, the list of keys that went into its hash besides
// the tokens, or nil; the whole field is absent when no block has any.
func extraKeys(ev *kvcache.Event) field {
	f := field{name: "extra_keys", optional: true}
	first, inner := kvcache.ExtraKeys(&ev.Namespace, kvcache.First), kvcache.ExtraKeys(&ev.Namespace, kvcache.Inner)
	if len(inner) == 0 && (len(first) == 0 || !ev.AtStart) {
		return f
	}
	f.put = func(w *writer) {
		w.array(len(ev.Hashes))
		for i := range ev.Hashes {
			keys := inner
			if i == 0 && ev.AtStart {
				keys = first
			}
			if len(keys) == 0 {
				w.do(w.enc.EncodeNil())
				continue
			}
			w.array(len(keys))
			for _, k := range keys {
				w.text(k)
			}
		}
	}
	return f
}

func (e *encoder) hash(w *writer, h kvcache.Hash) {
	if e.hashes == WholeHashes {
		w.do(w.enc.EncodeBytes(h.Bytes()))
		return
	}
	w.do(w.enc.EncodeUint(h.Uint64()))
}

// writer keeps the first error.
type writer struct {
	enc *msgpack.Encoder
	err error
}

func (w *writer) do(err error) {
	if w.err == nil {
		w.err = err
	}
}

func (w *writer) array(n int)   { w.do(w.enc.EncodeArrayLen(n)) }
func (w *writer) int(v int64)   { w.do(w.enc.EncodeInt(v)) }
func (w *writer) text(s string) { w.do(w.enc.EncodeString(s)) }

func (w *writer) value(f field) {
	if f.put == nil {
		w.do(w.enc.EncodeNil())
		return
	}
	f.put(w)
}
