package graphs

import (
	"cmp"
	"fmt"
	"slices"
)

// Padding of prompt tails under speculation.
//
// The first step of a request whose prompt is all but computed has one token. A
// decode batch with K drafts per row is K+1 wide, so such a row would break its
// uniformity. The scheduler therefore pads the row to K+1 with K placeholders
// that can only be rejected. A pad survives unchanged or goes completely.

// PadRule says when a tail is padded.
type PadRule uint8

const (
	PadAlways        PadRule = iota // default: on a decoder padding always pays
	PadBesideRunning                // only where rows that run already are in the step
)

// PadInput describes a waiting or resumed request and the step under
// construction.
type PadInput struct {
	Known       int32 // tokens of the request
	Computed    int32 // of them computed
	K           int32 // drafts per row for a batch of this size
	Bonus       Bonus
	Budget      int32 // tokens left in the step
	MaxModelLen int32

	RunningRows int32 // rows scheduled before from those running
	Chunks      int32 // rows with several prompt tokens in the step
	Rule        PadRule
}

// PadAnswer is what to schedule for a tail.
type PadAnswer uint8

const (
	PadNot   PadAnswer = iota // schedule it as it is
	PadFull                   // schedule 1+K tokens, K of them placeholders
	PadDefer                  // not in this step: the padded row does not fit
)

// String names the answer.
func (a PadAnswer) String() string {
	switch a {
	case PadNot:
		return "not"
	case PadFull:
		return "full"
	case PadDefer:
		return "defer"
	}
	return fmt.Sprintf("PadAnswer(%d)", uint8(a))
}

// Pad decides whether a tail is padded. A row that would not fit the token
// budget waits for the next step: that is cheaper than a whole batch off its
// graph. A row that would pass the model length is never padded, since waiting
// would not help.
func Pad(in PadInput) PadAnswer {
	switch {
	case in.Known-in.Computed != 1 || in.K <= 0 || in.Bonus != OneBonus || in.Computed <= 0:
		return PadNot
	case in.Chunks > 0:
		return PadNot // the step is not uniform anyway
	case in.Rule == PadBesideRunning && in.RunningRows == 0:
		return PadNot
	case in.Known+in.K > in.MaxModelLen:
		return PadNot
	case 1+in.K > in.Budget:
		return PadDefer
	}
	return PadFull
}

// ClipPad is the width and the number of drafts of a padded row after another
// rule has limited it to most tokens: all of it, or one token without drafts.
func ClipPad(k, most int32) (scheduled, drafts int32) {
	if most >= 1+k {
		return 1 + k, k
	}
	return 1, 0
}

// WholeDrafts is how many of the drafts a running row verifies when at most fit
// of them fit: all or none, since a partial row breaks the uniformity of the
// batch as no drafts at all do, and costs more.
func WholeDrafts(drafts, fit int32) int32 {
	if drafts <= fit {
		return drafts
	}
	return 0
}

// HoldInput describes a running prompt with few tokens left and the step under
// construction.
type HoldInput struct {
	Left     int32 // prompt tokens left
	Computed int32 // tokens computed
	Most     int32 // most steps that the remainder may be spread over; below 2 switches the rule off
	Decodes  int32 // rows in the step that run as decodes of width 1
	Others   int32 // rows in the step that do not
}

// HoldBack is how many prompt tokens to schedule now: one, where the remainder
// is short, every other row runs as a decode of one token and so the whole
// batch stays uniform, or all of them. Each step then replays a FULL graph
// instead of one that does not, which pays where such a step costs more than
// the further steps that the prompt waits for.
func HoldBack(in HoldInput) int32 {
	if in.Left > 1 && in.Left <= in.Most && in.Computed > 0 && in.Decodes > 0 && in.Others == 0 {
		return 1
	}
	return in.Left
}

// KRange is the number of drafts for a range of batch sizes, both ends
// included.
type KRange struct{ From, To, K int }

// KSchedule is a number of drafts that varies with the batch size.
type KSchedule []KRange

// Validate reports ranges that overlap, leave gaps, or have impossible values.
func (s KSchedule) Validate() error {
	next := 1
	for i, r := range s {
		if r.From != next || r.To < r.From || r.K < 0 {
			return &ConfigError{Field: fmt.Sprintf("KSchedule[%d]", i), Problem: fmt.Sprintf(
				"%d..%d with %d drafts; ranges start at 1, ascend without gaps, and have no negative number", r.From, r.To, r.K)}
		}
		next = r.To + 1
	}
	return nil
}

// At is K for a batch of n rows; beyond the last range that of the last.
func (s KSchedule) At(n int) int {
	for _, r := range s {
		if n <= r.To {
			return r.K
		}
	}
	if len(s) == 0 {
		return 0
	}
	return s[len(s)-1].K
}

// Widths lists the decode widths that occur, ascending.
func (s KSchedule) Widths(b Bonus) []int {
	var out []int
	for _, r := range s {
		if w := r.K + b.Tokens(); w > 0 {
			out = append(out, w)
		}
	}
	slices.SortFunc(out, cmp.Compare)
	return slices.Compact(out)
}

// NoDraftMark is the number of drafts in the metadata of recurrent layers for a
// row that takes the prefill path.
const NoDraftMark int32 = -1

// DraftMark is the number of drafts that the metadata of recurrent layers gives
// for a row with this verdict: its drafts where it has any, so that a state is
// kept per position and the one behind the last kept token can be taken up,
// whatever graph the batch replays; 0 for a decode that drafted nothing; and
// NoDraftMark for a row that keeps the state behind its last token alone, as
// prefills and unpadded tails beside speculation do.
func (v RowVerdict) DraftMark(drafts, k int32) int32 {
	switch {
	case drafts > 0:
		return drafts
	case v.Class() == ClassDecode, v == TailOneToken && k == 0:
		return 0
	}
	return NoDraftMark
}

// Accepted is the number of new tokens that a row keeps after sampling: one for
// a tail, whatever a sampler says of its placeholders, and sampled for others.
func (v RowVerdict) Accepted(sampled int32) int32 {
	if v == TailPadded || v == TailOneToken {
		return min(sampled, 1)
	}
	return sampled
}

// Advance is the growth of the computed tokens of a row of s tokens with d
// drafts of which accepted were kept: its new tokens, and drafts only when
// accepted. The placeholders of a tail never are.
func (v RowVerdict) Advance(s, d, accepted int32) int32 {
	if v == TailPadded {
		return s - d
	}
	return s - d + min(accepted, d)
}
