package graphs

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Faults that others have had, each as the input that shows it. Those that need
// a device are tested beside the replay.

func sized(k int, sizes ...int) Config {
	return Config{K: k, MaxNumSeqs: 8, MaxNumBatchedTokens: 8192, Ladder: LadderConfig{Sizes: sizes}}
}

func repeat(n int, r Row) []Row {
	out := make([]Row, n)
	for i := range out {
		out[i] = r
	}
	return out
}

func TestFaultPromptOfDecodeWidth(t *testing.T) { // F1: a prompt of K+1 tokens replayed a verify graph
	d := newDispatcher(t, sized(3, 1, 2, 4, 8, 16, 24))
	dec, v := dispatch(d, Step{}, Row{4, 0, 0, 0, 4})
	require.Equal(t, "P@4", short(dec))
	require.Zero(t, dec.Uniform)
	require.Equal(t, PrefillFresh, v[0])
}

func TestFaultChunkBesideDecodes(t *testing.T) { // F2: decodes beside such a chunk were corrupted too
	d := newDispatcher(t, sized(7, 8, 16, 32, 64))
	dec, _ := dispatch(d, Step{}, append(repeat(6, Row{8, 7, 0, 16, 16}), Row{8, 0, 0, 8, 40})...)
	require.NotEqual(t, Full, dec.Mode)
	require.Zero(t, dec.Uniform)
	dec, _ = dispatch(d, Step{}, repeat(6, Row{8, 7, 0, 16, 16})...)
	require.Equal(t, "F@64/8", short(dec))
}

func TestFaultLastChunkOfDecodeWidth(t *testing.T) { // F3: prompts of a chunk multiple plus K+1
	d := newDispatcher(t, sized(3, 1, 2, 4, 8, 16))
	for _, r := range []Row{{4, 0, 0, 4608, 4612}, {4, 0, 0, 9216, 9220}, {4, 0, 0, 115200, 115204}} {
		dec, v := dispatch(d, Step{}, r)
		require.Equal(t, Piecewise, dec.Mode)
		require.Equal(t, PrefillChunk, v[0])
	}
}

func TestFaultEncoderIgnored(t *testing.T) { // F4: a one-token prompt with encoder inputs replayed FULL
	dec, _ := dispatch(newDispatcher(t, sized(0, 1, 2, 4)), Step{Flags: EncoderInputs}, Row{1, 0, 0, 0, 1})
	require.Equal(t, "N@1", short(dec))
}

func TestFaultArrivalLeavesFull(t *testing.T) { // F5: every arrival on a decoder cost a FULL step
	dec, _ := dispatch(newDispatcher(t, sized(0, 1, 2, 4)), Step{}, decode1, decode1, tail1)
	require.Equal(t, "F@4/4", short(dec))
}

func TestFaultUnpaddedArrival(t *testing.T) { // F6: an unpadded row breaks uniformity
	d := newDispatcher(t, sized(3, 4, 8, 16))
	dec, _ := dispatch(d, Step{}, verify4, verify4, tail1)
	require.Equal(t, Piecewise, dec.Mode)
	dec, _ = dispatch(d, Step{}, verify4, verify4, padded4)
	require.Equal(t, Full, dec.Mode)
}

func TestFaultStateAfterPlaceholders(t *testing.T) { // F7: the padded tail took the prefill path
	d := newDispatcher(t, sized(3, 4, 8, 16))
	_, v := dispatch(d, Step{}, verify4, padded4)
	require.True(t, v[1].RunsAsDecode())
	require.Equal(t, int32(1), v[1].Accepted(4))
	require.Equal(t, int32(129), 128+v[1].Advance(4, 3, 3))
}

func TestFaultPadClipped(t *testing.T) { // F8: a padded row of 8 cut to 5
	s, drafts := ClipPad(7, 5)
	require.Equal(t, int32(1), s)
	require.Zero(t, drafts)
}

func TestFaultSharedMark(t *testing.T) { // F9: a decode without drafts and a tail had one mark
	d := newDispatcher(t, sized(1, 2, 4, 8))
	rows := []Row{{1, 0, 0, 10, 11}, {1, 0, 0, 3, 3}, {2, 1, 0, 3, 3}}
	_, v := dispatch(d, Step{}, rows...)
	for i, want := range []int32{NoDraftMark, 0, 1} {
		require.Equal(t, want, v[i].DraftMark(rows[i].Drafts, 1))
	}
}

