package graphs

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// width3 has decode rows of three tokens and sizes that are not multiples of it.
var width3 = Config{K: 2, MaxNumSeqs: 8, MaxNumBatchedTokens: 8192, Ladder: LadderConfig{Sizes: []int{1, 2, 4, 8, 16, 24}}}

// uniform is a batch of n decode rows of width w.
func uniform(d *Dispatcher, n, w int32) Decision { return d.Select(d.Dummy(n, n*w, w, Step{})) }

// mixedBatch is a batch of n rows with a prefill among them.
func mixedBatch(d *Dispatcher, n, tokens int32) Decision {
	return d.Select(Batch{Reqs: n, Tokens: tokens, MaxQuery: tokens, LoRA: d.cases[0], Obstacle: ReasonPrefillRow})
}

func TestUniformDecodePadsUpToFullGraph(t *testing.T) {
	d := newDispatcher(t, width3)
	require.Equal(t, "F@18/6", short(uniform(d, 4, 3)), "12 tokens: the larger FULL graph, not PIECEWISE at 16")
	require.Equal(t, "F@9/3", short(uniform(d, 3, 3)), "an exact size is not padded")
	require.Equal(t, "P@16", short(mixedBatch(d, 2, 12)))
	require.Equal(t, "N@27", short(uniform(d, 9, 3)), "beyond the ladder")
	require.Equal(t, ReasonBeyondLadder, uniform(d, 9, 3).Reason)
}

func TestMixedBatchNeverTakesADecodeGraph(t *testing.T) {
	d := newDispatcher(t, width3)
	for _, n := range []int32{3, 6, 9, 18} { // sizes that only decode graphs have
		dec := mixedBatch(d, 2, n)
		require.Equal(t, Piecewise, dec.Mode, "%d tokens", n)
	}
}

func TestDecodeGraphsOfAnyWidth(t *testing.T) {
	c := width3
	c.Trim = AdaptiveDrafts
	d := newDispatcher(t, c)
	at := func(bound int32) Decision {
		return d.Select(Batch{Reqs: 3, Tokens: 6, MaxQuery: 3, Bound: bound, LoRA: 0})
	}
	require.Equal(t, "F@8/8", short(at(3)))
	require.Equal(t, int32(3), at(3).Key.Bound)
	require.Equal(t, "P@8", short(at(0)), "a row is prefilling")
	require.Equal(t, "P@8", short(at(4)), "a row is wider than the graphs")
	require.Equal(t, ReasonNoWidth, at(4).Reason)

	// Drafts are trimmed before the uniformity is looked at.
	rows := []Row{{3, 2, 0, 50, 40}, {3, 2, 0, 50, 40}, {3, 2, 0, 50, 40}, {3, 2, 0, 50, 40}}
	v := make([]RowVerdict, 4)
	b := d.Classify(MakeRows(rows), Step{}, v)
	require.Equal(t, int32(3), b.Uniform)
	b = d.Classify(MakeRows(rows), Step{TrimmedTokens: 9}, v)
	require.Zero(t, b.Uniform)
	require.Equal(t, int32(9), b.Tokens)
	// A tail clears the bound even though it runs as a decode.
	rows[3] = Row{3, 2, 2, 39, 40}
	b = d.Classify(MakeRows(rows), Step{}, v)
	require.Equal(t, int32(3), b.Uniform)
	require.Zero(t, b.Bound)
	require.Equal(t, TailPadded, v[3])
}

// With several widths the smallest key of another width must not hide a larger
// one that fits.
func TestWidthsDoNotHideEachOther(t *testing.T) {
	d := newDispatcher(t, Config{
		K: 3, Widths: []int{3, 4}, MaxNumSeqs: 6, MaxNumBatchedTokens: 8192,
		Ladder: LadderConfig{Sizes: []int{4, 8, 12, 16}, MaxSize: 18},
	})
	require.Equal(t, "F@18/6", short(uniform(d, 5, 3)))
	require.Equal(t, "F@16/4", short(uniform(d, 4, 4)))
	require.Equal(t, ReasonNoWidth, uniform(d, 4, 2).Reason)
}

