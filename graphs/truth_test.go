package graphs

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// pdConsumer is the decode side of a P/D pair.
var pdConsumer = KVTransfer{Role: RoleConsumer, Connector: "NixlConnector"}

// newDispatcher builds a dispatcher whose graphs all exist.
func newDispatcher(t testing.TB, c Config) *Dispatcher {
	t.Helper()
	if c.MaxNumBatchedTokens == 0 {
		c.MaxNumBatchedTokens = 8192
	}
	d, err := New(c)
	require.NoError(t, err)
	d.SetCaptureState(AllCaptured)
	return d
}

// dispatch runs rows through d, with fresh verdicts.
func dispatch(d *Dispatcher, step Step, rows ...Row) (Decision, []RowVerdict) {
	v := make([]RowVerdict, len(rows))
	return d.Dispatch(MakeRows(rows), step, v), v
}

// short writes a decision as the tables do: F@tokens/rows, P@tokens, N@tokens.
func short(d Decision) string {
	switch d.Mode {
	case Full:
		return fmt.Sprintf("F@%d/%d", d.PaddedTokens, d.PaddedReqs)
	case Piecewise:
		return fmt.Sprintf("P@%d", d.PaddedTokens)
	}
	return fmt.Sprintf("N@%d", d.PaddedTokens)
}

// rows of the truth table, as (s, d, placeholders, c, P).
var (
	decode1   = Row{1, 0, 0, 200, 128}
	tail1     = Row{1, 0, 0, 128, 129}
	fresh1    = Row{1, 0, 0, 0, 1}
	midChunk1 = Row{1, 0, 0, 64, 129}
	tail2     = Row{2, 0, 0, 127, 129}
	prefill64 = Row{64, 0, 0, 0, 64}
	verify4   = Row{4, 3, 0, 200, 128}
	padded4   = Row{4, 3, 3, 128, 129}
	fresh4    = Row{4, 0, 0, 0, 4}
	last4     = Row{4, 0, 0, 125, 129}
	drafted4  = Row{4, 3, 0, 128, 129}
	padMid4   = Row{4, 3, 3, 64, 129}
	padFresh4 = Row{4, 3, 3, 0, 1}
)

func TestTruthTable(t *testing.T) {
	for _, tc := range []struct {
		n    int
		name string
		k    int
		rows []Row

		shape, strict, consumer, oneNew, hardened string
		reason                                    Reason // under the default policy
	}{
		{1, "decodes", 0, []Row{decode1, decode1, decode1}, "F@4/4", "F@4/4", "F@4/4", "F@4/4", "F@4/4", ReasonFull},
		{2, "decodes and tail", 0, []Row{decode1, decode1, tail1}, "F@4/4", "P@4", "F@4/4", "F@4/4", "F@4/4", ReasonFull},
		{3, "tail alone", 0, []Row{tail1}, "F@1/1", "P@1", "F@1/1", "F@1/1", "F@1/1", ReasonFull},
		{4, "fresh one-token prompt", 0, []Row{fresh1}, "F@1/1", "P@1", "P@1", "P@1", "P@1", ReasonFreshOneToken},
		{5, "decode and fresh", 0, []Row{decode1, fresh1}, "F@2/2", "P@2", "P@2", "P@2", "P@2", ReasonFreshOneToken},
		{6, "decode, tail and fresh", 0, []Row{decode1, tail1, fresh1}, "F@4/4", "P@4", "P@4", "P@4", "P@4", ReasonFreshOneToken},
		{7, "decode and middle chunk of one token", 0, []Row{decode1, midChunk1}, "F@2/2", "P@2", "F@2/2", "F@2/2", "F@2/2", ReasonFull},
		{8, "decode and two-token tail", 0, []Row{decode1, tail2}, "P@4", "P@4", "P@4", "P@4", "P@4", ReasonPrefillRow},
		{9, "two two-token tails", 0, []Row{tail2, tail2}, "P@4", "P@4", "P@4", "P@4", "P@4", ReasonPrefillRow},
		{10, "decode and long prefill", 0, []Row{decode1, prefill64}, "N@65", "N@65", "N@65", "N@65", "N@65", ReasonPrefillRow},
		{11, "verify rows", 3, []Row{verify4, verify4, verify4}, "F@16/4", "F@16/4", "F@16/4", "F@16/4", "F@16/4", ReasonFull},
		{12, "verify rows and padded tail", 3, []Row{verify4, verify4, padded4}, "F@16/4", "P@16", "P@16", "F@16/4", "F@16/4", ReasonFull},
		{13, "padded tail alone", 3, []Row{padded4}, "F@4/1", "P@4", "P@4", "F@4/1", "F@4/1", ReasonFull},
		{14, "verify rows and unpadded tail", 3, []Row{verify4, verify4, tail1}, "P@16", "P@16", "P@16", "P@16", "P@16", ReasonNonUniform},
		{15, "unpadded tail alone", 3, []Row{tail1}, "P@1", "P@1", "P@1", "P@1", "P@1", ReasonNoWidth},
		{16, "fresh prompt of decode width", 3, []Row{fresh4}, "F@4/1", "P@4", "P@4", "P@4", "P@4", ReasonPrefillRow},
		{17, "verify rows and last chunk of decode width", 3, []Row{verify4, verify4, last4}, "F@16/4", "P@16", "P@16", "P@16", "P@16", ReasonPrefillRow},
		{18, "verify row and decode without drafts", 3, []Row{verify4, decode1}, "P@8", "P@8", "P@8", "P@8", "P@8", ReasonNonUniform},
		{19, "decodes without drafts", 3, []Row{decode1, decode1, decode1}, "P@4", "P@4", "P@4", "P@4", "P@4", ReasonNoWidth},
		{20, "verify row and tail with real drafts", 3, []Row{verify4, drafted4}, "F@8/2", "P@8", "P@8", "F@8/2", "P@8", ReasonPrefillRow},
		{21, "verify row and padded middle chunk", 3, []Row{verify4, padMid4}, "F@8/2", "P@8", "P@8", "F@8/2", "P@8", ReasonPrefillRow},
		{22, "verify row and padded fresh prompt", 3, []Row{verify4, padFresh4}, "F@8/2", "P@8", "P@8", "P@8", "P@8", ReasonFreshOneToken},
	} {
		for policy, want := range map[Policy]string{
			ShapeOnly: tc.shape, Strict: tc.strict, ConsumerOneToken: tc.consumer, OneNewToken: tc.oneNew, OneNewTokenHardened: tc.hardened,
		} {
			t.Run(fmt.Sprintf("%d %s/%v", tc.n, tc.name, policy), func(t *testing.T) {
				d := newDispatcher(t, Config{
					Policy: policy, K: tc.k, MaxNumSeqs: 8, KV: pdConsumer,
					Ladder: LadderConfig{Sizes: []int{1, 2, 4, 8, 16, 24}},
				})
				dec, _ := dispatch(d, Step{}, tc.rows...)
				require.Equal(t, want, short(dec))
				if policy == OneNewTokenHardened {
					require.Equal(t, tc.reason, dec.Reason)
				}
				require.Equal(t, dec.Mode == Full, dec.Reason == ReasonFull)
			})
		}
	}
}

