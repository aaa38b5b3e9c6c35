package graphs

import (
	"slices"

	"github.com/sluice-serving/sluice/internal/invariants"
)

// StepFlags are properties of a whole step.
type StepFlags uint8

const (
	EncoderInputs StepFlags = 1 << iota // encoder inputs are scheduled: eager
	ForcedEager                         // profiling, calibration, enforced eager
	Cascade                             // cascade attention: never FULL
)

// Step is what the classification needs to know besides the rows.
type Step struct {
	Flags         StepFlags
	LoRAs         int32 // active adapters
	TrimmedTokens int32 // tokens left after drafts were trimmed on the device; 0 = all
	RankTokens    int32 // largest number of tokens of one rank with context parallelism; 0 = all
	FewerDrafts   int32 // by how much this step's K is below the configured one, where K varies
}

// Batch sums a step up for the choice of a graph. It is comparable.
type Batch struct {
	Reqs     int32 // N
	Tokens   int32 // T
	MaxQuery int32 // Q
	Uniform  int32 // Q where every row runs as a decode of width Q, else 0
	Bound    int32 // Q where no row is prefilling, not even as a tail, else 0
	LoRA     int32 // case of active adapters, -1 = none has graphs
	Flags    StepFlags
	Obstacle Reason // what keeps the batch out of decode graphs already; ReasonFull = nothing

	Tails       int32 // tails among the rows
	PaddedTails int32 // of them padded

	unrunnable bool // a row has impossible numbers
}

// Decision is how one step runs.
type Decision struct {
	Mode         Mode
	Reason       Reason // why not FULL; ReasonFull for FULL
	Tokens       int32  // T, before padding
	Reqs         int32  // N, before padding
	PaddedTokens int32  // T where Mode is NONE
	PaddedReqs   int32  // N unless Mode is FULL
	Uniform      int32  // width of every row where a decode graph of one width replays, else 0
	Key          Key    // zero where Mode is NONE
	KeyID        KeyID  // NoKey where Mode is NONE
	Tails        int32  // tails among the rows
	PaddedTails  int32  // of them padded
}

// CaptureState says which graphs exist.
type CaptureState uint8

const (
	NothingCaptured CaptureState = iota // every step is NONE
	Sampling                            // memory is being profiled: FULL only for keys marked captured
	AllCaptured                         // every key exists; a missing one is an error of the executor
	PartlyCaptured                      // only keys marked captured exist; a step takes the smallest of them that fits
)

// Dispatcher answers which graph a batch may replay. It is built once, answers
// in constant time per batch and constant work per row, and allocates nothing
// afterwards. It is not safe for concurrent use with MarkCaptured and
// SetCaptureState.
type Dispatcher struct {
	cfg    Config
	ladder Ladder
	keys   []Key
	rows   classifier
	fewer  map[int32]*classifier // by Step.FewerDrafts: of the narrower decode widths
	pcp    int

	widths []int32
	cases  []int32

	// Tables from a token count to the smallest key that holds it, or NoKey.
	decode    []table // by width, then LoRA case
	bounded   []table // by LoRA case
	mixed     []table // by LoRA case
	piecewise []table // by LoRA case

	state    CaptureState
	captured []bool
}

type table []KeyID

func (t table) at(tokens int32) KeyID {
	if uint(tokens) < uint(len(t)) {
		return t[tokens]
	}
	return NoKey
}

// New builds the dispatcher of a deployment. Until SetCaptureState says that
// graphs exist every step is NONE.
func New(c Config) (*Dispatcher, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	d := &Dispatcher{cfg: c, rows: newClassifier(c), pcp: c.pcp(), widths: c.widths(), cases: c.loraCases()}
	for _, w := range d.widths {
		if k := int(w) - c.Bonus.Tokens(); k >= 0 && k < c.K {
			narrower := c
			narrower.K = k
			if d.fewer == nil {
				d.fewer = map[int32]*classifier{}
			}
			x := newClassifier(narrower)
			d.fewer[int32(c.K-k)] = &x
		}
	}
	if c.Mode != ModeNone {
		l, err := newLadder(c)
		if err != nil {
			return nil, err
		}
		d.ladder, d.keys = l, c.keys(l)
	}
	d.captured = make([]bool, len(d.keys))
	d.build()
	return d, nil
}

