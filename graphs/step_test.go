package graphs

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRowOrder(t *testing.T) {
	type named struct {
		name string
		row  Row
	}
	for _, tc := range []struct {
		name  string
		width int32
		rows  []named
		want  []string
	}{
		{"no drafts", 1, []named{
			{"p1", Row{100, 0, 0, 0, 100}}, {"d1", decode1}, {"p2", Row{7, 0, 0, 0, 7}}, {"d2", decode1},
		}, []string{"d1", "d2", "p2", "p1"}},
		{"verify rows lead a short tail", 2, []named{
			{"tail", tail1}, {"d1", Row{2, 1, 0, 60, 50}}, {"p1", Row{100, 0, 0, 0, 100}}, {"d2", Row{2, 1, 0, 60, 50}},
		}, []string{"d1", "d2", "tail", "p1"}},
		{"context before none", 1, []named{
			{"fresh", Row{4096, 0, 0, 0, 4096}}, {"resumed", Row{4096, 0, 0, 100000, 104096}},
		}, []string{"resumed", "fresh"}},
		{"drafts before full width before others", 4, []named{
			{"chunk", last4}, {"short", Row{1, 0, 0, 60, 50}}, {"verify", verify4}, {"partial", Row{2, 1, 0, 60, 50}},
		}, []string{"partial", "verify", "chunk", "short"}},
	} {
		rows := Rows{}
		for _, r := range tc.rows {
			rows.Append(r.row)
		}
		perm := make([]int32, rows.Len())
		Order(rows, tc.width, perm)
		var got []string
		for _, i := range perm {
			got = append(got, tc.rows[i].name)
		}
		require.Equal(t, tc.want, got, tc.name)
	}
}

// Eight decodes of two tokens and a tail of one: the tail is the only row
// behind the decodes, wherever it stood.
func TestRowOrderSplit(t *testing.T) {
	for at := range 9 {
		rows := Rows{}
		for i := range 9 {
			if i == at {
				rows.Append(tail1)
			} else {
				rows.Append(Row{2, 1, 0, 60, 50})
			}
		}
		perm := make([]int32, 9)
		Order(rows, 2, perm)
		decodes, extends, prefills := Split(rows, 2, perm)
		require.Equal(t, []int{8, 1, 0}, []int{decodes, extends, prefills})
	}
	rows := MakeRows([]Row{{64, 0, 0, 0, 64}, {64, 0, 0, 64, 129}, decode1})
	perm := make([]int32, 3)
	Order(rows, 1, perm)
	decodes, extends, prefills := Split(rows, 1, perm)
	require.Equal(t, []int{1, 1, 1}, []int{decodes, extends, prefills})
	require.Zero(t, testing.AllocsPerRun(10, func() { Order(rows, 1, perm) }))
}

func TestContextParallelTokens(t *testing.T) {
	decode := Row{3, 2, 0, 50, 40}
	prefill := func(n int32) Row { return Row{n, 0, 0, 0, n} }
	for _, tc := range []struct {
		pcp   int32
		rows  []Row
		split ChunkSplit
		want  int32
	}{
		{2, []Row{prefill(8)}, SplitEven, 4},
		{2, []Row{prefill(7)}, SplitEven, 4},
		{2, []Row{decode}, SplitEven, 3},
		{2, []Row{decode, prefill(8)}, SplitEven, 7},
		{4, []Row{{2, 1, 0, 50, 40}, prefill(9)}, SplitEven, 5},
		{4, []Row{prefill(3)}, SplitEven, 3}, // too short to cut
		{2, []Row{prefill(10), decode}, SplitPadded, 9},
		{1, []Row{prefill(10), decode}, SplitEven, 13},
	} {
		d := newDispatcher(t, Config{K: 2, MaxNumSeqs: 8, PCP: int(tc.pcp), Policy: Strict})
		v := make([]RowVerdict, len(tc.rows))
		rows := MakeRows(tc.rows)
		b := d.Classify(rows, Step{}, v)
		got := RankTokens(rows, v, tc.pcp, tc.split)
		require.Equal(t, tc.want, got, "pcp %d %+v", tc.pcp, tc.rows)

		// The count replaces the tokens for the choice, after the uniformity.
		b2 := d.Classify(rows, Step{RankTokens: got}, v)
		if tc.pcp > 1 {
			require.Equal(t, got, b2.Tokens)
		}
		require.Equal(t, b.Uniform, b2.Uniform)
	}
}

