package points

import (
	"bytes"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/internal/bench/measure"
	"github.com/sluice-serving/sluice/internal/bench/scrape"
	"github.com/sluice-serving/sluice/internal/sim"
)

// Steps of 1 ms and 10 µs a row, half a millisecond more without a FULL graph,
// and prompts at 200,000 tokens a second.
const stepTimes = `# X, context 1152
m,decode,1,FULL,1.01,ms
m,decode,101,FULL,2.01,ms
m,decode,1,PIECEWISE,1.51,ms
m,decode,101,PIECEWISE,2.51,ms
m,decode,1,NONE,1.51,ms
m,decode,101,NONE,2.51,ms
m,prefill,1000,NONE,200,ktok/s
m,prefill,4000,NONE,200,ktok/s
`

func madeSteps(model string) (*sim.Steps, error) {
	if model != "m" {
		return nil, errors.New("no steps of " + model)
	}
	return sim.ReadSteps(strings.NewReader(stepTimes), model)
}

func TestPredictionsOfTails(t *testing.T) {
	p := Point{Table: Tails, Model: "random:m", Input: 1024, Output: 256, Rate: 16, Policy: Strict, Seconds: 20}
	strict := line(p, 1, 1.1, 1.7, 0.02)
	strict.Sizes = Sizes{PrefillerTokens: 160_000, PrefillerStep: 8192, DecoderTokens: 160_000, DecoderStep: 2048, Seqs: 128}
	strict.Full, strict.Piecewise = 10000, 315
	p.Policy = Hardened
	ours := line(p, 1, 1.1, 1.7, 0)
	ours.Sizes, ours.Piecewise = strict.Sizes, 0
	list, err := Predict([]Line{strict, ours}, Tails, madeSteps, Assumed{})
	require.NoError(t, err)
	require.Len(t, list, 2)
	by := func(c Comparison) map[string]Figure {
		out := map[string]Figure{}
		for _, f := range c.Figures {
			out[f.Name] = f
		}
		return out
	}
	s, o := by(list[0]), by(list[1])
	require.InDelta(t, 318, s["non-FULL"].Predicted, 3, "arrivals less those of one step")
	require.InDelta(t, 1.06, s["TPOT ms"].Predicted, 0.02)
	require.InDelta(t, 9.5, s["TTFT p50 ms"].Predicted, 2, "a prompt of 5.1 ms, hops of 1.5 ms, and up to three steps of the Decoder")
	require.Zero(t, o["non-FULL"].Predicted)
	require.Zero(t, o["non-FULL"].Off())
	require.Greater(t, s["ITL p99 ms"].Predicted, o["ITL p99 ms"].Predicted)
	require.InDelta(t, s["FULL"].Predicted/10000-1, s["FULL"].Off(), 1e-9)
	require.True(t, math.IsNaN(Figure{Predicted: 1}.Off()))

	var out bytes.Buffer
	require.NoError(t, PrintComparisons(&out, list))
	require.Contains(t, out.String(), "m/1024-256/16/strict/20s")
	require.Contains(t, out.String(), "of 10 figures are within 15 %")
	out.Reset()
	require.NoError(t, PrintComparisons(&out, nil))
	require.Equal(t, "no point is measured\n", out.String())
	strict.Model = "other"
	_, err = Predict([]Line{strict}, Tails, madeSteps, Assumed{})
	require.ErrorContains(t, err, "no steps of other")
}