// Rows 23 to 27 of the table are properties of the call, not of the rows.
func TestTruthTableCalls(t *testing.T) {
	sizes := LadderConfig{Sizes: []int{1, 2, 4, 8, 16, 24}}
	for _, p := range Policies() {
		t.Run(p.String(), func(t *testing.T) {
			k0 := Config{Policy: p, MaxNumSeqs: 8, KV: pdConsumer, Ladder: sizes}
			k3 := k0
			k3.K = 3

			if p != ShapeOnly { // 23: context parallelism
				k0.PCP, k3.PCP = 2, 2
				dec, v := dispatch(newDispatcher(t, k0), Step{}, decode1, decode1, tail1)
				require.Equal(t, "P@4", short(dec))
				if v[2] == PrefillContextParallel {
					require.Equal(t, ReasonContextParallel, dec.Reason)
				}
				dec, _ = dispatch(newDispatcher(t, k3), Step{}, verify4, verify4, padded4)
				require.Equal(t, "P@16", short(dec))
				k0.PCP, k3.PCP = 0, 0
			}

			// 24: dummies and captures are decided by shape alone.
			d := newDispatcher(t, k3)
			require.Equal(t, "F@16/4", short(d.Select(d.Dummy(3, 12, 4, Step{}))))
			require.Equal(t, "P@16", short(d.Select(d.Dummy(3, 11, 4, Step{}))))

			d = newDispatcher(t, k0)
			for _, c := range []struct {
				flag   StepFlags
				want   string
				reason Reason
			}{
				{EncoderInputs, "N@3", ReasonEncoderInputs}, // 25
				{Cascade, "P@4", ReasonCascade},             // 26
				{ForcedEager, "N@3", ReasonForcedEager},     // 27
			} {
				dec, _ := dispatch(d, Step{Flags: c.flag}, decode1, decode1, decode1)
				require.Equal(t, c.want, short(dec))
				require.Equal(t, c.reason, dec.Reason)
			}
			k0.Mode = ModeFullDecodeOnly
			dec, _ := dispatch(newDispatcher(t, k0), Step{Flags: Cascade}, decode1)
			require.Equal(t, "N@1", short(dec), "cascade attention without pieces")
		})
	}
}

