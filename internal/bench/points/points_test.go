package points

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sluice-serving/sluice/internal/bench/measure"
	"github.com/sluice-serving/sluice/internal/bench/workload"
	"github.com/sluice-serving/sluice/internal/sim/report"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The most telling points come first, and the repeats of a group lie behind
// each other as wholes.
func TestOrderOfPoints(t *testing.T) {
	list := List(Tails, TailsGroups(), 3)
	var first []string
	for _, p := range list[:18] {
		first = append(first, p.Key())
	}
	require.Equal(t, []string{
		"tails/qwen3-0.6b/1024-256/8/strict/20s/1", "tails/qwen3-0.6b/1024-256/8/one-new-token-hardened/20s/1",
		"tails/qwen3-0.6b/1024-256/16/strict/20s/1", "tails/qwen3-0.6b/1024-256/16/one-new-token-hardened/20s/1",
		"tails/qwen3-0.6b/1024-256/32/strict/20s/1", "tails/qwen3-0.6b/1024-256/32/one-new-token-hardened/20s/1",
	}, first[:6])
	require.Equal(t, "tails/qwen3-0.6b/1024-256/8/strict/20s/2", first[6])
	require.Equal(t, "tails/qwen3-0.6b/1024-256/8/strict/20s/3", first[12])

	cases := map[string]map[string]bool{} // rows of the issue: shape and rate to policies
	repeats := map[string]int{}
	for _, p := range list {
		row := strings.Join(strings.Split(p.Case(), "/")[1:4], "/")
		if cases[row] == nil {
			cases[row] = map[string]bool{}
		}
		cases[row][p.Policy] = true
		repeats[p.Case()]++
	}
	require.Len(t, cases, 16, "ten rows of Qwen, six of Llama")
	require.Len(t, cases["qwen3-0.6b/1024-256/8"], 5)
	require.Len(t, cases["qwen3-0.6b/4096-1024/16"], 4)
	require.Len(t, cases["llama3-8b/4096-1024/16"], 2)
	for of, n := range repeats {
		require.Equal(t, 3, n, of)
	}

	arms := List(AppendPrefill, AppendGroups(), 3)
	require.Equal(t, "append-prefill/qwen3-0.6b/90x3/3072-9/pd/1", arms[0].Key())
	require.Equal(t, "append-prefill/qwen3-0.6b/90x3/3072-9/pd/2", arms[len(Arms)].Key())
	require.Len(t, arms, 2*3*5+2*5, "the whole length runs once")
}

func TestMatching(t *testing.T) {
	list := List(Tails, TailsGroups(), 2)
	keys := func(pattern string) []string {
		var out []string
		for _, p := range Matching(list, pattern) {
			out = append(out, p.Key())
		}
		return out
	}
	require.Len(t, keys(""), len(list))
	require.Equal(t, []string{"tails/qwen3-0.6b/1024-256/8/shape-only/20s/1", "tails/qwen3-0.6b/1024-256/8/shape-only/20s/2"}, keys("shape-only"))
	require.Equal(t, []string{"tails/qwen3-0.6b/1024-256/8/shape-only/20s/2", "tails/llama3-8b/4096-1024/16/strict/20s/2"}, keys("shape-only+s/2/, llama + 4096 + /16/strict + s/2/"))
	require.Empty(t, keys("opt"))
}

// Every policy meets the same arrivals, the last of them at the end of the
// time; another repeat meets others.
func TestArrivals(t *testing.T) {
	p := Point{Table: Tails, Model: Qwen, Repeat: 1, Input: 24, Output: 8, Rate: 4, Policy: Strict, Seconds: 5}
	a, err := p.arrivals()
	require.NoError(t, err)
	require.Equal(t, 20, a.Requests())
	require.Equal(t, 5*time.Second, a.ArrivalWindow())
	p.Policy = Hardened
	b, err := p.arrivals()
	require.NoError(t, err)
	require.Equal(t, a.Hash(), b.Hash())
	p.Repeat = 2
	c, err := p.arrivals()
	require.NoError(t, err)
	require.NotEqual(t, a.Hash(), c.Hash())
	p.Rate = 0
	_, err = p.arrivals()
	require.ErrorContains(t, err, "rate 0")
}

