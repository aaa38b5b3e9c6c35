package graphs

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func classify(d *Dispatcher, rows ...Row) Batch {
	return d.Classify(MakeRows(rows), Step{}, make([]RowVerdict, len(rows)))
}

// agreed dispatches one batch per rank under their common agreement.
func agreed(t *testing.T, d *Dispatcher, batches ...Batch) []Decision {
	t.Helper()
	var votes []Vote
	for _, b := range batches {
		votes = append(votes, d.Vote(b))
	}
	a := Agree(votes)
	var out []Decision
	for _, b := range batches {
		dec, err := d.SelectAgreed(b, a)
		require.NoError(t, err)
		out = append(out, dec)
	}
	return out
}

func TestRanksAgree(t *testing.T) {
	sizes := LadderConfig{Sizes: []int{1, 8, 16}}
	d := newDispatcher(t, Config{MaxNumSeqs: 16, Ladder: sizes})
	only := newDispatcher(t, Config{MaxNumSeqs: 16, Ladder: sizes, Mode: ModeFullDecodeOnly})
	five := []Row{decode1, decode1, decode1, decode1, decode1}

	for _, tc := range []struct {
		name    string
		d       *Dispatcher
		batches []Batch
		want    []string
		reasons []Reason
	}{
		{"both FULL, the larger size", d, []Batch{classify(d, decode1), classify(d, five...)}, []string{"F@8/8", "F@8/8"}, []Reason{ReasonFull, ReasonFull}},
		{"an idle rank follows", d, []Batch{d.Idle(Step{}), classify(d, five...)}, []string{"F@8/8", "F@8/8"}, []Reason{ReasonFull, ReasonFull}},
		{"one PIECEWISE makes all PIECEWISE", d, []Batch{classify(d, decode1), classify(d, tail2)}, []string{"P@8", "P@8"}, []Reason{ReasonDPPeer, ReasonPrefillRow}},
		{"one eager makes all eager and unpadded", d, []Batch{classify(d, five...), classify(d, prefill64)}, []string{"N@5", "N@64"}, []Reason{ReasonDPPeer, ReasonPrefillRow}},
		{"without pieces one prefill makes all eager", only, []Batch{classify(only, five...), classify(only, tail2)}, []string{"N@5", "N@2"}, []Reason{ReasonDPPeer, ReasonPrefillRow}},
		{"a tail costs no rank anything", d, []Batch{classify(d, five...), classify(d, tail1)}, []string{"F@8/8", "F@8/8"}, []Reason{ReasonFull, ReasonFull}},
		{"no work anywhere", d, []Batch{classify(d), classify(d)}, []string{"N@0", "N@0"}, []Reason{ReasonNoTokens, ReasonNoTokens}},
	} {
		for i, dec := range agreed(t, tc.d, tc.batches...) {
			require.Equal(t, tc.want[i], short(dec), "%s, rank %d", tc.name, i)
			require.Equal(t, tc.reasons[i], dec.Reason, "%s, rank %d", tc.name, i)
		}
	}
}

func TestRanksOfDifferentWidths(t *testing.T) {
	d := newDispatcher(t, Config{K: 3, Widths: []int{2, 4}, MaxNumSeqs: 16, MaxNumBatchedTokens: 512})
	two, four := d.Dummy(4, 8, 2, Step{}), d.Dummy(4, 16, 4, Step{})
	for _, dec := range agreed(t, d, two, four) {
		require.Equal(t, Piecewise, dec.Mode)
		require.Equal(t, ReasonDPPeer, dec.Reason)
		require.Equal(t, int32(16), dec.PaddedTokens)
	}
}

func TestAgreementOfNoWork(t *testing.T) {
	d := newDispatcher(t, Config{MaxNumSeqs: 16})
	require.False(t, Agree([]Vote{d.Vote(classify(d)), d.Vote(classify(d))}).Work)
	require.True(t, Agree([]Vote{d.Vote(classify(d)), d.Vote(classify(d, decode1))}).Work)
	require.Zero(t, Agree(nil))
}

