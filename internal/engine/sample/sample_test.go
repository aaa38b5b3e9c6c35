package sample

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// slow is an independent account of the probabilities that the filters leave:
// whole sorted vectors, as the definitions read.
func slow(p Params, logits []float32) []float64 {
	probs := func(x []float64) []float64 {
		top, sum := math.Inf(-1), 0.0
		for _, v := range x {
			top = math.Max(top, v)
		}
		out := make([]float64, len(x))
		for i, v := range x {
			out[i] = math.Exp(v - top)
			sum += out[i]
		}
		for i := range out {
			out[i] /= sum
		}
		return out
	}
	x := make([]float64, len(logits))
	for i, v := range logits {
		x[i] = float64(v) / p.Temperature
	}
	drop := math.Inf(-1)
	if q := probs(x); p.MinP > 0 {
		for i := range x {
			if q[i] < p.MinP*slices.Max(q)*(1-1e-12) {
				x[i] = drop
			}
		}
	}
	order := make([]int, len(x))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(x[b], x[a]) })
	if p.TopK > 0 && p.TopK < len(x) {
		least := x[order[p.TopK-1]]
		for i := range x {
			if x[i] < least {
				x[i] = drop
			}
		}
	}
	if p.TopP > 0 && p.TopP < 1 {
		q, before := probs(x), 0.0
		for _, i := range order {
			if before >= p.TopP {
				x[i] = drop
			}
			before += q[i]
		}
	}
	return probs(x)
}

// Tokens come as often as the slow account says: chi-square over 20,000 draws of
// one seed, with the bound that a right sampler passes in all but one of 10^9 runs.
func TestDrawsFollowTheFilteredDistribution(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 11))
	logits := make([]float32, 40)
	for i := range logits {
		logits[i] = float32(rng.NormFloat64() * 1.5)
	}
	logits[3], logits[17] = logits[5], logits[5] // equal ones
	for _, p := range []Params{
		{Temperature: 1}, {Temperature: 0.5}, {Temperature: 1.7}, {Temperature: 1, TopK: 1}, {Temperature: 1, TopK: 7}, {Temperature: 1, TopK: 1000},
		{Temperature: 1, TopP: 0.6}, {Temperature: 1, TopP: 1e-9}, {Temperature: 0.8, TopP: 0.9, TopK: 9}, {Temperature: 1, MinP: 0.15},
		{Temperature: 1.3, MinP: 0.05, TopK: 12, TopP: 0.8}, {Temperature: 1, MinP: 1},
	} {
		t.Run(fmt.Sprintf("%v", p), func(t *testing.T) {
			p.Seed = 5
			const draws = 20000
			s := New(p, nil)
			count := make([]float64, len(logits))
			for n := range draws {
				count[s.Choose(n, slices.Clone(logits))]++
			}
			chi, free := 0.0, -1.0
			for i, q := range slow(p, logits) {
				if q == 0 {
					require.Zero(t, count[i], "token %d is filtered out", i)
					continue
				}
				d := count[i] - q*draws
				chi += d * d / (q * draws)
				free++
			}
			// Wilson and Hilferty's approximation of the quantile at 6 standard deviations.
			bound := 0.0
			if free > 0 {
				c := 2 / (9 * free)
				bound = free * math.Pow(1-c+6*math.Sqrt(c), 3)
			}
			require.LessOrEqual(t, chi, bound)
		})
	}
}

// The same sampler with another temperature must not pass as this one.
func TestTheChiSquareBoundNoticesAWrongTemperature(t *testing.T) {
	logits := []float32{0, 0.5, 1, 1.5}
	s := New(Params{Temperature: 1.2}, nil)
	count := make([]float64, len(logits))
	const draws = 20000
	for n := range draws {
		count[s.Choose(n, slices.Clone(logits))]++
	}
	chi := 0.0
	for i, q := range slow(Params{Temperature: 1}, logits) {
		chi += (count[i] - q*draws) * (count[i] - q*draws) / (q * draws)
	}
	c := 2.0 / 27
	require.Greater(t, chi, 3*math.Pow(1-c+6*math.Sqrt(c), 3))
}