// A quarter of the prompt is a quarter of everything in tokens; arms and
// repeats share the workload.
func TestConversations(t *testing.T) {
	g := AppendGroups()[0]
	pd, guarded := g.points(AppendPrefill, 2)[0], g.points(AppendPrefill, 2)[2+len(Arms)]
	a, err := pd.conversations()
	require.NoError(t, err)
	b, err := guarded.conversations()
	require.NoError(t, err)
	require.Equal(t, a.Hash(), b.Hash())
	require.Equal(t, 270, a.Requests())
	require.Equal(t, publishedWindow, a.ArrivalWindow())
	for i := range a.Sessions {
		turns := a.Sessions[i].Turns
		require.InDelta(t, 3068, len(turns[0].Tokens), 4)
		require.InDelta(t, 30, len(turns[1].Tokens), 20)
		require.Equal(t, publishedThink, turns[1].Think)
	}
}

// line is a line of a point with given mean and p99.
func line(p Point, repeat int, tpot, itl, share float64) Line {
	p.Repeat = repeat
	l := Line{Version: version, Date: time.Date(2026, 1, 2, 3, 4, repeat, 0, time.UTC), Origin: Origin{Hardware: "one X", Commit: "c0ffee", Command: "sluice", Transport: "tcp"}, Point: p}
	l.Requests, l.Valid, l.Full, l.Piecewise, l.NonFullShare = 10, 10, 1000, int(1000*share), share
	l.TPOT, l.ITL, l.TTFT.P50, l.TotalS = Spread{Mean: tpot, P95: tpot, Curve: []float64{tpot, tpot}}, Spread{P99: itl}, 5, 20
	return l
}

func TestResultsFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "results.jsonl")
	strict := Point{Table: Tails, Model: Qwen, Input: 24, Output: 8, Rate: 4, Policy: Strict, Seconds: 5}
	none, err := Read(path)
	require.NoError(t, err)
	require.Empty(t, none)

	f, err := Open(path, "c0ffee", nil)
	require.NoError(t, err)
	one := line(strict, 1, 1.5, 4, 0.02)
	require.False(t, f.Done(one.Origin, &one.Point))
	require.NoError(t, f.Add(one))
	require.True(t, f.Done(one.Origin, &one.Point))
	require.NoError(t, f.Close())
	whole, err := os.ReadFile(path)
	require.NoError(t, err)

	// Whoever wrote a line was stopped in its midst: it is passed over, and cut
	// off before the next one is added.
	require.NoError(t, os.WriteFile(path, append(bytes.Clone(whole), whole[:len(whole)/2]...), 0o644))
	lines, err := Read(path)
	require.NoError(t, err)
	require.Equal(t, []Line{one}, lines)
	f, err = Open(path, "c0ffee", nil)
	require.NoError(t, err)
	require.True(t, f.Done(one.Origin, &one.Point))
	two := line(strict, 2, 1.7, 5, 0.03)
	require.False(t, f.Done(two.Origin, &two.Point))
	require.NoError(t, f.Add(two))
	require.NoError(t, f.Close())
	lines, err = Read(path)
	require.NoError(t, err)
	require.Equal(t, []Line{one, two}, lines)

	// Other hardware, another transport and other pools are other points.
	for _, change := range []func(*Origin){
		func(o *Origin) { o.Hardware = "two X" }, func(o *Origin) { o.Transport = "ipc" }, func(o *Origin) { o.Sizes.DecoderTokens = 1 }, func(o *Origin) { o.Flags = "--model-runner 2" },
	} {
		o := one.Origin
		change(&o)
		require.False(t, (&File{lines: lines}).Done(o, &one.Point))
	}

	// Lines of another commit are refused unless they are asked for.
	_, err = Open(path, "beef", nil)
	var commit *CommitError
	require.ErrorAs(t, err, &commit)
	require.Equal(t, CommitError{Have: "c0ffee", Want: "beef"}, *commit)
	require.ErrorContains(t, err, path+": line 1: ")
	f, err = Open(path, "beef", []string{"c0ff"})
	require.NoError(t, err)
	require.True(t, f.Done(one.Origin, &one.Point))
	require.NoError(t, f.Close())

	// An earlier version recorded no preemptions: they are not 0.
	two.Preempted = 4
	require.NoError(t, os.WriteFile(path, whole, 0o644))
	f, err = Open(path, "c0ffee", nil)
	require.NoError(t, err)
	require.NoError(t, f.Add(two))
	require.NoError(t, f.Close())
	lines, err = Read(path)
	require.NoError(t, err)
	rows := Rows(lines, Tails)
	require.Equal(t, "2 (0–4)", rows[0].preempted())
	require.NoError(t, os.WriteFile(path, append(bytes.Replace(whole, []byte(`,"preemptions":0`), nil, 1), whole...), 0o644))
	lines, err = Read(path)
	require.NoError(t, err)
	rows = Rows(lines, Tails)
	require.Equal(t, "-", rows[0].preempted())

	// A broken line in the midst is no torn one.
	for text, why := range map[string]string{
		"{\"version\":1,\n": "unexpected", `{"version":7,"table":"tails"}` + "\n": "version 7", `{"version":1,"table":"x"}` + "\n": `unknown table "x"`,
		`{"version":1,"table":"tails","model":"","repeat":1,"output":1}` + "\n": "name no point", `{"version":1,"speed":3}` + "\n": "unknown field",
	} {
		require.NoError(t, os.WriteFile(path, []byte(string(whole)+text+string(whole)), 0o644))
		_, err = Read(path)
		var broken *LineError
		require.ErrorAs(t, err, &broken, text)
		require.Equal(t, 2, broken.Line)
		require.ErrorContains(t, err, why)
	}
}