// build makes the tables from the keys that exist in the present state.
func (d *Dispatcher) build() {
	d.decode, d.bounded, d.mixed, d.piecewise = nil, nil, nil, nil
	for _, q := range d.widths {
		for _, lora := range d.cases {
			d.decode = append(d.decode, d.table(func(k Key) bool { return k.Uniform == q && k.LoRA == lora }))
		}
	}
	for _, lora := range d.cases {
		d.bounded = append(d.bounded, d.table(func(k Key) bool { return k.Bound > 0 && k.LoRA == lora }))
		d.mixed = append(d.mixed, d.table(func(k Key) bool { return k.Mode == Full && !k.Decode() && k.LoRA == lora }))
		d.piecewise = append(d.piecewise, d.table(func(k Key) bool { return k.Mode == Piecewise && k.LoRA == lora }))
	}
}

// table maps every token count to the smallest key of one kind that holds it.
func (d *Dispatcher) table(of func(Key) bool) table {
	var t table
	for i, k := range slices.Backward(d.keys) { // ascending tokens
		if of(k) && (d.state != PartlyCaptured || d.captured[i]) {
			for int(k.Tokens) >= len(t) {
				t = append(t, KeyID(i))
			}
		}
	}
	return t
}

// Config returns the configuration that the dispatcher was built from.
func (d *Dispatcher) Config() Config { return d.cfg }

// Ladder returns the sizes; its slices are not to be changed.
func (d *Dispatcher) Ladder() Ladder { return d.ladder }

// Keys lists all graphs in the order of capture; a KeyID is an index into it.
// The slice is not to be changed.
func (d *Dispatcher) Keys() []Key { return d.keys }

// State says which graphs exist.
func (d *Dispatcher) State() CaptureState { return d.state }

// SetCaptureState says which graphs exist from now on. Entering or leaving
// PartlyCaptured builds the tables anew.
func (d *Dispatcher) SetCaptureState(s CaptureState) {
	rebuild := s == PartlyCaptured || d.state == PartlyCaptured
	if d.state = s; rebuild {
		d.build()
	}
}

// MarkCaptured says that the graph of a key exists; it counts in the states
// Sampling and PartlyCaptured, in the latter from the next SetCaptureState on.
func (d *Dispatcher) MarkCaptured(id KeyID) { d.captured[id] = true }

// Unmark forgets all MarkCaptured.
func (d *Dispatcher) Unmark() { clear(d.captured) }

// loraCase maps a number of active adapters to the smallest case with graphs
// that holds it. With adapters configured a number above all cases takes the
// largest; without, adapters have no case.
func (d *Dispatcher) loraCase(n int32) int32 {
	for _, c := range d.cases {
		if c >= n && n >= 0 {
			return c
		}
	}
	if last := d.cases[len(d.cases)-1]; last > 0 && n >= 0 {
		return last
	}
	return -1
}

// Dispatch classifies the rows and selects the graph: Select of Classify.
func (d *Dispatcher) Dispatch(rows Rows, step Step, verdicts []RowVerdict) Decision {
	return d.Select(d.Classify(rows, step, verdicts))
}

// Dummy sums up a batch that stands for no request: a capture, a warm-up, or a
// data-parallel rank without work. Its shape alone decides; no request state
// is consulted.
func (d *Dispatcher) Dummy(reqs, tokens, maxQuery int32, step Step) Batch {
	b := Batch{Reqs: reqs, Tokens: tokens, MaxQuery: maxQuery, Bound: maxQuery, Flags: step.Flags, LoRA: d.loraCase(step.LoRAs)}
	if reqs > 0 && int64(tokens) == int64(maxQuery)*int64(reqs) {
		b.Uniform = maxQuery
	}
	if tokens <= 0 || reqs <= 0 {
		b.Obstacle = ReasonNoTokens
	}
	return b
}

// ModeSet is a set of runtime modes.
type ModeSet uint8

// Modes builds a set.
func Modes(modes ...Mode) ModeSet {
	var s ModeSet
	for _, m := range modes {
		s |= 1 << m
	}
	return s
}

// AllModes allows every mode.
const AllModes ModeSet = 1<<None | 1<<Piecewise | 1<<Full

// Has reports whether m is in the set.
func (s ModeSet) Has(m Mode) bool { return s>>m&1 != 0 }

// Without returns the set without m.
func (s ModeSet) Without(m Mode) ModeSet { return s &^ (1 << m) }

// atMost is the set of modes up to m.
func atMost(m Mode) ModeSet { return 1<<(m+1) - 1 }