// The same batches under every configured mode.
func TestModeTable(t *testing.T) {
	mixed := []Row{{4, 0, 0, 0, 4}, {7, 0, 0, 64, 129}, decode1}
	many := func(n int) []Row {
		var rows []Row
		for range n {
			rows = append(rows, decode1)
		}
		return rows
	}
	order := []ModeConfig{ModeNone, ModePiecewise, ModeFull, ModeFullDecodeOnly, ModeFullAndPiecewise}
	for _, tc := range []struct {
		name string
		rows []Row
		want [5]string
		why  [5]Reason
	}{
		{"3 decodes", many(3), [5]string{"N@3", "P@4", "F@4/4", "F@4/4", "F@4/4"},
			[5]Reason{ReasonModeConfig, ReasonModeConfig, ReasonFull, ReasonFull, ReasonFull}},
		{"3 requests, 12 mixed tokens", mixed, [5]string{"N@12", "P@16", "F@16/8", "N@12", "P@16"},
			[5]Reason{ReasonModeConfig, ReasonModeConfig, ReasonFull, ReasonPrefillRow, ReasonPrefillRow}},
		{"8 decodes", many(8), [5]string{"N@8", "P@8", "F@8/8", "F@8/8", "F@8/8"},
			[5]Reason{ReasonModeConfig, ReasonModeConfig, ReasonFull, ReasonFull, ReasonFull}},
		{"9 decodes", many(9), [5]string{"N@9", "P@16", "N@9", "N@9", "P@16"},
			[5]Reason{ReasonModeConfig, ReasonModeConfig, ReasonBeyondLadder, ReasonBeyondLadder, ReasonBeyondLadder}},
		{"17 tokens", many(17), [5]string{"N@17", "N@17", "N@17", "N@17", "N@17"},
			[5]Reason{ReasonModeConfig, ReasonModeConfig, ReasonBeyondLadder, ReasonBeyondLadder, ReasonBeyondLadder}},
	} {
		for i, mode := range order {
			d := newDispatcher(t, Config{Mode: mode, MaxNumSeqs: 8, Ladder: LadderConfig{Sizes: []int{1, 2, 4, 8, 16}}})
			dec, _ := dispatch(d, Step{}, tc.rows...)
			require.Equal(t, tc.want[i], short(dec), "%s under %v", tc.name, mode)
			require.Equal(t, tc.why[i], dec.Reason, "%s under %v", tc.name, mode)
		}
	}
}

func TestModeAlgebra(t *testing.T) {
	for _, tc := range []struct {
		mode          ModeConfig
		decode, mixed Mode
		separate      bool
	}{
		{ModeNone, None, None, false},
		{ModePiecewise, Piecewise, Piecewise, false},
		{ModeFull, Full, Full, false},
		{ModeFullDecodeOnly, Full, None, true},
		{ModeFullAndPiecewise, Full, Piecewise, true},
	} {
		require.Equal(t, tc.decode, tc.mode.Decode(), tc.mode)
		require.Equal(t, tc.mixed, tc.mode.Mixed(), tc.mode)
		require.Equal(t, tc.separate, tc.mode.SeparateDecode(), tc.mode)
		back, err := ParseModeConfig(tc.mode.String())
		require.NoError(t, err)
		require.Equal(t, tc.mode, back)
	}
	require.True(t, None < Piecewise && Piecewise < Full, "ranks agree on the smallest")
	require.Equal(t, ModeFullAndPiecewise, Config{}.Mode, "the default")
	_, err := ParseModeConfig("HALF")
	require.ErrorContains(t, err, "FULL_AND_PIECEWISE")
}

// Graph and metadata must agree on the class of a row. The one illegal state,
// a decode graph over a row whose metadata says prefill, cannot be built: both
// read the same verdict.
func TestCoupling(t *testing.T) {
	decodeKey := Key{Mode: Full, Tokens: 4, Reqs: 4, Uniform: 1}
	for _, tc := range []struct {
		name string
		key  Key
		v    RowVerdict
		ok   bool
	}{
		{"both decode", decodeKey, Decode, true},
		{"both decode, the row a tail", decodeKey, TailOneToken, true},
		{"both prefill", Key{Mode: Piecewise, Tokens: 4}, PrefillChunk, true},
		{"metadata decode, graph PIECEWISE", Key{Mode: Piecewise, Tokens: 4}, TailOneToken, true},
		{"a FULL graph for any batch", Key{Mode: Full, Tokens: 4, Reqs: 4}, PrefillChunk, true},
		{"graph decode, metadata prefill", decodeKey, PrefillByPolicy, false},
		{"graph decode, malformed row", decodeKey, MalformedNewTokens, false},
	} {
		err := CheckRows(tc.key, []RowVerdict{Decode, tc.v})
		if tc.ok {
			require.NoError(t, err, tc.name)
			continue
		}
		var wrong *WrongRowError
		require.ErrorAs(t, err, &wrong, tc.name)
		require.Equal(t, 1, wrong.Row)
		require.Equal(t, tc.v, wrong.Verdict)
		require.ErrorContains(t, err, tc.key.String())
	}
}