// A number of drafts that varies with the batch size: every captured graph can
// be reached, and no key has more rows than tokens.
func TestDynamicDrafts(t *testing.T) {
	s := KSchedule{{1, 64, 3}, {65, 128, 1}, {129, 512, 0}}
	require.NoError(t, s.Validate())
	require.Equal(t, []int{1, 2, 4}, s.Widths(OneBonus))
	require.Equal(t, []int{3, 3, 1, 0, 0}, []int{s.At(1), s.At(64), s.At(65), s.At(200), s.At(900)})
	d := newDispatcher(t, Config{K: 3, Widths: s.Widths(OneBonus), MaxNumSeqs: 512, MaxNumBatchedTokens: 8192})
	for id, k := range d.Keys() {
		require.LessOrEqual(t, k.Reqs, k.Tokens)
		if k.Uniform > 0 {
			require.Equal(t, KeyID(id), uniform(d, k.Reqs, k.Uniform).KeyID)
		}
	}
	require.Equal(t, Full, uniform(d, 100, 2).Mode)
	require.Equal(t, Full, uniform(d, 512, 1).Mode)
	for _, bad := range []KSchedule{{{2, 4, 1}}, {{1, 4, 1}, {6, 9, 0}}, {{1, 4, -1}}, {{1, 0, 1}}} {
		require.Error(t, bad.Validate())
	}
	require.Zero(t, KSchedule(nil).At(3))
}

// Widths 1, 2 and 8 divide the usual sizes: nothing is rounded.
func TestWidthsThatDivideTheSizes(t *testing.T) {
	for _, w := range []int32{1, 2, 8} {
		d := newDispatcher(t, Config{K: int(w) - 1, MaxNumSeqs: 8, Ladder: LadderConfig{Sizes: []int{8, 16, 32, 64}}})
		for _, k := range d.Keys() {
			if k.Mode == Full {
				require.Contains(t, []int32{8, 16, 32, 64}, k.Tokens)
				require.Equal(t, k, uniform(d, k.Reqs, w).Key)
			}
		}
	}
}

func TestNothingCapturedMeansEager(t *testing.T) {
	d, err := New(Config{MaxNumSeqs: 8, MaxNumBatchedTokens: 64})
	require.NoError(t, err)
	dec, _ := dispatch(d, Step{}, decode1)
	require.Equal(t, "N@1", short(dec))
	require.Equal(t, ReasonNotCaptured, dec.Reason)
}

// While memory is profiled only a sample of the FULL graphs exists.
func TestSamplingUsesOnlyCapturedFullGraphs(t *testing.T) {
	c := Config{MaxNumSeqs: 8, MaxNumBatchedTokens: 64}
	d := newDispatcher(t, c)
	d.SetCaptureState(Sampling)
	dec := uniform(d, 8, 1)
	require.Equal(t, "P@8", short(dec))
	require.Equal(t, ReasonNotCaptured, dec.Reason)
	for id, k := range d.Keys() {
		if k.Mode == Full && k.Tokens == 8 {
			d.MarkCaptured(KeyID(id))
		}
	}
	require.Equal(t, "F@8/8", short(uniform(d, 8, 1)))
	require.Equal(t, "P@4", short(uniform(d, 4, 1)))

	c.Mode = ModeFullDecodeOnly
	d = newDispatcher(t, c)
	d.SetCaptureState(Sampling)
	require.Equal(t, "N@4", short(uniform(d, 4, 1)), "no candidate at all")
}

// Where a device could not take every graph, a step uses the next larger one.
func TestPartlyCaptured(t *testing.T) {
	d := newDispatcher(t, Config{MaxNumSeqs: 16, MaxNumBatchedTokens: 64})
	for id, k := range d.Keys() {
		if k.Tokens == 8 || k.Tokens == 16 && k.Mode == Full {
			d.MarkCaptured(KeyID(id))
		}
	}
	d.SetCaptureState(PartlyCaptured)
	require.Equal(t, "F@8/8", short(uniform(d, 3, 1)))
	require.Equal(t, "F@16/16", short(uniform(d, 9, 1)))
	require.Equal(t, "P@8", short(mixedBatch(d, 2, 3)))
	require.Equal(t, "N@9", short(mixedBatch(d, 2, 9)))
	d.SetCaptureState(AllCaptured)
	require.Equal(t, "F@4/4", short(uniform(d, 3, 1)))
	d.Unmark()
	d.SetCaptureState(PartlyCaptured)
	require.Equal(t, None, uniform(d, 3, 1).Mode)
}

func TestSelectAmong(t *testing.T) {
	d := newDispatcher(t, Config{MaxNumSeqs: 8})
	b := d.Dummy(3, 3, 1, Step{})
	require.Equal(t, "F@4/4", short(d.SelectAmong(b, AllModes)))
	require.Equal(t, "P@4", short(d.SelectAmong(b, AllModes.Without(Full))))
	require.Equal(t, "N@3", short(d.SelectAmong(b, Modes(None))))
	require.Panics(t, func() { d.SelectAmong(b, 0) })
	require.True(t, Modes(None, Full).Has(Full))
	require.False(t, Modes(None, Full).Has(Piecewise))
}