func TestMediansAndChecks(t *testing.T) {
	at := func(policy string) Point {
		return Point{Table: Tails, Model: Qwen, Input: 1024, Output: 256, Rate: 16, Policy: policy, Seconds: 20}
	}
	lines := []Line{
		line(at(Strict), 1, 1.7, 5, 0.027), line(at(Hardened), 1, 1.5, 2, 0), line(at(Strict), 2, 1.8, 7, 0.026), line(at(Strict), 3, 1.6, 4, 0.028),
	}
	rows := Rows(lines, Tails)
	require.Len(t, rows, 2)
	require.Equal(t, 1.7, rows[0].TPOT.Mean)
	require.Equal(t, 5.0, rows[0].ITL.P99)
	require.Equal(t, 4.0, rows[0].Least.ITL.P99)
	require.Equal(t, 7.0, rows[0].Most.ITL.P99)
	require.Equal(t, 27, rows[0].Piecewise)
	require.Equal(t, 30, rows[0].Requests)
	require.InDelta(t, 0.0268, rows[0].Expected(), 1e-4)
	failed := func() (out []string) {
		for _, c := range Checks(Rows(lines, Tails), Tails) {
			if !c.OK {
				out = append(out, c.Detail)
			}
		}
		return out
	}
	require.Len(t, Checks(rows, Tails), 4)
	require.Empty(t, failed())

	lines[1].TPOT.Mean, lines[1].NonFullShare, lines[1].ITL.P99 = 1.61, 0.001, 6
	require.Len(t, failed(), 3)
	for i := range lines { // what queues is not judged by the rate
		lines[i].NonFullShare *= 2
		lines[i].TTFT.P95 = 2000
	}
	require.Len(t, failed(), 3)

	var out bytes.Buffer
	require.NoError(t, Print(&out, lines, Tails, Text))
	require.Contains(t, out.String(), "on one X, KV by tcp, KV of 0 tokens at P and 0 at D; 2026-01-02 03:04 to 03:04, commit c0ffee")
	require.Contains(t, out.String(), "1.700 (1.600–1.800)", "median, least and greatest of three")
	require.Contains(t, out.String(), "(2.68)", "what is not judged stands in brackets")
	require.Contains(t, out.String(), "MISS  qwen3-0.6b 1024/256 at 16 req/s, one-new-token-hardened")
	out.Reset()
	require.NoError(t, Print(&out, lines, AppendPrefill, Text))
	require.Equal(t, "no point of append-prefill is measured\n", out.String())

	// On one device the published time per token judges nothing, all else does.
	for i := range lines {
		lines[i].TTFT.P95, lines[i].Rate = 0, 8
	}
	names := func() (out []string) {
		for _, c := range Checks(Rows(lines, Tails), Tails) {
			out = append(out, c.Detail)
		}
		return out
	}
	on := names()
	require.Len(t, on, 4)
	require.Contains(t, on[2], "published 1.47 ms on a B200")
	for i := range lines {
		lines[i].Shared = true
	}
	require.Equal(t, append(on[:2:2], on[3]), names())
	for i := range lines { // of the other model Strict is what the time is held to
		lines[i].Model = Llama
	}
	require.Len(t, names(), 4)
	require.Contains(t, names()[2], "mean TPOT 1.700 → 1.610 ms (-5.3 %), within 5 %")

	page := Page(lines, Tails)
	require.Len(t, page.Plots, 3)
	require.Equal(t, []float64{5}, page.Plots[2].Series[0].Values)
	out.Reset()
	require.NoError(t, report.Write(&out, page))
	require.Contains(t, out.String(), "<svg")
	require.Equal(t, "No point is measured.", Page(nil, Tails).Summary)
}