// A request that meets nobody takes what it took when it was measured, whichever
// parts of that are steps.
func TestPredictionsFromRequestsAlone(t *testing.T) {
	l := line(Point{Table: Tails, Model: "random:m", Input: 1024, Output: 256, Rate: 0.1, Policy: Hardened, Seconds: 40}, 1, 1.1, 1.7, 0)
	l.Sizes = Sizes{PrefillerTokens: 160_000, PrefillerStep: 8192, DecoderTokens: 160_000, DecoderStep: 2048, Seqs: 128}
	l.TokenBytes, l.Client.SentP50Ms = 1e5, 0.5
	l.Alone = &Alone{Output: 64, Prompt: 7, TTFT: 20, Gap: 1.5, Late: 0.4}
	figures := func() map[string]float64 {
		list, err := Predict([]Line{l}, Tails, madeSteps, Assumed{})
		require.NoError(t, err)
		out := map[string]float64{}
		for _, f := range list[0].Figures {
			out[f.Name] = f.Predicted
		}
		return out
	}
	got := figures()
	require.InDelta(t, 20.5, got["TTFT p50 ms"], 0.02)
	require.InDelta(t, 1.5, got["TPOT ms"], 0.02)
	l.Alone = nil
	require.Less(t, figures()["TTFT p50 ms"], 11.0)

	// Of an arm the first event is late, the last one is not.
	arm := line(Point{Table: AppendPrefill, Model: "random:m", Prompt: 1000, Output: 9, Sessions: 2, Turns: 1, Arm: ArmPD, Window: publishedWindow, Think: publishedThink}, 1, 1, 1, 0)
	arm.Sizes, arm.PromptMs, arm.Factor = Sizes{PrefillerTokens: 32_768, DecoderTokens: 32_768, PrefillerStep: 1024, DecoderStep: 2048, Seqs: 64}, 7, 155
	arm.Alone = &Alone{Output: 9, Prompt: 7, TTFT: 20, Gap: 1.5, Late: 4}
	list, err := Predict([]Line{arm}, AppendPrefill, madeSteps, Assumed{})
	require.NoError(t, err)
	for _, f := range list[0].Figures {
		switch f.Name {
		case "TTFT p50 ms":
			require.InDelta(t, 20, f.Predicted, 0.05)
		case "TPOT p50 ms":
			require.InDelta(t, 1.5-4.0/8, f.Predicted, 0.02)
		}
	}
	arm.Alone = nil // the Prefiller's answer takes 2 ms more than its step: 1 ms each way, and twice between the engines
	list, err = Predict([]Line{arm}, AppendPrefill, madeSteps, Assumed{Ahead: 0.5e-3})
	require.NoError(t, err)
	require.InDelta(t, 5+4*1+0.5+1.01, list[0].Figures[1].Predicted, 0.1)
}

// predicted is what the simulator says of one line, by name.
func predicted(t *testing.T, l Line, a Assumed) map[string]float64 {
	t.Helper()
	list, err := Predict([]Line{l}, l.Table, madeSteps, a)
	require.NoError(t, err)
	require.Len(t, list, 1)
	out := map[string]float64{}
	for _, f := range list[0].Figures {
		out[f.Name] = f.Predicted
	}
	return out
}

// A hit that meets nobody takes what one took when it was measured, and what the
// simulator makes of its step is not counted twice.
func TestPredictionsOfHitsAlone(t *testing.T) {
	l := line(Point{Table: AppendPrefill, Model: "random:m", Prompt: 1000, Output: 9, Sessions: 1, Turns: 2, Arm: ArmGuarded, Window: publishedWindow, Think: publishedThink}, 1, 1, 1, 0)
	l.Sizes, l.PromptMs, l.Factor = Sizes{PrefillerTokens: 32_768, DecoderTokens: 32_768, PrefillerStep: 1024, DecoderStep: 2048, Seqs: 64}, 7, 155
	l.Alone = &Alone{Output: 9, Prompt: 7, TTFT: 20, Gap: 1.5, Late: 0.4}
	got := predicted(t, l, Assumed{})
	require.Equal(t, 1.0, got["hits"])
	unknown := 2*got["TTFT p50 ms"] - 20 // of the hit
	require.Less(t, unknown, 6.0)
	for _, hit := range []float64{9, 12} {
		l.Alone.Hit = hit
		got = predicted(t, l, Assumed{})
		require.InDelta(t, (20+hit)/2, got["TTFT p50 ms"], 0.1, "the workload's second turn adds other tokens")
		require.InDelta(t, 1.5-0.4/8, got["TPOT p50 ms"], 0.05)
	}
	l.Alone.Hit = 1 // less than its steps take
	require.InDelta(t, (20+unknown)/2, predicted(t, l, Assumed{})["TTFT p50 ms"], 1e-9)
	l.Alone.Hit, l.Prompt = 9, 40 // too short for a hit
	require.Zero(t, predicted(t, l, Assumed{})["hits"])
}

// Engines of one device slow each other down, if the line says so.
func TestPredictionsOfOneDevice(t *testing.T) {
	l := line(Point{Table: Tails, Model: "random:m", Input: 1024, Output: 256, Rate: 60, Policy: Strict, Seconds: 5}, 1, 1.1, 1.7, 0.02)
	l.Sizes = Sizes{PrefillerTokens: 160_000, PrefillerStep: 8192, DecoderTokens: 160_000, DecoderStep: 2048, Seqs: 128}
	two := predicted(t, l, Assumed{Share: 0.5})
	l.Shared = true
	require.Equal(t, two, predicted(t, l, Assumed{Share: 1}))
	one := predicted(t, l, Assumed{})
	require.Equal(t, one, predicted(t, l, Assumed{Share: 0.5}))
	l.Alone = &Alone{Output: 64, Prompt: 7, TTFT: 20, Gap: 1.5}
	half := predicted(t, l, Assumed{})
	require.Equal(t, half, predicted(t, l, Assumed{Share: 0.5}))
	l.Alone.Beside = 2 // measured: three quarters of the speed
	require.Equal(t, predicted(t, l, Assumed{Share: 0.75}), predicted(t, l, Assumed{}))
	require.Equal(t, half, predicted(t, l, Assumed{Share: 0.5}))
	l.Alone = nil
	require.Greater(t, one["TPOT ms"], 1.2*two["TPOT ms"], "the Prefiller computes a third of the time")
	require.Greater(t, one["TTFT p50 ms"], two["TTFT p50 ms"]+4)
	require.Less(t, one["FULL"], two["FULL"])
}