func TestLoRACaseDecidesTheKey(t *testing.T) {
	d := newDispatcher(t, Config{MaxNumSeqs: 8, LoRA: LoRAConfig{Max: 4}})
	dec, _ := dispatch(d, Step{LoRAs: 3}, decode1, decode1)
	require.Equal(t, Key{Mode: Full, Tokens: 2, Reqs: 2, Uniform: 1, LoRA: 4}, dec.Key)

	// Without a graph for adapters every pass of the step is eager: the main
	// one and any later one, which must use the same number.
	none := newDispatcher(t, Config{MaxNumSeqs: 8})
	for range 2 {
		dec, _ = dispatch(none, Step{LoRAs: 1}, decode1)
		require.Equal(t, None, dec.Mode)
		require.Equal(t, ReasonLoRACase, dec.Reason)
	}
	dec, _ = dispatch(none, Step{LoRAs: -1}, decode1)
	require.Equal(t, ReasonLoRACase, dec.Reason)
}

func TestEmptyBatch(t *testing.T) {
	d := newDispatcher(t, Config{MaxNumSeqs: 8})
	dec := d.Dispatch(Rows{}, Step{}, nil)
	require.Equal(t, None, dec.Mode)
	require.Equal(t, ReasonNoTokens, dec.Reason)
	require.Zero(t, dec.PaddedTokens)
	require.Equal(t, dec, d.Select(d.Dummy(0, 0, 0, Step{})))
}

// Rows with numbers that contradict each other are counted and replay nothing.
func TestMalformedRows(t *testing.T) {
	for name, row := range map[string]Row{
		"negative scheduled":           {-1, 0, 0, 5, 9},
		"nothing scheduled":            {0, 0, 0, 5, 9},
		"negative drafts":              {1, -1, 0, 5, 9},
		"more drafts than scheduled":   {1, 2, 0, 5, 9},
		"more placeholders than draft": {4, 1, 2, 5, 9},
		"negative placeholders":        {4, 1, -2, 5, 9},
		"negative computed":            {1, 0, 0, -5, 9},
		"negative prefill":             {1, 0, 0, 5, -9},
		"beyond the prompt":            {5, 0, 0, 5, 9},
		"only drafts while prefilling": {3, 3, 3, 5, 9},
		"smallest number":              {-1 << 31, -1 << 31, -1 << 31, -1 << 31, -1 << 31},
		"largest drafts":               {1<<31 - 1, -1 << 31, 0, 5, 9},
	} {
		for _, p := range Policies() {
			for _, mode := range []ModeConfig{ModeFull, ModeFullAndPiecewise} {
				for _, n := range []int{1, block, 3 * block} {
					d := newDispatcher(t, Config{Policy: p, Mode: mode, K: 3, MaxNumSeqs: 64})
					rows := make([]Row, n)
					for i := range rows {
						rows[i] = verify4
					}
					rows[n-1] = row
					dec, v := dispatch(d, Step{}, rows...)
					require.Equal(t, None, dec.Mode, "%s under %v", name, p)
					require.Equal(t, ReasonMalformed, dec.Reason, "%s under %v", name, p)
					require.Equal(t, ClassMalformed, v[n-1].Class(), "%s under %v", name, p)
				}
			}
		}
	}

	// More tokens than the counter holds.
	d := newDispatcher(t, Config{MaxNumSeqs: 8})
	big := Row{1<<31 - 1, 0, 0, 0, 1<<31 - 1}
	dec, _ := dispatch(d, Step{}, big, big, big)
	require.Equal(t, None, dec.Mode)
	require.Equal(t, ReasonMalformed, dec.Reason)

	// A decode row with two new tokens can be run, but not by a decode graph.
	dec, v := dispatch(d, Step{}, decode1, Row{2, 0, 0, 200, 128})
	require.Equal(t, Piecewise, dec.Mode)
	require.Equal(t, ReasonMalformed, dec.Reason)
	require.Equal(t, MalformedNewTokens, v[1])
	// Nor by a FULL graph for any batch.
	d = newDispatcher(t, Config{MaxNumSeqs: 8, Mode: ModeFull})
	dec, _ = dispatch(d, Step{}, decode1, Row{2, 0, 0, 200, 128})
	require.Equal(t, None, dec.Mode)
}

// Steps that sample nothing beyond their drafts.
func TestNoBonusToken(t *testing.T) {
	d := newDispatcher(t, Config{K: 4, Bonus: NoBonus, MaxNumSeqs: 8})
	require.Equal(t, 4, d.Config().DecodeWidth())
	dec, v := dispatch(d, Step{}, Row{4, 4, 0, 50, 40}, Row{4, 4, 0, 50, 40})
	require.Equal(t, "F@8/2", short(dec))
	require.Equal(t, Decode, v[0])
	_, v = dispatch(d, Step{}, Row{5, 4, 0, 50, 40})
	require.Equal(t, MalformedNewTokens, v[0])
}