func TestChecksOfArms(t *testing.T) {
	at := func(arm string) Point {
		return Point{Table: AppendPrefill, Model: Qwen, Prompt: 3072, Output: 9, Sessions: 90, Turns: 3, Arm: arm, Window: publishedWindow, Think: publishedThink}
	}
	pd, guarded := line(at(ArmPD), 1, 1.0, 2, 0), line(at(ArmGuarded), 1, 1.05, 2, 0.2)
	pd.TTFT.P95, guarded.TTFT.P95, guarded.Hits, guarded.Fallbacks = 1000, 150, 160, 20
	pd.Answers, guarded.Answers = []string{"a", "b", ""}, []string{"a", "b", ""}
	require.Equal(t, 2, SameAnswers(&pd, &guarded), "what is not valid is like nothing")
	pd.Answers[2], guarded.Answers[2] = "c", "c"
	misses := func() int {
		n := 0
		for _, c := range Checks(Rows([]Line{pd, guarded}, AppendPrefill), AppendPrefill) {
			if !c.OK {
				n++
			}
		}
		return n
	}
	require.Zero(t, misses())
	guarded.Answers[1] = "x"
	require.Equal(t, 1, misses())
	guarded.TPOT.P95, guarded.TTFT.P95, guarded.Hits, guarded.Contradicts, guarded.Valid = 1.2, 250, 154, 1, 9
	require.Equal(t, 6, misses())
	require.Len(t, Page([]Line{pd, guarded}, AppendPrefill).Plots, 3)
	var out bytes.Buffer
	require.NoError(t, Print(&out, []Line{pd, guarded}, AppendPrefill, Markdown))
	require.Contains(t, out.String(), "| qwen3-0.6b | 3072 | 9 | guarded |")
	require.Contains(t, out.String(), "| 2/3 |")
	require.Contains(t, out.String(), "\n- MISS  ")
}

func TestLagIsMeasured(t *testing.T) {
	stop := watch(t.Context())
	var l Lag
	for x, deadline := 0, time.Now().Add(20*time.Millisecond); time.Now().Before(deadline); x++ {
		_ = x * x
	}
	stop(&l)
	require.Positive(t, l.TimerMaxMs)
	require.GreaterOrEqual(t, l.TimerMaxMs, l.TimerP99Ms)
	if processorTime() > 0 {
		require.Positive(t, l.Processor)
	}
	l.sent([]measure.Record{{Eligible: time.Millisecond, Sent: 4 * time.Millisecond}, {Eligible: 9}})
	require.Equal(t, 3.0, l.SentP50Ms)
	require.Equal(t, 3.0, l.SentMaxMs, "a request that was not sent is not late")
}