// What is left after the filters is what the slow account leaves, for random
// logits and parameters.
func TestFiltersKeepWhatTheSlowAccountKeeps(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		logits := make([]float32, 1+rng.IntN(30))
		for i := range logits {
			logits[i] = float32(rng.IntN(24)) / 4 // many are equal
		}
		p := Params{Temperature: 0.2 + rng.Float64()*1.8, TopK: rng.IntN(len(logits) + 2), TopP: 0.05 + 0.95*rng.Float64(), MinP: rng.Float64() * 0.4}
		s := New(p, nil)
		want := slow(p, logits)
		s.draw(0, logits, logits[best(logits)])
		kept := map[Token]bool{}
		for mark := range 200 { // every token with more than 0.5 % is drawn
			s.p.Seed = uint64(mark)
			kept[s.draw(0, slices.Clone(logits), logits[best(logits)])] = true
		}
		for tok := range kept {
			require.Positive(t, want[tok], "%+v of %v keeps token %d", p, logits, tok)
		}
	}
}

func TestDrawsDependOnSeedAndPlaceAlone(t *testing.T) {
	logits := make([]float32, 300)
	p := Params{Temperature: 1, Seed: 9}
	sequence := func(p Params, prompt []Token, n int) (out []Token) {
		s := New(p, prompt)
		for i := range n {
			out = append(out, s.Choose(i, slices.Clone(logits)))
		}
		return out
	}
	want := sequence(p, []Token{1, 2, 3}, 50)
	require.Equal(t, want, sequence(p, []Token{7, 8, 9}, 50), "the prompt's tokens do not matter")
	s := New(p, []Token{1, 2, 3})
	for _, n := range []int{49, 3, 3, 20, 0} {
		require.Equal(t, want[n], s.Choose(n, slices.Clone(logits)), "in any order, and again")
	}
	longer := append([]Token{1, 2, 3}, want[:20]...)
	require.Equal(t, want[20:], sequence(p, longer, 30), "a continuation goes on with the same numbers")
	p.Seed = 10
	other := sequence(p, []Token{1, 2, 3}, 50)
	same := 0
	for i := range other {
		if other[i] == want[i] {
			same++
		}
	}
	require.Less(t, same, 5, "another seed draws others")
}

func TestGreedyTakesTheFirstOfTheLargest(t *testing.T) {
	s := New(Params{}, nil)
	require.False(t, s.OnHost(0), "a device finds it by itself")
	require.EqualValues(t, 1, s.Choose(0, []float32{0, 3, 3, 2}))
}

func TestPenalties(t *testing.T) {
	base := []float32{2, 1.9, -1, 0.5}
	after := func(p Params, prompt []Token, out ...Token) []float32 {
		s := New(p, prompt)
		require.True(t, s.OnHost(0))
		for i, tok := range out {
			force := []float32{-9, -9, -9, -9}
			force[tok] = 90
			require.Equal(t, tok, s.Choose(i, force))
		}
		x := slices.Clone(base)
		s.adjust(len(out), x)
		return x
	}
	require.InDeltaSlice(t, []float32{2, 1.9, -1, 0.5}, after(Params{Presence: 0.5}, []Token{0, 1}), 1e-6, "not of the prompt")
	require.InDeltaSlice(t, []float32{1.5, 1.4, -1, 0.5}, after(Params{Presence: 0.5}, nil, 0, 1, 0), 1e-6)
	require.InDeltaSlice(t, []float32{1, 1.4, -1, 0.5}, after(Params{Frequency: 0.5}, nil, 0, 1, 0), 1e-6)
	require.InDeltaSlice(t, []float32{1, 1.9, -2, 0.5}, after(Params{Repetition: 2}, []Token{2}, 0, 0), 1e-6, "divides what is positive, multiplies the rest")
	require.InDeltaSlice(t, []float32{0.25, 1.9, -1, 0.5}, after(Params{Repetition: 2, Frequency: 0.25, Presence: 0.25}, nil, 0, 0), 1e-6, "repetition before the others")
}