// What is predicted of several repeats is a median, as what was measured is.
func TestPredictionsOfRepeats(t *testing.T) {
	p := Point{Table: Tails, Model: "random:m", Input: 1024, Output: 256, Rate: 16, Policy: Hardened, Seconds: 5}
	var lines []Line
	var full []float64
	for i := range 3 {
		l := line(p, i+1, 1.1, 1.7, 0)
		l.Sizes = Sizes{PrefillerTokens: 160_000, PrefillerStep: 8192, DecoderTokens: 160_000, DecoderStep: 2048, Seqs: 128}
		lines = append(lines, l)
		full = append(full, predicted(t, l, Assumed{})["FULL"])
	}
	list, err := Predict(lines, Tails, madeSteps, Assumed{})
	require.NoError(t, err)
	require.NotEqual(t, full[0], full[1], "each repeat has its own arrivals")
	require.Equal(t, measure.Percentile(full, 50), list[0].Figures[0].Predicted)
}

func TestMediansOfRuns(t *testing.T) {
	f := figures{{Name: "a", Measured: 7}, {Name: "b"}}
	require.Equal(t, []Figure{{"a", 2, 7}, {"b", 5, 0}}, f.medians([][]float64{{1, 5}, {9, 6}, {2, 4}}))
}

// The spread that a request's gaps have alone is that of all gaps beside what steps
// make of them; the spread that gaps have beside prompts is that of gaps beside prompts.
func TestSpreadOfGaps(t *testing.T) {
	gaps := make([]sim.Gap, 1000)
	for i := range gaps {
		gaps[i] = sim.Gap{Took: 1e-3}
	}
	flat := func(n int, v float64) []float64 {
		out := make([]float64, n)
		for i := range out {
			out[i] = v
		}
		return out
	}
	require.InDelta(t, 1, (*Alone)(nil).gapP99(gaps), 1e-9)
	alone := &Alone{Gap: 0.7, Gaps: flat(201, 0.7)}
	require.InDelta(t, 1, alone.gapP99(gaps), 1e-9)
	alone.Gaps[200], alone.Gaps[199], alone.Gaps[0] = 1.9, 1.9, 0.1 // a hundredth is not later
	require.InDelta(t, 1, alone.gapP99(gaps), 1e-9)
	alone.Gaps[198] = 1.5
	require.InDelta(t, 1.8, alone.gapP99(gaps), 1e-9)
	for i := range 9 {
		gaps[i].Took = 3e-3
	}
	require.InDelta(t, 2.2, alone.gapP99(gaps), 1e-9, "late ones of either kind")

	alone.Beside, alone.BesideGaps = 2, flat(101, 2)
	require.InDelta(t, 2.2, alone.gapP99(gaps), 1e-9, "there are no prompts")
	for i := range gaps {
		gaps[i] = sim.Gap{Took: 1e-3, Beside: 1e-3}
	}
	require.InDelta(t, 1, alone.gapP99(gaps), 1e-9, "what they are alone does not count beside prompts")
	alone.BesideGaps[98], alone.BesideGaps[99], alone.BesideGaps[100] = 6, 6, 6
	require.InDelta(t, 3, alone.gapP99(gaps), 1e-9)
	for i := range gaps {
		gaps[i].Beside = 0.5e-3
	}
	require.InDelta(t, 0.5+1.5+0.5*0.8, alone.gapP99(gaps), 1e-9, "half of each, and both late")
	for i := range gaps[:900] {
		gaps[i].Beside = 0
	}
	require.InDelta(t, 2.2, alone.gapP99(gaps), 1e-9, "few have prompts beside them")
	require.Zero(t, alone.gapP99(nil))
	require.InDelta(t, 1, (*Alone)(nil).gapP99(append(gaps, make([]sim.Gap, 50)...)), 1e-9)
}

