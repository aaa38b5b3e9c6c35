package graphs

import (
	"errors"
	"fmt"
	"slices"
)

// Vote is what one data-parallel rank tells the others about its step, before
// any padding is final.
type Vote struct {
	Mode    Mode
	Tokens  int32 // T, unpadded
	Reqs    int32 // N
	Uniform int32 // width of every row, 0 = not uniform
	Bound   int32 // largest width where no row is prefilling, else 0
}

// Validate reports a vote that no rank can have cast.
func (v Vote) Validate() error {
	switch {
	case v.Mode > Full, v.Tokens < 0, v.Reqs < 0, v.Uniform < 0, v.Bound < 0,
		v.Reqs > v.Tokens, v.Uniform > 0 && int64(v.Uniform)*int64(v.Reqs) != int64(v.Tokens):
		return fmt.Errorf("%w: impossible vote %+v", ErrAgreement, v)
	}
	return nil
}

// Vote sums up a rank's own choice for the others.
func (d *Dispatcher) Vote(b Batch) Vote {
	return Vote{Mode: d.Select(b).Mode, Tokens: b.Tokens, Reqs: b.Reqs, Uniform: b.Uniform, Bound: b.Bound}
}

// Idle is the batch of a rank without work that must still take part: one dummy
// row of decode width.
func (d *Dispatcher) Idle(step Step) Batch {
	w := int32(d.cfg.DecodeWidth())
	return d.Dummy(1, w, w, step)
}

// Agreement is what all ranks derive from the same votes.
type Agreement struct {
	Mode    Mode
	Tokens  int32 // the most tokens of any rank
	Uniform int32 // width common to all ranks, 0 = none
	Bound   int32 // largest width where all ranks have one, else 0
	Work    bool  // some rank has tokens; without, no rank runs a forward pass
}

// Agree derives what all ranks do. The order of the votes does not matter: the
// mode is the smallest, the tokens are the most, a width counts when all share
// it. One eager rank makes every rank eager.
func Agree(votes []Vote) Agreement {
	if len(votes) == 0 {
		return Agreement{}
	}
	a := Agreement{Mode: votes[0].Mode, Uniform: votes[0].Uniform, Bound: votes[0].Bound}
	for _, v := range votes {
		a.Mode = min(a.Mode, v.Mode)
		a.Tokens = max(a.Tokens, v.Tokens)
		if v.Uniform != a.Uniform {
			a.Uniform = 0
		}
		if a.Bound > 0 && v.Bound > 0 {
			a.Bound = max(a.Bound, v.Bound)
		} else {
			a.Bound = 0
		}
	}
	a.Work = a.Tokens > 0
	return a
}

// ErrAgreement is the error of a batch that is not the one that was voted on.
var ErrAgreement = errors.New("graphs: batch does not match the agreement")

// SelectAgreed chooses the graph of this rank under an agreement. It may be
// called again for further passes over the same batch, such as a drafter's,
// without another vote; an eager agreement stays eager. Every rank that
// dispatches its own voted batch gets the same mode and, unless that is NONE,
// the same padded tokens. A batch with more tokens than were agreed on is the
// caller's error.
func (d *Dispatcher) SelectAgreed(b Batch, a Agreement) (Decision, error) {
	if b.Tokens > a.Tokens {
		return Decision{}, fmt.Errorf("%w: %d tokens, agreed on at most %d", ErrAgreement, b.Tokens, a.Tokens)
	}
	own := d.Select(b)
	dec := d.choose(b, a.Tokens, a.Uniform, a.Bound, atMost(a.Mode))
	switch {
	case dec.Mode == Full:
	case own.Mode == Full:
		dec.Reason = ReasonDPPeer
	default:
		dec.Reason = own.Reason
	}
	return dec, nil
}

// StageConsensus is the mode that all pipeline stages run a step in: the
// smallest. Stages take part for real steps only, never for dummies or
// profiling.
func StageConsensus(modes []Mode) Mode {
	if len(modes) == 0 {
		return None
	}
	return slices.Min(modes)
}

// SelectStage chooses the graph of a pipeline stage under a consensus.
func (d *Dispatcher) SelectStage(b Batch, consensus Mode) Decision {
	own := d.Select(b)
	if own.Mode <= consensus {
		return own
	}
	dec := d.choose(b, b.Tokens, b.Uniform, b.Bound, atMost(consensus))
	if own.Mode == Full {
		dec.Reason = ReasonPPPeer
	}
	return dec
}

// SkipInputs are the facts that decide whether ranks may dispatch without a
// collective on Ascend.
type SkipInputs struct {
	MoE             bool // experts are spread over the data-parallel ranks
	Consumer        bool // the engine decodes over imported KV
	DecodeMC2       bool // decode steps use the fused dispatch-combine operator
	PrefillMC2      bool // prefill steps use it as well
	Recompute       bool // preempted requests go back to the prefiller, so that every step is a decode step
	AppendPrefill   bool // prompts are prefilled on the decoder
	Mode            ModeConfig
	DataParallelism int
}

// MaySkipAgreement reports whether the collective may be left out: dense models
// have none, and experts on a decoder need none if every step certainly uses
// the same operator. Append-prefill puts prefill chunks on a decoder, so what
// holds only for decode steps no longer does.
func MaySkipAgreement(in SkipInputs) bool {
	if in.DataParallelism <= 1 || !in.MoE {
		return true
	}
	if !in.Consumer || !in.DecodeMC2 {
		return false
	}
	if in.PrefillMC2 && !in.Mode.SeparateDecode() {
		return true
	}
	return in.Recompute && !in.AppendPrefill
}

// Fingerprint is equal for two deployments exactly if (up to hash collisions)
// their dispatchers hold the same keys and classify alike. Ranks compare it
// when they meet: ranks with different ladders would pad differently and hang.
func (d *Dispatcher) Fingerprint() uint64 {
	h := uint64(14695981039346656037) // FNV-1a
	mix := func(x int64) {
		for range 8 {
			h = (h ^ uint64(x&0xff)) * 1099511628211
			x >>= 8
		}
	}
	for _, x := range d.rows.table {
		mix(int64(x))
	}
	for _, x := range []int{int(d.cfg.Mode), d.cfg.K, int(d.cfg.Bonus), d.cfg.MaxNumSeqs, int(d.cfg.Trim), d.pcp} {
		mix(int64(x))
	}
	for _, k := range d.keys {
		for _, x := range []int32{int32(k.Mode), k.Tokens, k.Reqs, k.Uniform, k.Bound, k.LoRA} {
			mix(int64(x))
		}
	}
	return h
}