func TestFirstTurns(t *testing.T) {
	w := &workload.Workload{Sessions: []workload.Session{{ID: "a", Turns: []workload.Turn{{MaxTokens: 9}, {MaxTokens: 8}}}, {ID: "b", Turns: []workload.Turn{{MaxTokens: 7}}}, {ID: "c"}}}
	got := firstTurns(w, 2, 5)
	require.Equal(t, []workload.Session{{ID: "a", Turns: []workload.Turn{{MaxTokens: 5}}}, {ID: "b", Turns: []workload.Turn{{MaxTokens: 5}}}}, got.Sessions)
	require.Equal(t, 9, w.Sessions[0].Turns[0].MaxTokens, "the workload keeps its own")
	require.Len(t, w.Sessions, 3)
}

// The medians of requests that met nobody: the first event comes late where the
// second one follows it sooner than the others each other.
func TestAlone(t *testing.T) {
	ms := func(v ...time.Duration) (out []time.Duration) {
		for _, d := range v {
			out = append(out, d*time.Millisecond)
		}
		return out
	}
	var records []measure.Record
	for i := range 3 {
		records = append(records,
			measure.Record{Status: 200, FinishReason: "length", OutputTokens: 5, PromptTokens: 9, Sent: 5 * time.Millisecond, First: time.Duration(25+i) * time.Millisecond, Gaps: ms(1, 4, 4, 9)},
			measure.Record{Status: 200, FinishReason: "length", OutputTokens: 5, PromptTokens: 9, Turn: 1, Sent: 1, First: 3*time.Millisecond + 1, Gaps: ms(7, 7)})
	}
	var a Alone
	require.NoError(t, a.take(records))
	require.Len(t, a.Gaps, 201)
	require.Equal(t, []float64{4, 4, 9}, []float64{a.Gaps[0], a.Gaps[100], a.Gaps[200]})
	a.Gaps = nil
	require.Equal(t, Alone{TTFT: 21, Hit: 3, Gap: 4, GapP99: 9, Late: 3}, a)
	for i := range records { // on time
		records[i].Gaps = ms(5, 4, 4)
	}
	require.NoError(t, a.take(records))
	require.Zero(t, a.Late)
	records[1].Error = "no answer"
	require.ErrorContains(t, a.take(records), "no answer")
}

func TestConnectors(t *testing.T) {
	var c map[string]any
	require.NoError(t, json.Unmarshal([]byte(transfer("kv_consumer", `{"transport":"ucx"}`, 64)), &c))
	require.Equal(t, "multi", c["kv_connector"])
	require.Equal(t, "kv_consumer", c["kv_role"])
	require.JSONEq(t, `{"kv_connector":"pd","kv_role":"kv_producer"}`, transfer("kv_producer", "", 0))
	for extra, want := range map[string]string{"": "tcp", `{"transport":"ucx"}`: "ucx", `{"device_ipc":true}`: `{"device_ipc":true}`} {
		require.Equal(t, want, transport(extra))
	}
	err := (&Options{Extra: "{", Most: -1, Limit: -1}).Validate()
	require.ErrorContains(t, err, `"{" is not JSON`)
	require.ErrorContains(t, err, "points: -1")
	require.ErrorContains(t, err, "time limit")
	require.ErrorContains(t, err, "no results file")
}