func TestPad(t *testing.T) {
	tail := PadInput{Known: 129, Computed: 128, K: 3, Budget: 100, MaxModelLen: 4096}
	with := func(f func(*PadInput)) PadInput { in := tail; f(&in); return in }
	for _, tc := range []struct {
		name string
		in   PadInput
		want PadAnswer
	}{
		{"tail", tail, PadFull},
		{"tail in an empty running queue", with(func(p *PadInput) { p.RunningRows = 0 }), PadFull},
		{"beside running rows only, none there", with(func(p *PadInput) { p.Rule = PadBesideRunning }), PadNot},
		{"beside running rows only", with(func(p *PadInput) { p.Rule, p.RunningRows = PadBesideRunning, 2 }), PadFull},
		{"more than one token left", with(func(p *PadInput) { p.Computed = 127 }), PadNot},
		{"fresh one-token prompt", with(func(p *PadInput) { p.Known, p.Computed = 1, 0 }), PadNot},
		{"no speculation", with(func(p *PadInput) { p.K = 0 }), PadNot},
		{"no bonus token", with(func(p *PadInput) { p.Bonus = NoBonus }), PadNot},
		{"a chunk is in the step", with(func(p *PadInput) { p.Chunks = 1 }), PadNot},
		{"budget too small", with(func(p *PadInput) { p.Budget = 3 }), PadDefer},
		{"budget just enough", with(func(p *PadInput) { p.Budget = 4 }), PadFull},
		{"near the model length", with(func(p *PadInput) { p.Known, p.Computed = 4094, 4093 }), PadNot},
		{"just inside the model length", with(func(p *PadInput) { p.Known, p.Computed = 4093, 4092 }), PadFull},
	} {
		require.Equal(t, tc.want, Pad(tc.in), tc.name)
	}
	require.Equal(t, "defer", PadDefer.String())
}

func TestPadSurvivesWholeOrGoes(t *testing.T) {
	s, d := ClipPad(7, 8)
	require.Equal(t, []int32{8, 7}, []int32{s, d})
	for most := range int32(8) { // an alignment or a threshold below the width
		s, d = ClipPad(7, most)
		require.Equal(t, []int32{1, 0}, []int32{s, d})
	}
	require.Equal(t, int32(3), WholeDrafts(3, 5))
	require.Equal(t, int32(3), WholeDrafts(3, 3))
	require.Zero(t, WholeDrafts(3, 2))
}

func TestHoldBack(t *testing.T) {
	in := HoldInput{Left: 2, Computed: 127, Most: 2, Decodes: 3}
	with := func(f func(*HoldInput)) HoldInput { x := in; f(&x); return x }
	require.Equal(t, int32(1), HoldBack(in))
	require.Equal(t, int32(2), HoldBack(with(func(x *HoldInput) { x.Most = 0 })), "off")
	require.Equal(t, int32(3), HoldBack(with(func(x *HoldInput) { x.Left = 3 })), "too many")
	require.Equal(t, int32(1), HoldBack(with(func(x *HoldInput) { x.Left = 1 })))
	require.Equal(t, int32(2), HoldBack(with(func(x *HoldInput) { x.Computed = 0 })), "a fresh prompt is no tail")
	require.Equal(t, int32(2), HoldBack(with(func(x *HoldInput) { x.Decodes = 0 })), "nobody to keep uniform")
	require.Equal(t, int32(2), HoldBack(with(func(x *HoldInput) { x.Others = 1 })), "not uniform anyway")
}