func TestFaultSmallerPiecewiseWins(t *testing.T) { // F10
	require.Equal(t, "F@18/6", short(uniform(newDispatcher(t, width3), 4, 3)))
}

func TestFaultMaximumLowered(t *testing.T) { // F11: 42 became 40, six rows of seven ran eager
	d := newDispatcher(t, Config{K: 6, MaxNumSeqs: 6, MaxNumBatchedTokens: 8192, Ladder: LadderConfig{MaxSize: 42}})
	require.Contains(t, d.Ladder().Sizes, int32(42))
	require.Equal(t, "F@42/6", short(uniform(d, 6, 7)))
}

func TestFaultCapIgnoresWidth(t *testing.T) { // F12: the widest decode steps were beyond the cap
	d := newDispatcher(t, Config{K: 16, MaxNumSeqs: 32, MaxNumBatchedTokens: 8192})
	require.Equal(t, int32(544), d.Ladder().Max)
	require.Equal(t, "F@544/32", short(uniform(d, 32, 17)))
}

func TestFaultOneRow(t *testing.T) { // F13: one size remained with a single row
	d := newDispatcher(t, Config{K: 3, MaxNumSeqs: 1, MaxNumBatchedTokens: 8192})
	require.Equal(t, "F@4/1", short(uniform(d, 1, 4)))
	require.Greater(t, len(d.Ladder().Sizes), 1)
}

func TestFaultMoreRowsThanTokens(t *testing.T) { // F14
	s := KSchedule{{1, 64, 3}, {65, 128, 1}, {129, 512, 0}}
	d := newDispatcher(t, Config{K: 3, Widths: s.Widths(OneBonus), MaxNumSeqs: 512, MaxNumBatchedTokens: 8192})
	for _, k := range d.Keys() {
		require.LessOrEqual(t, k.Reqs, k.Tokens)
	}
}

func TestFaultDummyOnLocalTokens(t *testing.T) { // F15: a rank dispatched before the ranks agreed
	d := newDispatcher(t, sized(0, 1, 8))
	for _, dec := range agreed(t, d, classify(d, decode1), classify(d, repeat(5, decode1)...)) {
		require.Equal(t, int32(8), dec.PaddedTokens)
	}
}

func TestFaultModesNotShared(t *testing.T) { // F16: ranks in different modes hang in a collective
	a := Agree([]Vote{{Mode: Full, Tokens: 4, Uniform: 1}, {Mode: Piecewise, Tokens: 4}})
	require.Equal(t, Piecewise, a.Mode)
	require.False(t, MaySkipAgreement(SkipInputs{DataParallelism: 2, MoE: true, Consumer: true, DecodeMC2: true, PrefillMC2: true, Mode: ModeFullAndPiecewise}))
}

func TestFaultStagesDisagree(t *testing.T) { // F17
	require.Equal(t, None, StageConsensus([]Mode{Piecewise, None}))
}

func TestFaultMetadataSaysPrefill(t *testing.T) { // F20: graph and metadata classified apart
	for _, p := range Policies() {
		if p == ShapeOnly {
			continue
		}
		c := sized(0, 1, 2, 4)
		c.Policy, c.KV = p, pdConsumer
		dec, v := dispatch(newDispatcher(t, c), Step{}, tail1)
		require.Equal(t, dec.Mode == Full, v[0].RunsAsDecode(), p)
	}
}

func TestFaultPastModelLength(t *testing.T) { // F23
	require.Equal(t, PadNot, Pad(PadInput{Known: 4094, Computed: 4093, K: 3, Budget: 512, MaxModelLen: 4096}))
}

func TestFaultNeverPaddedAlone(t *testing.T) { // F24
	s := KSchedule{{1, 64, 3}, {65, 128, 1}}
	for _, rows := range []int{1, 100} {
		in := PadInput{Known: 129, Computed: 128, K: int32(s.At(rows)), Budget: 512, MaxModelLen: 4096}
		require.Equal(t, PadFull, Pad(in), "an empty running queue, and a K that varies")
	}
}

func TestFaultSecondDispatchWithoutAdapters(t *testing.T) { // F27
	d := newDispatcher(t, sized(0, 1, 2, 4))
	b := d.Classify(MakeRows([]Row{decode1}), Step{LoRAs: 1}, make([]RowVerdict, 1))
	for range 2 {
		require.Equal(t, None, d.Select(b).Mode)
	}
}

