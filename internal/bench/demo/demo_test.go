package demo

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/internal/bench/measure"
	"github.com/sluice-serving/sluice/internal/bench/scrape"
)

// good is a run in which everything holds: four sessions of two turns on two ranks.
func good(t *testing.T) *runner {
	t.Helper()
	p := Default()
	p.HitShare, p.MinFallbacks = 0.5, 2
	p.Conversations.Sessions, p.Conversations.Turns, p.Conversations.LongPauses = 4, 2, 0
	w, err := p.Conversations.Generate()
	require.NoError(t, err)
	r := &runner{p: &p, w: w, report: &Report{
		Workload: WorkloadInfo{Hash: w.Hash(), Sessions: 4, Requests: 8, FollowUps: 4, TimeScale: 1},
		Engines: []EngineInfo{
			{Name: "p0", Scheduling: "async", Runner: "1"}, {Name: decoderName, Scheduling: "async", Runner: "1", BlockBytes: 100},
		},
		Uncached: measure.Summary{Requests: 8, Valid: 8}, Control: &Control{Answers: 4, Changed: 4}, PeakBytes: 1 << 20,
	}}
	for rank := range 2 {
		r.report.Probes = append(r.report.Probes,
			Probe{Kind: kindHit, Rank: rank, Route: "local"}, Probe{Kind: kindMiss, Rank: rank, Route: "fallback"})
	}
	for i, a := range arms {
		arm := Arm{
			Name: a.name, Title: a.title, Started: float64(10 * i), Ended: float64(10*i + 10), WorkloadHash: w.Hash(), Correct: 8, SameAsBaseline: 8, QueuePeak: 9, Steps: 100, FullShare: 0.9,
			NonFull: map[string]int{"prefill_row": 10}, KVBlocks: 3, KVBytes: 300, CountedBlocks: 3, CountedBytes: 300,
			Summary: measure.Summary{Requests: 8, Valid: 8, TTFT: measure.Spread{P50: 4, P95: 8}},
		}
		if i == feature {
			arm.QueuePeak, arm.Summary.TTFT.P50 = 3, 1
			arm.Hits, arm.Fallbacks, arm.RankHits, arm.RankFallbacks = 2, 2, []int{1, 1}, []int{1, 1}
			arm.FallbackCost = measure.NewSpread([]float64{2, 4})
		}
		r.report.Arms = append(r.report.Arms, arm)
	}
	return r
}

func TestARunInWhichEverythingHolds(t *testing.T) {
	r := good(t)
	r.check()
	require.Empty(t, r.report.Failed())
}

func TestEveryCheckCanFail(t *testing.T) {
	for want, spoil := range map[string]func(r *runner, a *Arm){
		"probes on rank 1":         func(r *runner, _ *Arm) { r.report.Probes = r.report.Probes[:3] },
		"append: valid answers":    func(_ *runner, a *Arm) { a.Summary.Valid-- },
		"append: correct answers":  func(_ *runner, a *Arm) { a.Correct-- },
		"append: same as baseline": func(_ *runner, a *Arm) { a.SameAsBaseline-- },
		"append: workload":         func(_ *runner, a *Arm) { a.WorkloadHash = "x" },
		"append: cold namespace":   func(_ *runner, a *Arm) { a.records = []measure.Record{{CachedTokens: 16}} },
		"append: joined traces":    func(_ *runner, a *Arm) { a.problems = []string{"s000-t1: the hit read 3 blocks"} },
		"append: KV bytes":         func(_ *runner, a *Arm) { a.CountedBytes++ },
		"append: nothing held":     func(_ *runner, a *Arm) { a.HeldAfter = 1 },
		"one after the other":      func(r *runner, a *Arm) { a.Started = r.report.Arms[baseline].Ended - 0.001 },
		"hits and fallbacks":       func(_ *runner, a *Arm) { a.Hits = 1 },
		"hit share":                func(r *runner, _ *Arm) { r.p.HitShare = 0.6 },
		"fallbacks":                func(r *runner, _ *Arm) { r.p.MinFallbacks = 3 },
		"rank 1 sees both":         func(_ *runner, a *Arm) { a.RankFallbacks = []int{2, 0} },
		"queue peak falls":         func(_ *runner, a *Arm) { a.QueuePeak = 9 },
		"TTFT p50 falls":           func(_ *runner, a *Arm) { a.Summary.TTFT.P50 = 4 },
		"negative control":         func(r *runner, _ *Arm) { r.report.Control.Changed = 3 },
		"one runner":               func(r *runner, _ *Arm) { r.report.Engines[0].Runner = "2" },
		"uncached run":             func(r *runner, _ *Arm) { r.report.Uncached.CachedTokens = 1 },
		"memory":                   func(r *runner, _ *Arm) { r.report.PeakBytes = 2 << 30 },
	} {
		t.Run(want, func(t *testing.T) {
			r := good(t)
			spoil(r, &r.report.Arms[feature])
			r.check()
			var names []string
			for _, c := range r.report.Failed() {
				names = append(names, c.Name)
			}
			require.Contains(t, names, want)
		})
	}
}