// A place that is computed again, after a preemption or a failed step, counts once.
func TestAPlaceThatIsChosenAgainCountsOnce(t *testing.T) {
	s := New(Params{Frequency: 1, Logprobs: true, Top: 2}, nil)
	logits := func() []float32 { return []float32{3, 2.5, 0} }
	var first []Token
	for n := range 4 {
		first = append(first, s.Choose(n, logits()))
	}
	require.Equal(t, []Token{0, 1, 0, 1}, first)
	require.EqualValues(t, 1, s.Choose(1, logits()))
	require.EqualValues(t, 0, s.Choose(2, logits()))
	require.Len(t, s.Take(0, 3), 3)
	require.EqualValues(t, 1, s.Choose(3, logits()))
	require.EqualValues(t, 1, s.Take(3, 1)[0].Chosen.Token)
}

func TestBiasAndEndsBelowTheLeastLength(t *testing.T) {
	s := New(Params{Bias: []Bias{{2, 5}, {0, -100}}}, nil)
	require.EqualValues(t, 2, s.Choose(0, []float32{4, 3, 0}))
	s = New(Params{MinTokens: 2, Ends: []Token{0, 2}}, nil)
	for n, want := range []Token{1, 1, 0} {
		require.Equal(t, n < 2, s.OnHost(n))
		require.Equal(t, want, s.Choose(n, []float32{4, 3, 5 - 2}))
	}
	s = New(Params{MinTokens: 1, Ends: []Token{0, 1, 2}, Temperature: 1}, nil)
	require.Negative(t, s.Choose(0, []float32{4, 3, 5}), "nothing is possible")
}

func TestLogprobsAreOfTheLogitsAsTheyCame(t *testing.T) {
	s := New(Params{Temperature: 0.3, Bias: []Bias{{3, 100}}, Logprobs: true, Top: 2}, nil)
	require.EqualValues(t, 3, s.Choose(0, []float32{1, 2, 3, 0}))
	got := s.Take(0, 1)[0]
	norm := math.Log(math.Exp(1) + math.Exp(2) + math.Exp(3) + 1)
	require.EqualValues(t, 3, got.Chosen.Token)
	require.InDelta(t, -norm, got.Chosen.Value, 1e-9)
	require.Len(t, got.Top, 2)
	require.EqualValues(t, 2, got.Top[0].Token)
	require.InDelta(t, 3-norm, got.Top[0].Value, 1e-9)
	require.EqualValues(t, 1, got.Top[1].Token)
	require.Equal(t, []Logprob{{1, 5}, {3, 5}, {0, 4}}, likeliest([]float32{4, 5, 1, 5, 4}, 3))
}

func TestLogitsThatAreNoNumbers(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, logits := range [][]float32{{1, nan, 2}, {1, inf}, {-inf, -inf}, {}} {
		for _, p := range []Params{{Logprobs: true, Top: 3}, {Temperature: 1}} {
			require.Negative(t, New(p, nil).Choose(0, slices.Clone(logits)), "%v", logits)
		}
	}
	require.EqualValues(t, 1, New(Params{Temperature: 1, TopP: 0.9}, nil).Choose(0, []float32{-inf, 0, -inf}))
	require.EqualValues(t, 0, New(Params{Temperature: 1e-4, TopP: 0.9}, nil).Choose(0, []float32{3e38, -3e38}), "nothing overflows")
}