// Points that would not end in time are left, those that would come instead;
// the Decoders that are started are those that there is time for.
func TestTimeLimit(t *testing.T) {
	list := List(Tails, TailsGroups(), 1)
	r := &runner{o: &Options{Points: list, Limit: 90 * time.Second}, file: &File{}, begun: time.Now(), fleet: &fleet{}}
	require.True(t, r.fits(&list[0]))
	require.Equal(t, []string{Strict, Hardened}, r.wanted(list))
	r.begun = r.begun.Add(-40 * time.Second)
	require.False(t, r.fits(&list[0]))
	r.o.Limit = 0
	require.True(t, r.fits(&list[0]))
	r.o.Limit = time.Hour
	require.Equal(t, []string{Strict, Hardened, ConsumerOneToken, OneNewToken, ShapeOnly}, r.wanted(list))
	r.o.Most = 3
	require.Equal(t, []string{Strict, Hardened}, r.wanted(list))

	// What took long once is expected to take long.
	before := r.expected(&list[0])
	slow := line(list[0], 1, 1, 1, 0)
	slow.WallS = 200
	r.file.lines = []Line{slow}
	require.Greater(t, r.expected(&list[1]), before)
	require.Equal(t, before, r.expected(&list[24]), "another load")

	// One device computes the prompts beside the answers.
	p := Point{Table: Tails, Model: Llama, Input: 1024, Output: 256, Rate: 32, Policy: Strict, Seconds: 20}
	r.o.PrefillerDevice, r.o.DecoderDevice = "cuda:0", "cuda:1"
	apart := r.expected(&p)
	require.Equal(t, 20*time.Second+2560*time.Millisecond+overhead, apart)
	r.o.DecoderDevice = "cuda:0"
	require.InDelta(t, 640*(1024/35e3+256/10.5e3), (r.expected(&p) - overhead).Seconds(), 1e-6)
	p.Rate = 1
	require.Equal(t, apart, r.expected(&p), "nothing queues")
}

// An answer that is not valid before a point's load costs that point alone, and one
// beside prompts no more than what rests on it.
func TestAnswersThatAreNotValid(t *testing.T) {
	var out bytes.Buffer
	f, err := Open(filepath.Join(t.TempDir(), "results.jsonl"), "c0ffee", nil)
	require.NoError(t, err)
	list := List(Tails, TailsGroups(), 1)[:3]
	r := &runner{o: &Options{Points: list, Results: "results.jsonl", Out: &out, Origin: Origin{Commit: "c0ffee"}}, file: f, begun: time.Now(), fleet: &fleet{}}
	bad := []measure.Record{{RequestID: "alone-1", Error: "hung up"}}
	r.measure = func(_ context.Context, p *Point, _ []Point) (*Line, error) {
		if *p == list[1] {
			return nil, fmt.Errorf("probes: %w", new(Alone).take(bad))
		}
		l := line(*p, p.Repeat, 1, 2, 0)
		l.Origin = r.origin(p)
		return &l, nil
	}
	var done Outcome
	require.NoError(t, r.all(t.Context(), &done))
	require.Equal(t, Outcome{Measured: 2, Failed: 1}, done)
	require.Equal(t, list[1:2], r.todo())
	require.Contains(t, out.String(), list[1].Key()+": probes: a request alone: alone-1: hung up: the point is not kept")
	require.NoError(t, f.Close())

	a := Alone{Gap: 2}
	require.ErrorContains(t, a.takeBeside(bad, nil), "an answer beside prompts: alone-1: hung up")
	require.ErrorContains(t, a.takeBeside(nil, bad), "a prompt beside answers: alone-1: hung up")
	require.Equal(t, Alone{Gap: 2}, a)
	require.NoError(t, a.takeBeside(nil, nil), "none where the engines bear too short answers")
	require.Zero(t, a.Beside)
}

// A file may have lines of commits that are accepted, written out or not; what was
// measured with other bounds on attempts counts neither as done nor as a repeat.
func TestLinesOfOtherCommitsAndBounds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "results.jsonl")
	o := Options{Points: List(AppendPrefill, AppendGroups(), 1)[:1], Results: path, Origin: Origin{Commit: "c0ffee1"}}
	p := &o.Points[0]
	f, err := Open(path, "c0ffee1", nil)
	require.NoError(t, err)
	l := line(*p, 1, 1, 2, 0)
	l.Commit = "c0ffee1"
	l.Origin.Sizes = o.setupOf(p).Sizes
	require.Positive(t, l.Sizes.Quiet)
	l.Sizes.Quiet = 0
	require.NoError(t, f.Add(l))
	now := l.Origin
	now.Sizes = o.setupOf(p).Sizes
	require.True(t, f.Done(l.Origin, p))
	require.False(t, f.Done(now, p))
	l.Origin = now
	require.NoError(t, f.Add(l))
	require.True(t, f.Done(now, p))
	require.NoError(t, f.Close())
	require.Len(t, Rows(f.Lines(), AppendPrefill), 2)

	for commit, accepted := range map[string][]string{"c0ffee1": nil, "another": {"", "c0ffee1"}, "yet another": {"0", "c0f"}, "longer": {"c0ffee1234567"}} {
		f, err := Open(path, commit, accepted)
		require.NoError(t, err, commit)
		require.Len(t, f.Lines(), 2)
		require.NoError(t, f.Close())
	}
	for _, accepted := range [][]string{nil, {""}, {"0ffee"}, {"c0ffee2"}} {
		_, err := Open(path, "another", accepted)
		require.ErrorContains(t, err, "line 1: measured at commit \"c0ffee1\"", "%v", accepted)
	}
}

