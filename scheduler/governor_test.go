package scheduler

import (
	"math"
	"math/rand"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var truth = stepModel{Base: 0.02, Decode: 1e-4, Prefill: 5e-5, Context: 1e-9}

// teach shows a fit steps of a model, every third with prefill.
func teach(f *stepFit, m stepModel, steps int, r *rand.Rand, disturb func(float64) float64) {
	for i := range steps {
		w := StepWork{Decodes: 1 + r.Intn(64)}
		if i%3 == 0 {
			w.Prefill = 16 + r.Intn(500)
			w.Context = float64(w.Prefill) * float64(1000+r.Intn(12000))
		}
		f.observe(w, disturb(m.predict(w)))
	}
}

func plain(x float64) float64 { return x }

func requireClose(t *testing.T, m stepModel, got stepModel, within float64) {
	t.Helper()
	for _, w := range []StepWork{{Decodes: 4}, {Decodes: 60}, {Decodes: 20, Prefill: 256, Context: 256 * 6000}, {Decodes: 1, Prefill: 64, Context: 64 * 12000}} {
		require.InEpsilon(t, m.predict(w), got.predict(w), within, "%+v", w)
	}
}

func TestStepFitRecoversTheModel(t *testing.T) {
	var f stepFit
	teach(&f, truth, 300, rand.New(rand.NewSource(1)), plain)
	requireClose(t, truth, f.model, 0.01)
}

func TestStepFitBearsNoiseAndOutliers(t *testing.T) {
	r := rand.New(rand.NewSource(2))
	var f stepFit
	teach(&f, truth, 2000, r, func(x float64) float64 {
		x *= 1 + 0.2*(2*r.Float64()-1)
		if r.Intn(100) == 0 {
			x *= 5
		}
		return x
	})
	requireClose(t, truth, f.model, 0.15)
}

func TestStepFitFollowsAChange(t *testing.T) {
	r := rand.New(rand.NewSource(3))
	var f stepFit
	teach(&f, truth, 500, r, plain)
	changed := stepModel{Base: 0.02, Decode: 2e-4, Prefill: 1e-4, Context: 1e-9}
	teach(&f, changed, 200, r, plain)
	requireClose(t, changed, f.model, 0.05)
}

func TestStepFitIgnoresNonsense(t *testing.T) {
	var f stepFit
	for _, s := range []float64{0, -1, math.NaN(), math.Inf(1)} {
		f.observe(StepWork{Decodes: 1}, s)
		f.observe(StepWork{Decodes: 1, Prefill: 5}, s)
	}
	f.observe(StepWork{}, 1)
	f.observe(StepWork{Decodes: -1}, 1)
	d, p := f.samples()
	require.Zero(t, d+p)
	require.Equal(t, stepModel{}, f.model)
}

func TestStepFitAllocatesNothing(t *testing.T) {
	var f stepFit
	require.Zero(t, testing.AllocsPerRun(100, func() {
		f.observe(StepWork{Decodes: 3}, 0.02)
		f.observe(StepWork{Decodes: 3, Prefill: 9, Context: 900}, 0.03)
	}))
}

func TestGovernorStartsSmall(t *testing.T) {
	g, err := newGovernor(GovernorConfig{})
	require.NoError(t, err)
	require.EqualValues(t, math.MaxInt32, g.cap(0, 1000), "nobody decodes")
	require.EqualValues(t, 64, g.cap(5, 1000), "nothing is known yet")
}

// Attempts are held back while those that decode end in time, for so many steps at
// most, and nobody is where nothing decodes.
func TestGovernorWaitsForQuiet(t *testing.T) {
	g, err := newGovernor(GovernorConfig{Quiet: 10})
	require.NoError(t, err)
	require.False(t, g.waits(0))
	require.True(t, g.waits(10))
	require.False(t, g.waits(11))
	for range 4 {
		g.stepped(Agreement{}, true)
		g.stepped(Agreement{}, false)
	}
	require.True(t, g.waits(6))
	require.False(t, g.waits(7), "four of ten are over")
	g.stepped(Agreement{Chunk: true}, false)
	require.True(t, g.waits(10), "the next chunk waits anew")

	teach(&g.fit, truth, 300, rand.New(rand.NewSource(4)), plain)
	own := truth.append(100, 100*8000)
	require.InEpsilon(t, own+7*truth.decodeOnly(4), g.takes(100, 4, 6, 8000).Seconds(), 0.02, "behind those that decode")
	off, err := newGovernor(GovernorConfig{})
	require.NoError(t, err)
	require.False(t, off.waits(1))
}

// The mean over a chunk's step and its interval is the target.
func TestGovernorKeepsTheTarget(t *testing.T) {
	for _, interval := range []int{NoInterval, 1, 3} {
		g, err := newGovernor(GovernorConfig{TargetRatio: 1.05, Interval: interval})
		require.NoError(t, err)
		teach(&g.fit, truth, 300, rand.New(rand.NewSource(4)), plain)
		var total float64
		steps := 4000
		for range steps {
			w := StepWork{Decodes: 32}
			if n := int(g.cap(32, 8000)); n > 0 {
				w.Prefill, w.Context = n, float64(n)*8000
			}
			g.stepped(Agreement{Chunk: w.Prefill > 0}, false)
			total += truth.predict(w)
		}
		require.InEpsilon(t, 1.05, total/float64(steps)/truth.decodeOnly(32), 0.005)
	}
}

func TestGovernorAbsoluteTarget(t *testing.T) {
	g, err := newGovernor(GovernorConfig{TargetTPOT: 30 * time.Millisecond, Interval: NoInterval})
	require.NoError(t, err)
	teach(&g.fit, truth, 300, rand.New(rand.NewSource(5)), plain)
	g.stepped(Agreement{Chunk: true}, false)
	n := g.cap(10, 4000)
	require.InEpsilon(t, 0.030, truth.predict(StepWork{Decodes: 10, Prefill: int(n), Context: float64(n) * 4000}), 0.02)
}

// Steps without append tokens leave their allowance to the next chunk, up to a
// bound; a chunk takes all of it.
func TestGovernorSaves(t *testing.T) {
	g, err := newGovernor(GovernorConfig{TargetRatio: 1.2, Savings: 5})
	require.NoError(t, err)
	require.EqualValues(t, 64, g.cap(8, 8000), "nothing is known yet")
	teach(&g.fit, truth, 300, rand.New(rand.NewSource(7)), plain)
	g.stepped(Agreement{Chunk: true}, false)
	require.Zero(t, g.cap(8, 8000))
	g.stepped(Agreement{}, false)
	two := g.cap(8, 8000)
	for _, steps := range []int32{3, 4, 5, 5, 5} {
		g.stepped(Agreement{}, false)
		require.InDelta(t, float64(two)*float64(steps)/2, float64(g.cap(8, 8000)), 1)
	}
	g.stepped(Agreement{Chunk: true}, false)
	require.Zero(t, g.cap(8, 8000))
}

// When even a small chunk is too much, the interval is stretched, and at its
// end the attempts still progress.
func TestGovernorStretchesTheInterval(t *testing.T) {
	g, err := newGovernor(GovernorConfig{TargetRatio: 1.01, MinTokens: 256, MaxInterval: 5})
	require.NoError(t, err)
	teach(&g.fit, truth, 300, rand.New(rand.NewSource(6)), plain)
	n, interval := g.chunk(8, 8000)
	require.Equal(t, 5, interval)
	require.Equal(t, 256, n)
	g.stepped(Agreement{Chunk: true}, false)
	for range 5 {
		require.Zero(t, g.cap(8, 8000))
		g.stepped(Agreement{}, false)
	}
	require.EqualValues(t, 256, g.cap(8, 8000))
}

func TestRanksAgree(t *testing.T) {
	require.Equal(t, Agreement{Cap: 40, Chunk: true}, Agree([]Proposal{{Cap: math.MaxInt32, Wants: WantsAppend}, {Cap: 40}}))
	require.Equal(t, Agreement{Cap: 40}, Agree([]Proposal{{Cap: 80}, {Cap: 40}}), "nobody wants a chunk")
	require.Equal(t, Agreement{}, Agree([]Proposal{{Cap: 80, Wants: WantsAppend}, {Cap: 0}}), "one rank bears none")
	require.Equal(t, Agreement{Cap: math.MaxInt32}, Agree(nil))
}

func TestGovernorConfigSaysWhatIsWrong(t *testing.T) {
	for _, c := range []GovernorConfig{
		{TargetRatio: 1}, {TargetRatio: math.NaN()}, {TargetTPOT: -1}, {Interval: -2}, {Interval: 5, MaxInterval: 4}, {MinTokens: -1}, {Quiet: -1}, {Quiet: 1001}, {Savings: -1}, {Interval: 5, Savings: 5},
	} {
		_, err := newGovernor(c)
		require.Error(t, err, "%+v", c)
	}
}