// A row of the batch is found through its own numbers alone: other rows and
// its position do not matter.
func TestVerdictIgnoresPosition(t *testing.T) {
	d := newDispatcher(t, Config{MaxNumSeqs: 64})
	rows := make([]Row, 3*block)
	for at := range rows {
		for i := range rows {
			rows[i] = decode1
		}
		rows[at] = fresh1
		dec, v := dispatch(d, Step{}, rows...)
		require.Equal(t, PrefillFreshOneToken, v[at])
		require.Equal(t, Piecewise, dec.Mode)
		require.Equal(t, ReasonFreshOneToken, dec.Reason)
		v[at] = Decode
		for _, x := range v {
			require.Equal(t, Decode, x)
		}
	}
}

func TestKeysComeInCaptureOrder(t *testing.T) {
	d := newDispatcher(t, Config{MaxNumSeqs: 16, LoRA: LoRAConfig{Max: 2}})
	keys := d.Keys()
	for i := 1; i < len(keys); i++ {
		a, b := keys[i-1], keys[i]
		require.False(t, a.Mode == Full && b.Mode == Piecewise, "PIECEWISE first: FULL graphs reuse its pool")
		if a.Mode == b.Mode {
			require.GreaterOrEqual(t, a.Tokens, b.Tokens, "the largest first")
			if a.Tokens == b.Tokens {
				require.Greater(t, a.LoRA, b.LoRA)
			}
		}
	}
	require.Empty(t, newDispatcher(t, Config{MaxNumSeqs: 16, Mode: ModeNone}).Keys())
}

func TestIsPDConsumer(t *testing.T) {
	nested := func(names ...string) []KVTransfer {
		var out []KVTransfer
		for _, n := range names {
			out = append(out, KVTransfer{Connector: n})
		}
		return out
	}
	for _, tc := range []struct {
		t    KVTransfer
		want bool
	}{
		{KVTransfer{}, false},
		{KVTransfer{Role: RoleConsumer, Connector: "NixlConnector"}, true},
		{KVTransfer{Role: RoleConsumer, Connector: "MooncakeConnector"}, true},
		{KVTransfer{Role: RoleConsumer, Connector: "MooncakeConnectorV1"}, true},
		{KVTransfer{Role: RoleConsumer, Connector: "MooncakeLayerwiseConnector"}, true},
		{KVTransfer{Role: RoleConsumer, Connector: "MoRIIOConnector"}, true},
		{KVTransfer{Role: RoleConsumer, Connector: "pd"}, true},
		{KVTransfer{Role: RoleProducer, Connector: "NixlConnector"}, false},
		{KVTransfer{Role: RoleBoth, Connector: "NixlConnector"}, false},
		{KVTransfer{Role: RoleNone, Connector: "NixlConnector"}, false},
		{KVTransfer{Role: RoleConsumer, Connector: "OffloadingConnector"}, false},
		{KVTransfer{Role: RoleConsumer, Connector: "unknown"}, false},
		{KVTransfer{Role: RoleConsumer, Connector: "MultiConnector", Nested: nested("OffloadingConnector", "NixlConnector")}, true},
		{KVTransfer{Role: RoleConsumer, Connector: "multi", Nested: nested("offload", "pd")}, true},
		{KVTransfer{Role: RoleConsumer, Connector: "MultiConnector", Nested: nested("OffloadingConnector")}, false},
		{KVTransfer{Role: RoleBoth, Connector: "MultiConnector", Nested: nested("NixlConnector")}, false},
		{KVTransfer{Role: RoleConsumer, Connector: "unknown", Nested: nested("NixlConnector")}, false},
		{KVTransfer{Role: RoleConsumer, Connector: "MultiConnector", Nested: []KVTransfer{{Connector: "multi", Nested: nested("pd")}}}, true},
	} {
		require.Equal(t, tc.want, isPDConsumer(tc.t), "%+v", tc.t)
	}
	for _, s := range []string{"", "none", "kv_consumer", "consumer", "kv_both", "kv_producer"} {
		_, err := ParseKVRole(s)
		require.NoError(t, err, s)
	}
	_, err := ParseKVRole("kv_reader")
	require.Error(t, err)

	// The default policy does not ask for a role: every connector and role alike.
	for _, kv := range []KVTransfer{{}, {Role: RoleBoth, Connector: "NixlConnector"}, {Role: RoleConsumer, Connector: "unknown"}, pdConsumer} {
		dec, _ := dispatch(newDispatcher(t, Config{MaxNumSeqs: 8, KV: kv}), Step{}, decode1, tail1)
		require.Equal(t, Full, dec.Mode)
		dec, _ = dispatch(newDispatcher(t, Config{MaxNumSeqs: 8, KV: kv, Policy: ConsumerOneToken}), Step{}, decode1, tail1)
		require.Equal(t, isPDConsumer(kv), dec.Mode == Full)
	}
}