// The metadata of recurrent layers follows the verdict.
func TestDraftMarks(t *testing.T) {
	marks := func(k int, rows ...Row) (out []int32) {
		_, v := dispatch(newDispatcher(t, Config{K: k, MaxNumSeqs: 8}), Step{}, rows...)
		for i, r := range rows {
			out = append(out, v[i].DraftMark(r.Drafts, int32(k)))
		}
		return out
	}
	require.Equal(t, []int32{3, 3, NoDraftMark}, marks(3, verify4, padded4, last4))
	require.Equal(t, []int32{NoDraftMark, 0, 1}, marks(1, Row{1, 0, 0, 10, 11}, Row{1, 0, 0, 3, 3}, Row{2, 1, 0, 3, 3}))
	require.Equal(t, []int32{NoDraftMark, NoDraftMark}, marks(1, Row{2, 0, 0, 9, 11}, Row{3, 0, 0, 8, 11}))
	require.Equal(t, []int32{0, 0}, marks(0, decode1, tail1))

	// A padded tail keeps a state per position even where the policy keeps the
	// batch off FULL: its placeholders would end up in the state otherwise.
	_, v := dispatch(newDispatcher(t, Config{K: 3, MaxNumSeqs: 8, Policy: Strict}), Step{}, padded4)
	require.Equal(t, PrefillByPolicy, v[0])
	require.Equal(t, int32(3), v[0].DraftMark(3, 3))
	require.Equal(t, int32(1), v[0].Advance(4, 3, 0))
}

func TestAdvance(t *testing.T) {
	require.Equal(t, int32(1), TailPadded.Advance(4, 3, 3), "placeholders never count")
	require.Equal(t, int32(1), TailOneToken.Advance(1, 0, 0))
	require.Equal(t, int32(3), TailDrafted.Advance(4, 3, 2))
	require.Equal(t, int32(3), Decode.Advance(4, 3, 2))
	require.Equal(t, int32(1), Decode.Advance(4, 3, 0))
	require.Equal(t, int32(64), PrefillChunk.Advance(64, 0, 0))
	require.Equal(t, int32(1), TailPadded.Accepted(4), "a sampler that ignores ids may claim more")
	require.Equal(t, int32(0), TailOneToken.Accepted(0), "a chunk that ends before the prompt does samples nothing")
	require.Equal(t, int32(4), Decode.Accepted(4))
}

func TestAttentionState(t *testing.T) {
	for _, tc := range []struct {
		rows []Row
		by   Predictor
		want AttentionState
	}{
		{[]Row{fresh1, prefill64}, PredictorOther, StatePrefillNoCache},
		{[]Row{decode1, tail1}, PredictorOther, StateDecodeOnly},
		{[]Row{decode1, tail1}, PredictorMultiToken, StateSpecDecode},
		{[]Row{verify4, padded4}, PredictorMultiToken, StateSpecDecode},
		{[]Row{verify4, padded4}, PredictorOther, StateChunkedPrefill},
		{[]Row{decode1, tail2}, PredictorOther, StateChunkedPrefill},
	} {
		require.Equal(t, tc.want, AttentionStateOf(MakeRows(tc.rows), tc.by), tc.rows)
	}
	require.Equal(t, "decode_only", StateDecodeOnly.String())
}