func TestPredictionsOfArms(t *testing.T) {
	var lines []Line
	for _, arm := range Arms {
		l := line(Point{Table: AppendPrefill, Model: "random:m", Prompt: 3072, Output: 9, Sessions: 30, Turns: 3, Arm: arm, Window: publishedWindow, Think: publishedThink}, 1, 1, 1, 0)
		l.Sizes = Sizes{PrefillerTokens: 160_000, DecoderTokens: 58_880, PrefillerStep: 3072, DecoderStep: 2048, Seqs: 64, Host: 1 << 30}
		l.PromptMs, l.TokenBytes, l.Factor = 16, 1024, 1085.0/16
		lines = append(lines, l)
	}
	list, err := Predict(lines, AppendPrefill, madeSteps, Assumed{})
	require.NoError(t, err)
	require.Len(t, list, len(Arms))
	hits := map[string]float64{}
	for _, c := range list {
		for _, f := range c.Figures {
			require.False(t, math.IsNaN(f.Predicted), f.Name)
			if f.Name == "hits" {
				hits[c.Row.Arm] = f.Predicted
			}
		}
	}
	require.Zero(t, hits[ArmPD])
	lines[2].Sizes.DecoderTokens = 24_576
	stop, err := Predict(lines[2:3], AppendPrefill, madeSteps, Assumed{Stop: true})
	require.NoError(t, err)
	require.Equal(t, "hits", stop[0].Figures[5].Name)
	require.Less(t, stop[0].Figures[5].Predicted, hits[ArmGuarded], "blocks of ended sessions are in the way")
	for _, arm := range Arms[1:] {
		require.Positive(t, hits[arm], arm)
	}
	// Copies of the host tier slow steps down, where there is one.
	for i, arm := range Arms {
		slowed := predicted(t, lines[i], Assumed{Slowed: 0.5, Restore: 1e8})
		free := predicted(t, lines[i], Assumed{Restore: 1e8})
		if arm == ArmTier {
			require.Greater(t, slowed["TPOT p95 ms"], free["TPOT p95 ms"])
		} else {
			require.Equal(t, free, slowed)
		}
	}
	lines[0].Arm = "reverse"
	_, err = Predict(lines[:1], AppendPrefill, madeSteps, Assumed{})
	require.ErrorContains(t, err, `arm "reverse" is unknown`)
}

// The counters' growth over a point is what the point did.
func TestFiguresOfEngines(t *testing.T) {
	page := func(full, piecewise, none, direct, connection, bytes, block float64) scrape.Page {
		of := func(labels map[string]string, v float64) scrape.Sample {
			return scrape.Sample{Labels: labels, Value: v}
		}
		return scrape.Page{
			"sluice_graph_steps_total": {
				of(map[string]string{"mode": "FULL", "reason": "none"}, full), of(map[string]string{"mode": "PIECEWISE", "reason": "prefill"}, piecewise),
				of(map[string]string{"mode": "NONE", "reason": "too_large"}, none),
			},
			"sluice_step_seconds_sum": {of(map[string]string{"mode": "FULL"}, full/1000), of(map[string]string{"mode": "PIECEWISE"}, piecewise/500)},
			"sluice_kv_transfer_way_bytes_total": {
				of(map[string]string{"way": "direct"}, direct), of(map[string]string{"way": "connection"}, connection),
			},
			"sluice_kv_transfer_bytes_total": {of(map[string]string{"direction": "received"}, bytes), of(map[string]string{"direction": "sent"}, 7)},
			"sluice_kv_block_bytes":          {of(nil, block)},
			"vllm:num_preemptions_total":     {of(map[string]string{"engine": "0"}, full/100), of(map[string]string{"engine": "1"}, none)},
		}
	}
	var f Figures
	f.engines(pages{page(0, 0, 0, 0, 0, 0, 0), page(100, 10, 0, 5, 50, 1000, 64)}, pages{page(0, 0, 0, 0, 0, 0, 0), page(300, 14, 1, 95, 60, 5000, 64)})
	require.Equal(t, []int{200, 4, 1}, []int{f.Full, f.Piecewise, f.None})
	require.InDelta(t, 5.0/205, f.NonFullShare, 1e-12)
	require.Equal(t, map[string]int{"prefill": 4, "too_large": 1}, f.Reasons)
	require.Equal(t, 3, f.Preempted)
	require.InDelta(t, 1, f.FullMs, 1e-9)
	require.InDelta(t, 1.6, f.OtherMs, 1e-9)
	require.Equal(t, "direct", f.Way)
	require.Equal(t, 4000.0, f.KVBytes)
	require.Equal(t, 1.0, f.TokenBytes)
	l := Line{Figures: f}
	require.Contains(t, l.setting(), "by way of direct")
	require.NotContains(t, l.planned(), "direct")
}