// Select chooses the graph for a batch.
func (d *Dispatcher) Select(b Batch) Decision {
	return d.choose(b, b.Tokens, b.Uniform, b.Bound, AllModes)
}

// SelectAmong chooses among the allowed modes; NONE is what remains when no
// other one is possible. An empty set is a broken invariant of the caller.
func (d *Dispatcher) SelectAmong(b Batch, allowed ModeSet) Decision {
	if allowed&AllModes == 0 {
		panic("graphs: no mode is allowed")
	}
	return d.choose(b, b.Tokens, b.Uniform, b.Bound, allowed)
}

// choose looks for the smallest graph of an allowed mode that holds the batch.
func (d *Dispatcher) choose(b Batch, tokens, uniform, bound int32, allowed ModeSet) Decision {
	dec := Decision{
		Reason: b.Obstacle, Tokens: b.Tokens, Reqs: b.Reqs, PaddedTokens: b.Tokens, PaddedReqs: b.Reqs,
		KeyID: NoKey, Tails: b.Tails, PaddedTails: b.PaddedTails,
	}
	lora := slices.Index(d.cases, b.LoRA)
	switch {
	case b.Tokens == 0 && !b.unrunnable:
		dec.Reason = ReasonNoTokens
	case b.unrunnable:
		dec.Reason = ReasonMalformed
	case b.Flags&ForcedEager != 0:
		dec.Reason = ReasonForcedEager
	case b.Flags&EncoderInputs != 0:
		dec.Reason = ReasonEncoderInputs
	case d.cfg.Mode == ModeNone:
		dec.Reason = ReasonModeConfig
	case d.state == NothingCaptured:
		dec.Reason = ReasonNotCaptured
	case lora < 0:
		dec.Reason = ReasonLoRACase
	default:
		id, why := NoKey, b.Obstacle
		if allowed.Has(Full) {
			id, why = d.full(b, tokens, uniform, bound, lora)
		} else if why == ReasonFull {
			why = ReasonModeConfig
		}
		if id == NoKey && allowed.Has(Piecewise) {
			id = d.piecewise[lora].at(tokens)
		}
		dec.Reason = why
		if id == NoKey {
			break
		}
		k := d.keys[id]
		dec.Mode, dec.Key, dec.KeyID, dec.Uniform = k.Mode, k, id, k.Uniform
		dec.PaddedTokens = k.Tokens
		if k.Mode == Full {
			dec.PaddedReqs = k.Reqs
		}
	}
	if invariants.Enabled {
		d.check(b, dec)
	}
	return dec
}

// full looks for a FULL graph; where there is none it says why.
func (d *Dispatcher) full(b Batch, tokens, uniform, bound int32, lora int) (KeyID, Reason) {
	if b.Flags&Cascade != 0 {
		return NoKey, ReasonCascade
	}
	if d.cfg.Mode.Decode() != Full {
		return NoKey, ReasonModeConfig
	}
	if d.cfg.Mode.Mixed() == Full { // one kind of graph for every batch
		if b.Obstacle == ReasonMalformed {
			return NoKey, ReasonMalformed
		}
		if int(b.Reqs) > d.cfg.MaxNumSeqs {
			return NoKey, ReasonBeyondLadder
		}
		return d.existing(d.mixed[lora].at(tokens))
	}
	if b.Obstacle != ReasonFull {
		return NoKey, b.Obstacle
	}
	if d.cfg.Trim == AdaptiveDrafts {
		switch {
		case bound == 0:
			return NoKey, ReasonPrefillRow
		case int(bound) > d.cfg.DecodeWidth():
			return NoKey, ReasonNoWidth
		case int(b.Reqs) > d.cfg.MaxNumSeqs:
			return NoKey, ReasonBeyondLadder
		}
		return d.existing(d.bounded[lora].at(tokens))
	}
	if uniform == 0 {
		return NoKey, ReasonNonUniform
	}
	w := slices.Index(d.widths, uniform)
	if w < 0 {
		return NoKey, ReasonNoWidth
	}
	return d.existing(d.decode[w*len(d.cases)+lora].at(tokens))
}

// existing turns a key that has not been captured into a miss.
func (d *Dispatcher) existing(id KeyID) (KeyID, Reason) {
	switch {
	case id == NoKey:
		return NoKey, ReasonBeyondLadder
	case d.state == Sampling && !d.captured[id]:
		return NoKey, ReasonNotCaptured
	}
	return id, ReasonFull
}
