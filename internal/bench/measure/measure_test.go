package measure

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPercentileInterpolatesBetweenRanks(t *testing.T) {
	v := []float64{40, 10, 30, 20}
	require.InDelta(t, 25, Percentile(v, 50), 1e-12)
	require.InDelta(t, 38.5, Percentile(v, 95), 1e-12)
	require.InDelta(t, 10, Percentile(v, 0), 1e-12)
	require.InDelta(t, 40, Percentile(v, 100), 1e-12)
	require.Equal(t, []float64{40, 10, 30, 20}, v, "the input stays as it was")
	require.InDelta(t, 7, Percentile([]float64{7}, 95), 1e-12)
	require.True(t, math.IsNaN(Percentile(nil, 50)))
	require.True(t, math.IsNaN(Mean(nil)))
	require.Equal(t, Spread{}, NewSpread(nil))
}

// The published comparison is the check of the formulas: 270 requests, 2408
// output tokens, 295.233 s against 182.717 s.
func TestFormulasGiveThePublishedFigures(t *testing.T) {
	run := func(total time.Duration) Summary {
		var rs []Record
		for i := range 270 {
			out := 8
			if i < 248 {
				out = 9 // 248×9 + 22×8 = 2408
			}
			rs = append(rs, Record{Turn: i % 3, Status: 200, FinishReason: "stop", PromptTokens: 12270, OutputTokens: out, First: time.Second, Last: 2 * time.Second, End: total})
		}
		return Summarize(rs)
	}
	base, feature := run(295_233*time.Millisecond), run(182_717*time.Millisecond)
	require.Equal(t, 270, base.Requests)
	require.Equal(t, 270, base.Valid)
	require.Equal(t, 180, base.FollowUps)
	require.Equal(t, 2408, base.OutputTokens)
	require.InDelta(t, 8.156, base.OutputThroughput, 0.0005)
	require.InDelta(t, 13.179, feature.OutputThroughput, 0.0005)
	require.InDelta(t, 0.9145, base.RequestThroughput, 0.00005)
	require.InDelta(t, 1.4777, feature.RequestThroughput, 0.00005)
	require.InDelta(t, 0.6158, HigherIsBetter(base.OutputThroughput, feature.OutputThroughput), 0.00005)
	require.InDelta(t, 0.3811, LowerIsBetter(base.TotalSeconds, feature.TotalSeconds), 0.00005)
	require.InDelta(t, 0.9016, LowerIsBetter(45.936, 4.521), 0.0001)
	require.InDelta(t, -0.0960, LowerIsBetter(209.5, 229.6), 0.0001)
	require.InDelta(t, 0.55, LowerIsBetter(60, 27), 1e-12)
}

func TestTTFTStartsAtEligibilityAndTPOTSkipsTheFirstToken(t *testing.T) {
	r := Record{Eligible: 2 * time.Second, Sent: 3 * time.Second, First: 5 * time.Second, Last: 7 * time.Second, OutputTokens: 5}
	d, ok := r.TTFT()
	require.True(t, ok)
	require.Equal(t, 3*time.Second, d)
	d, ok = r.TPOT()
	require.True(t, ok)
	require.Equal(t, 500*time.Millisecond, d)

	one := Record{First: time.Second, Last: time.Second, OutputTokens: 1}
	_, ok = one.TPOT()
	require.False(t, ok, "one token has no time per further token")
	none := Record{}
	_, ok = none.TTFT()
	require.False(t, ok)
}

func TestInvalidAnswersStillCountTheirTokensAndTime(t *testing.T) {
	s := Summarize([]Record{
		{Status: 200, FinishReason: "stop", PromptTokens: 4, OutputTokens: 6, First: time.Second, Last: 2 * time.Second, End: 2 * time.Second},
		{Status: 200, PromptTokens: 4, OutputTokens: 4, Error: "stream cut", First: time.Second, Last: 3 * time.Second, End: 4 * time.Second},
		{Status: 503, Error: "no decoder", End: time.Second},
	})
	require.Equal(t, 3, s.Requests)
	require.Equal(t, 1, s.Valid)
	require.InDelta(t, 2.5, s.OutputThroughput, 1e-12)
	require.InDelta(t, 0.25, s.RequestThroughput, 1e-12)
}

func TestSameAnswer(t *testing.T) {
	ids := func(v ...int32) *Record { return &Record{TokenIDs: v, OutputTokens: len(v), Text: "x"} }
	require.True(t, SameAnswer(ids(1, 2), ids(1, 2)))
	require.False(t, SameAnswer(ids(1, 2), ids(1, 3)), "equal text does not hide different tokens")
	require.False(t, SameAnswer(ids(1, 2), ids(1)))
	require.True(t, SameAnswer(&Record{Text: "a", OutputTokens: 1}, ids(1)) == false)
	require.True(t, SameAnswer(&Record{Text: "a", OutputTokens: 1}, &Record{Text: "a", OutputTokens: 1}))
}

func TestValidNeedsUsageThatAgreesWithTheTokens(t *testing.T) {
	ok := Record{Status: 200, FinishReason: "length", PromptTokens: 3, OutputTokens: 2, TokenIDs: []int32{1, 2}}
	require.True(t, ok.Valid())
	short := ok
	short.TokenIDs = []int32{1}
	require.False(t, short.Valid())
	cut := ok
	cut.FinishReason = ""
	require.False(t, cut.Valid())
}
