package graphs

import (
	"slices"
)

// A slow model of the classification and the dispatch, written from the rules
// one by one, to compare the tables of the package with.

type refBatch struct {
	classes    []Class
	tokens     int64
	eligible   bool // every row runs as a decode
	hasPrefill bool // some row is logically prefilling
	uniform    int32
	impossible bool
	malformed  bool
}

func refClass(c Config, r Row, step Step) (Class, bool) {
	var (
		d  = int64(c.K + c.Bonus.Tokens())
		n  = int64(r.Scheduled) - int64(r.Drafts)
		cp = min(r.Computed, r.Prefill)
	)
	if r.Scheduled < 1 || r.Drafts < 0 || r.Placeholders < 0 || r.Computed < 0 || r.Prefill < 0 ||
		r.Drafts > r.Scheduled || r.Placeholders > r.Drafts {
		return ClassMalformed, true
	}
	prefilling := cp < r.Prefill
	if prefilling && (n < 1 || int64(r.Computed)+n > int64(r.Prefill)) {
		return ClassMalformed, true
	}
	if c.Policy == ShapeOnly && int64(r.Scheduled) == d {
		return ClassDecode, false
	}
	if !prefilling {
		if c.Policy == OneNewTokenHardened && n != int64(c.Bonus.Tokens()) {
			return ClassMalformed, false
		}
		return ClassDecode, false
	}
	tail := false
	switch c.Policy {
	case ConsumerOneToken:
		tail = isPDConsumer(c.KV) && d == 1 && r.Scheduled == 1
	case OneNewToken:
		tail = n == 1
	case OneNewTokenHardened:
		tail = r.Drafts == 0 && r.Scheduled == 1 ||
			c.K > 0 && r.Drafts == int32(c.K) && int64(r.Scheduled) == d && r.Prefill-cp == 1 && r.Placeholders == r.Drafts
	}
	if tail && cp > 0 && c.PCP <= 1 {
		return ClassTail, false
	}
	return ClassPrefill, false
}

func refClassify(c Config, rows []Row, step Step) refBatch {
	b := refBatch{eligible: true}
	var q int32
	for _, r := range rows {
		class, impossible := refClass(c, r, step)
		b.classes = append(b.classes, class)
		b.tokens += int64(r.Scheduled)
		b.impossible = b.impossible || impossible
		b.malformed = b.malformed || class == ClassMalformed
		b.eligible = b.eligible && (class == ClassDecode || class == ClassTail)
		b.hasPrefill = b.hasPrefill || class == ClassTail || class == ClassPrefill
		q = max(q, r.Scheduled)
	}
	if b.eligible && len(rows) > 0 && b.tokens == int64(q)*int64(len(rows)) {
		b.uniform = q
	}
	return b
}

// refKey is the key of a batch by a search over all keys, FULL before
// PIECEWISE and the smallest that fits.
func refKey(d *Dispatcher, rows []Row, step Step) (Key, bool) {
	c := d.Config()
	b := refClassify(c, rows, step)
	if len(rows) == 0 || b.impossible || step.Flags&(EncoderInputs|ForcedEager) != 0 {
		return Key{}, false
	}
	var q int32
	for _, r := range rows {
		q = max(q, r.Scheduled)
	}
	keys := slices.Clone(d.Keys())
	slices.SortStableFunc(keys, func(a, b Key) int { return int(a.Tokens - b.Tokens) })
	for _, mode := range []Mode{Full, Piecewise} {
		for _, k := range keys {
			switch {
			case k.Mode != mode:
			case mode == Full && (b.malformed || step.Flags&Cascade != 0):
			case k.Uniform > 0 && k.Uniform != b.uniform:
			case k.Bound > 0 && (!b.eligible || b.hasPrefill || k.Bound < q):
			case k.Reqs > 0 && int(k.Reqs) < len(rows):
			case int64(k.Tokens) < b.tokens:
			case k.LoRA != d.loraCase(step.LoRAs):
			default:
				return k, true
			}
		}
	}
	return Key{}, false
}