func TestValidateNamesTheFieldAndTheValue(t *testing.T) {
	require.NoError(t, (&Params{}).Validate(10))
	require.NoError(t, (&Params{Temperature: 2, TopK: -1, TopP: 1, MinP: 1, Presence: -2, Frequency: 2, Repetition: 9, Top: 20, Bias: []Bias{{9, -100}}}).Validate(10))
	for field, p := range map[string]Params{
		"temperature": {Temperature: math.NaN()}, "top_k": {TopK: -2}, "top_p": {TopP: 1.01}, "min_p": {MinP: -0.1}, "presence_penalty": {Presence: 2.5},
		"frequency_penalty": {Frequency: -3}, "repetition_penalty": {Repetition: math.Inf(1)}, "min_tokens": {MinTokens: -1}, "logprobs": {Top: 21},
		"logit_bias": {Bias: []Bias{{10, 1}}},
	} {
		var e *RangeError
		require.True(t, errors.As(p.Validate(10), &e), field)
		require.Equal(t, field, e.Field)
	}
	require.ErrorContains(t, (&Params{Bias: []Bias{{1, 101}}}).Validate(10), "101")
}

func BenchmarkTopPOfALargeVocabulary(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 1))
	logits := make([]float32, 151936)
	for i := range logits {
		logits[i] = float32(rng.NormFloat64())
	}
	s := New(Params{Temperature: 0.7, TopP: 0.9, TopK: 50}, nil)
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		s.Choose(n, logits)
	}
}

// The scores of a prompt are the log probabilities of its own tokens behind each
// other, with their ranks; the first has none.
func TestScoresOfAPrompt(t *testing.T) {
	prompt := []Token{2, 0, 3, 3}
	s := New(Params{Prompt: true, PromptTop: 2, Temperature: 1.3, Bias: []Bias{{1, 50}}}, prompt)
	require.Equal(t, 3, s.Scored())
	rows := [][]float32{{1, 4, 2, 4}, {0, 0, 0, 0}, {-1, 7, 2, 6.5}}
	for _, pos := range []int{2, 0, 1, 0} {
		require.True(t, s.Score(pos, rows[pos]))
	}
	want := func(pos int, tok Token) float64 {
		sum := 0.0
		for _, v := range rows[pos] {
			sum += math.Exp(float64(v))
		}
		return float64(rows[pos][tok]) - math.Log(sum)
	}
	got, err := s.TakeScores()
	require.NoError(t, err)
	require.Equal(t, Score{Logprobs: Logprobs{Chosen: Logprob{Token: 2}}}, got[0])
	for i, x := range []struct {
		rank int
		top  []Token
	}{{4, []Token{1, 3}}, {4, []Token{0, 1}}, {2, []Token{1, 3}}} {
		at := got[i+1]
		require.Equal(t, x.rank, at.Rank)
		require.Equal(t, prompt[i+1], at.Chosen.Token)
		require.InDelta(t, want(i, prompt[i+1]), at.Chosen.Value, 1e-12, "as the model gave them: no temperature, no bias")
		for j, tok := range x.top {
			require.Equal(t, tok, at.Top[j].Token)
			require.InDelta(t, want(i, tok), at.Top[j].Value, 1e-12)
		}
	}
	require.Zero(t, s.Scored(), "they were taken")
}

func TestScoresThatAreMissing(t *testing.T) {
	s := New(Params{Prompt: true}, []Token{1, 0, 1})
	require.True(t, s.Score(0, []float32{0, 1}))
	require.False(t, s.Score(1, []float32{0, float32(math.NaN())}))
	_, err := s.TakeScores()
	var missing *MissingScoreError
	require.ErrorAs(t, err, &missing)
	require.Equal(t, MissingScoreError{2, 3}, *missing)
	got, err := New(Params{Prompt: true}, []Token{1}).TakeScores()
	require.NoError(t, err)
	require.Len(t, got, 1, "one token has nothing before it")
	none := New(Params{}, []Token{1, 2})
	require.Zero(t, none.Scored())
	got, err = none.TakeScores()
	require.NoError(t, err)
	require.Nil(t, got)
}