func TestAscendQueryEnds(t *testing.T) {
	ends := func(n, w int32) (out []int32) {
		for i := int32(1); i <= n; i++ {
			out = append(out, i*w)
		}
		return out
	}
	decode := Key{Mode: Full, Tokens: 12, Reqs: 4, Uniform: 3}
	got, err := AscendQueryEnds(nil, ends(2, 3), decode, 3, ModeFullDecodeOnly, DummyRowAlways)
	require.NoError(t, err)
	require.Equal(t, QueryEnds{Ends: []int32{3, 6, 9, 12}, Appended: 2}, got)
	got, err = AscendQueryEnds(nil, ends(4, 3), decode, 3, ModeFullDecodeOnly, DummyRowAlways)
	require.NoError(t, err)
	require.Equal(t, QueryEnds{Ends: []int32{3, 6, 9, 12}}, got)
	_, err = AscendQueryEnds(nil, ends(5, 3), decode, 3, ModeFullDecodeOnly, DummyRowAlways)
	require.ErrorIs(t, err, ErrQueryRows)
	_, err = AscendQueryEnds(nil, []int32{3, 5}, decode, 3, ModeFullDecodeOnly, DummyRowAlways)
	require.ErrorIs(t, err, ErrQueryRows, "rows of another width")

	mixed := Key{Mode: Full, Tokens: 16, Reqs: 8}
	got, err = AscendQueryEnds(nil, []int32{4, 11, 12}, mixed, 1, ModeFull, DummyRowAlways)
	require.NoError(t, err)
	require.Equal(t, QueryEnds{Ends: []int32{4, 11, 12, 16}, Appended: 1}, got)
	got, err = AscendQueryEnds(nil, []int32{4, 16}, mixed, 1, ModeFull, DummyRowAlways)
	require.NoError(t, err)
	require.Equal(t, 1, got.Appended, "generation 2 always appends a row")
	got, err = AscendQueryEnds(nil, []int32{4, 16}, mixed, 1, ModeFull, DummyRowIfNeeded)
	require.NoError(t, err)
	require.Zero(t, got.Appended)
	_, err = AscendQueryEnds(nil, []int32{4, 17}, mixed, 1, ModeFull, DummyRowIfNeeded)
	require.ErrorIs(t, err, ErrQueryRows)
}

func TestIntervalTable(t *testing.T) {
	d := newDispatcher(t, Config{MaxNumSeqs: 8})
	var v Interval
	require.Empty(t, v.Table(d.Config().Mode, d.Ladder()), "nothing observed, nothing printed")
	for range 3 {
		v.Observe(uniform(d, 3, 1))
	}
	v.Observe(uniform(d, 8, 1))
	v.Observe(mixedBatch(d, 2, 3))
	want := `Graph mode: FULL_AND_PIECEWISE, captured sizes: [1 2 4 8 16]
Unpadded Tokens | Padded Tokens | Num Paddings | Runtime Mode | Reason      | Count
--------------- | ------------- | ------------ | ------------ | ----------- | -----
3               | 4             | 1            | FULL         | full        | 3
3               | 4             | 1            | PIECEWISE    | prefill_row | 1
8               | 8             | 0            | FULL         | full        | 1
`
	require.Equal(t, want, v.Table(d.Config().Mode, d.Ladder()))
	require.Empty(t, v.Table(d.Config().Mode, d.Ladder()), "forgotten after the report")
	dec := uniform(d, 3, 1)
	v.Observe(dec)
	require.Zero(t, testing.AllocsPerRun(10, func() { v.Observe(dec) }))
}

func TestCounters(t *testing.T) {
	d := newDispatcher(t, Config{K: 3, MaxNumSeqs: 8})
	c := NewCounters(d)
	require.Zero(t, c.NonFullShare())
	observe := func(rows ...Row) {
		dec, _ := dispatch(d, Step{}, rows...)
		c.Observe(dec)
	}
	observe(verify4, padded4, verify4)
	observe(verify4, verify4, verify4)
	observe(verify4, tail1)
	observe(last4)
	require.Equal(t, uint64(4), c.Steps())
	require.Equal(t, uint64(2), c.Modes[Full])
	require.Equal(t, uint64(1), c.Reasons[ReasonNonUniform])
	require.Equal(t, uint64(1), c.Reasons[ReasonPrefillRow])
	require.Equal(t, uint64(1), c.Tails)
	require.Equal(t, uint64(1), c.PaddedTails)
	require.InDelta(t, 0.5, c.NonFullShare(), 1e-9)
	require.Equal(t, uint64(6), c.Reqs)
	require.Equal(t, uint64(8), c.PaddedReqs)
	var replays uint64
	for _, n := range c.Replays {
		replays += n
	}
	require.Equal(t, uint64(4), replays)
}