func TestFaultAdapterCountCapped(t *testing.T) { // F28: the case of all adapters and a row without one
	c := sized(0, 1, 2, 4)
	c.LoRA.Max = 2
	d := newDispatcher(t, c)
	dec := d.Select(d.Dummy(2, 2, 1, Step{LoRAs: 3}))
	require.Equal(t, int32(3), dec.Key.LoRA)
}

// The shape-only arm must show the faults that it is the control for.
func TestShapeOnlyShowsTheFaults(t *testing.T) {
	c := sized(3, 1, 2, 4, 8, 16)
	c.Policy = ShapeOnly
	d := newDispatcher(t, c)
	for _, r := range []Row{{4, 0, 0, 0, 4}, {4, 0, 0, 4608, 4612}} {
		dec, v := dispatch(d, Step{}, r)
		require.Equal(t, Full, dec.Mode)
		require.Equal(t, DecodeByShape, v[0])
	}
	c = sized(0, 1, 2, 4)
	c.Policy = ShapeOnly
	dec, _ := dispatch(newDispatcher(t, c), Step{}, fresh1)
	require.Equal(t, Full, dec.Mode)
}

// The vectors of the upstream classification, by the facts they state.
func TestUpstreamVectors(t *testing.T) {
	t.Run("six verify rows of eight are uniform", func(t *testing.T) {
		d := newDispatcher(t, sized(7, 8, 48, 64))
		require.Equal(t, int32(8), classify(d, repeat(6, Row{8, 7, 0, 20, 16})...).Uniform)
	})
	t.Run("chunks of decode width are not", func(t *testing.T) {
		d := newDispatcher(t, sized(7, 8, 48, 64))
		require.Zero(t, classify(d, append(repeat(6, Row{8, 7, 0, 20, 16}), repeat(2, Row{8, 0, 0, 8, 40})...)...).Uniform)
		require.Zero(t, classify(d, Row{8, 0, 0, 0, 8}).Uniform)
		require.Zero(t, classify(newDispatcher(t, sized(0, 1)), Row{1, 0, 0, 0, 1}).Uniform)
	})
	t.Run("one new prompt token over context runs as a decode", func(t *testing.T) {
		rows := []Row{{4, 3, 0, 16, 16}, {4, 3, 3, 128, 129}, {1, 0, 0, 64, 129}, {1, 0, 0, 0, 1}, {4, 0, 0, 120, 129}}
		for _, p := range []Policy{OneNewToken, OneNewTokenHardened} {
			c := sized(3, 4, 8, 16)
			c.Policy = p
			_, v := dispatch(newDispatcher(t, c), Step{}, rows...)
			var tails []bool
			for _, x := range v {
				tails = append(tails, x.Class() == ClassTail)
			}
			require.Equal(t, []bool{false, true, true, false, false}, tails, p)
		}
	})
	t.Run("a tail with context is uniform with decodes", func(t *testing.T) {
		d := newDispatcher(t, sized(0, 1, 2, 4))
		require.Equal(t, int32(1), classify(d, decode1, decode1, tail1).Uniform)
		require.Zero(t, classify(d, decode1, decode1, tail1, fresh1).Uniform)
		require.Zero(t, classify(newDispatcher(t, sized(7, 8, 16)), Row{8, 7, 0, 20, 16}, Row{8, 0, 0, 120, 129}).Uniform)
	})
	t.Run("a padded tail is uniform although it is prefilling", func(t *testing.T) {
		d := newDispatcher(t, sized(3, 4, 8, 16))
		b := classify(d, verify4, verify4, padded4)
		require.Equal(t, int32(4), b.Uniform)
		require.Zero(t, b.Bound, "logically a row is prefilling")
		require.Zero(t, classify(d, verify4, verify4, tail1).Uniform)
	})
	t.Run("dummies stay uniform by shape", func(t *testing.T) {
		d := newDispatcher(t, sized(7, 8, 16))
		require.Equal(t, int32(8), d.Dummy(2, 16, 8, Step{}).Uniform)
		require.Zero(t, d.Dummy(2, 12, 8, Step{}).Uniform)
	})
	t.Run("prefill length, not prompt length, after a preemption", func(t *testing.T) {
		// Prompt 10, 30 outputs, preempted: 40 tokens to recompute, 20 done.
		d := newDispatcher(t, sized(3, 4, 8, 16))
		dec, v := dispatch(d, Step{}, Row{4, 0, 0, 20, 40})
		require.Equal(t, PrefillChunk, v[0])
		require.Equal(t, Piecewise, dec.Mode)
	})
}