func TestTheTableShowsGainsFromUnroundedValues(t *testing.T) {
	r := good(t)
	var out bytes.Buffer
	r.out = &out
	r.check()
	r.table()
	text := out.String()
	for _, line := range []string{
		"| Protocol-valid / answer-correct requests ",
		"| Safe P/D fallbacks / follow-ups ",
		"|   not FULL: prefill_row ",
	} {
		require.Contains(t, text, line)
	}
	row := func(name string) string {
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "| "+name) {
				return line
			}
		}
		return ""
	}
	require.Contains(t, row("TTFT p50"), "+75.00 %")
	require.Contains(t, row("Prefiller queue peak"), "+66.67 %")
	require.Contains(t, row("Local append hits"), "2 / 4")
	require.Contains(t, row("Local append hits"), "N/A")
	require.Contains(t, row("Fallback cost"), "3.000")
	require.NotContains(t, text, "NaN")

	var file bytes.Buffer
	require.NoError(t, r.report.WriteJSON(&file))
	require.True(t, json.Valid(file.Bytes()))
}

func TestCountersOfAnArmAreTheirGrowth(t *testing.T) {
	parse := func(text string) scrape.Page {
		p, err := scrape.Parse(strings.NewReader(text))
		require.NoError(t, err)
		return p
	}
	before := pages{
		prefiller: parse("vllm:prompt_tokens_by_source_total{source=\"local_compute\"} 100\n"),
		decoder:   parse("sluice_graph_steps_total{engine=\"0\",mode=\"FULL\",reason=\"none\"} 10\nsluice_kv_transfer_bytes_total{direction=\"received\"} 5\n"),
	}
	after := pages{
		prefiller: parse("vllm:prompt_tokens_by_source_total{source=\"local_compute\"} 150\nvllm:prompt_tokens_by_source_total{source=\"local_cache_hit\"} 7\n"),
		decoder: parse("sluice_graph_steps_total{engine=\"0\",mode=\"FULL\",reason=\"none\"} 100\nsluice_graph_steps_total{engine=\"1\",mode=\"PIECEWISE\",reason=\"prefill_row\"} 10\n" +
			"sluice_step_seconds_sum{mode=\"FULL\"} 0.18\nsluice_step_seconds_count{mode=\"FULL\"} 90\nsluice_step_seconds_sum{mode=\"PIECEWISE\"} 0.1\nsluice_step_seconds_count{mode=\"PIECEWISE\"} 10\n" +
			"sluice_kv_transfer_bytes_total{direction=\"received\"} 25\nsluice_kv_transfer_bytes_total{direction=\"sent\"} 3\n"),
	}
	var a Arm
	a.count(before, after)
	require.InDelta(t, 0.9, a.FullShare, 1e-12)
	require.Equal(t, map[string]int{"prefill_row": 10}, a.NonFull)
	require.InDelta(t, 2, a.FullStepMs, 1e-9)
	require.InDelta(t, 10, a.OtherStepMs, 1e-9)
	require.InDelta(t, 20, a.CountedBytes, 0)
	require.InDelta(t, 50, a.PrefillTokens, 0)
}

func TestTheControlCountsChangedAnswers(t *testing.T) {
	rec := func(session string, turn int, ids ...int32) measure.Record {
		return measure.Record{Session: session, Turn: turn, Status: 200, FinishReason: "length", PromptTokens: 9, OutputTokens: len(ids), TokenIDs: ids}
	}
	r := &runner{report: &Report{}, right: []measure.Record{rec("a", 0, 1, 2), rec("a", 1, 3, 4), rec("b", 0, 5, 6), rec("b", 1, 7, 8)}}
	r.judgeControl([]measure.Record{rec("a", 0, 1, 2), rec("a", 1, 9, 9), rec("b", 0, 5, 6), rec("b", 1, 7, 8)})
	require.Equal(t, &Control{Answers: 2, Changed: 1}, r.report.Control)
	r.judgeControl([]measure.Record{rec("a", 0, 1, 9), rec("a", 1, 9, 9)})
	require.Equal(t, &Control{Answers: 1, Changed: 1, Broken: 1}, r.report.Control)
}

func TestTheArrivalWindowIsScaled(t *testing.T) {
	r := good(t)
	r.scale = 0.5
	require.Equal(t, r.w.ArrivalWindow()/2, r.window())
	require.Equal(t, 7*time.Second, r.w.ArrivalWindow())
}

func TestEnginesAreDescribed(t *testing.T) {
	e := EngineInfo{Role: "kv_consumer", Scheduling: "async", Runner: "1", Device: "host"}
	require.Equal(t, "role kv_consumer, async scheduling, model runner 1, device host", e.String())
	e.Role = "" // it runs alone
	require.Contains(t, e.String(), "role none, ")
}