// A second pass over the same batch, such as a drafter's, uses the agreement
// again; another batch may not.
func TestAgreementIsForOneBatch(t *testing.T) {
	d := newDispatcher(t, Config{MaxNumSeqs: 16})
	b := classify(d, decode1, decode1)
	a := Agree([]Vote{d.Vote(b), d.Vote(classify(d, prefill64))})
	first, err := d.SelectAgreed(b, a)
	require.NoError(t, err)
	again, err := d.SelectAgreed(b, a)
	require.NoError(t, err)
	require.Equal(t, first, again)

	eager := Agree([]Vote{d.Vote(b), {Mode: None, Tokens: 4096}})
	dec, err := d.SelectAgreed(b, eager)
	require.NoError(t, err)
	require.Equal(t, None, dec.Mode, "an eager agreement stays eager")

	a = Agree([]Vote{d.Vote(b)})
	_, err = d.SelectAgreed(classify(d, decode1, decode1, decode1), a)
	require.ErrorIs(t, err, ErrAgreement)
}

func TestStageConsensus(t *testing.T) {
	d := newDispatcher(t, Config{MaxNumSeqs: 16})
	require.Equal(t, None, StageConsensus([]Mode{Piecewise, None}))
	require.Equal(t, Full, StageConsensus([]Mode{Full, Full}))
	require.Equal(t, None, StageConsensus(nil))

	b := classify(d, decode1, tail1)
	dec := d.SelectStage(b, None)
	require.Equal(t, "N@2", short(dec))
	require.Equal(t, ReasonPPPeer, dec.Reason)
	require.Equal(t, d.Select(b), d.SelectStage(b, Full))

	prefill := classify(d, tail2)
	dec = d.SelectStage(prefill, None)
	require.Equal(t, None, dec.Mode)
	require.Equal(t, ReasonPrefillRow, dec.Reason, "this stage missed FULL by itself")
}

func TestMaySkipAgreement(t *testing.T) {
	decoder := SkipInputs{DataParallelism: 2, MoE: true, Consumer: true, DecodeMC2: true, Mode: ModeFullDecodeOnly}
	with := func(f func(*SkipInputs)) SkipInputs { in := decoder; f(&in); return in }
	for _, tc := range []struct {
		name string
		in   SkipInputs
		want bool
	}{
		{"one rank", SkipInputs{DataParallelism: 1, MoE: true}, true},
		{"dense model", SkipInputs{DataParallelism: 4}, true},
		{"experts, no decoder", with(func(s *SkipInputs) { s.Consumer = false }), false},
		{"decode without the fused operator", with(func(s *SkipInputs) { s.DecodeMC2, s.Recompute = false, true }), false},
		{"prefill differs", decoder, false},
		{"prefill alike, one routine", with(func(s *SkipInputs) { s.PrefillMC2, s.Mode = true, ModeFull }), true},
		{"prefill alike, two routines", with(func(s *SkipInputs) { s.PrefillMC2, s.Mode = true, ModeFullAndPiecewise }), false},
		{"only decode steps", with(func(s *SkipInputs) { s.Recompute = true }), true},
		{"prompts prefilled on the decoder", with(func(s *SkipInputs) { s.Recompute, s.AppendPrefill = true, true }), false},
	} {
		require.Equal(t, tc.want, MaySkipAgreement(tc.in), tc.name)
	}
}

func TestFingerprint(t *testing.T) {
	base := Config{MaxNumSeqs: 16}
	print := func(f func(*Config)) uint64 {
		c := base
		f(&c)
		return newDispatcher(t, c).Fingerprint()
	}
	same := print(func(*Config) {})
	require.Equal(t, same, print(func(*Config) {}))
	for i, f := range []func(*Config){
		func(c *Config) { c.MaxNumSeqs = 17 },
		func(c *Config) { c.K = 1 },
		func(c *Config) { c.Policy = Strict },
		func(c *Config) { c.Mode = ModeFullDecodeOnly },
		func(c *Config) { c.Ladder.MaxSize = 20 },
		func(c *Config) { c.LoRA.Max = 1 },
		func(c *Config) { c.PCP = 2 },
	} {
		require.NotEqual(t, same, print(f), i)
	}
}