// What is not done when the time is over is dropped, points with answers that are
// not valid are told and not kept, and every point that is done is in the file.
func TestPointsThatAreNotKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, err := Open(filepath.Join(t.TempDir(), "results.jsonl"), "c0ffee", nil)
		require.NoError(t, err)
		var out bytes.Buffer
		list := List(Tails, TailsGroups(), 1)[:6]
		o := &Options{Points: list, Results: "results.jsonl", Out: &out, Limit: 2 * time.Minute, Origin: Origin{Commit: "c0ffee"}}
		r := &runner{o: o, file: f, begun: time.Now(), fleet: &fleet{}}
		asked := 0
		r.measure = func(ctx context.Context, p *Point, todo []Point) (*Line, error) {
			asked++
			require.Equal(t, *p, todo[0])
			l := line(*p, p.Repeat, 1, 2, 0)
			l.Origin = r.origin(p)
			switch asked {
			case 2:
				l.Valid, l.Error = 9, "no answer"
			case 3: // takes longer than could be known
				<-ctx.Done()
				return nil, ctx.Err()
			}
			time.Sleep(24 * time.Second)
			return &l, nil
		}
		var done Outcome
		require.NoError(t, r.all(t.Context(), &done))
		require.Equal(t, o.Limit-endTime, time.Since(r.begun))
		require.Equal(t, Outcome{Measured: 1, Failed: 1}, done)
		require.Len(t, f.Lines(), 1)
		require.Equal(t, list[1:], r.todo())
		require.Contains(t, out.String(), "0 of 6 points are measured already in results.jsonl")
		require.Contains(t, out.String(), list[1].Key()+": 9 of 10 answers are valid, the point is not kept: no answer")
		require.Contains(t, out.String(), list[2].Key()+" was not finished within 2m0s and is dropped")

		// A later call goes on with what is left, as far as its time goes: the
		// engines would take most of it.
		asked, r.begun, o.Limit = 10, time.Now(), 45*time.Second
		require.NoError(t, r.all(t.Context(), &done))
		require.Equal(t, 10, asked)
		require.Contains(t, out.String(), "the next point would not end within 45s")
		r.begun, o.Limit, o.Most = time.Now(), 0, 4
		require.NoError(t, r.all(t.Context(), &done))
		require.Equal(t, 12, asked, "four of both calls")
		require.Len(t, f.Lines(), 3)
		require.NoError(t, f.Close())
	})
}

// A Decoder that still saves the KV of the point before is waited for; what is wrong
// otherwise is said at once.
func TestForgettingWaits(t *testing.T) {
	answers := []int{http.StatusConflict, http.StatusConflict, http.StatusOK, http.StatusInternalServerError}
	asked := 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		require.Equal(t, "/reset_prefix_cache", r.URL.Path)
		w.WriteHeader(answers[asked])
		asked++
	}))
	defer srv.Close()
	f := &fleet{client: srv.Client()}
	require.NoError(t, f.forget(t.Context(), srv.URL))
	require.Equal(t, 3, asked)
	require.ErrorContains(t, f.forget(t.Context(), srv.URL), "status 500")
	require.Equal(t, 4, asked)
}

// A factor that is taken from an earlier line is the same.
func TestMillisecondsAreGivenBack(t *testing.T) {
	for d := 8_324_000 * time.Nanosecond; d < 8_334_000; d++ {
		require.Equal(t, d, fromMilliseconds(milliseconds(d)))
	}
}
