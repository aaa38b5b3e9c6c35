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
