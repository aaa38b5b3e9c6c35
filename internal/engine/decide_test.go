package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/scheduler"
)

// attempts is a Decoder that is asked through Submit.
type attempts struct {
	*testing.T
	e       *Engine
	log     logged
	devices [4]ascendrt.Device // by rank, where start opens them
}

// logged is a log that several goroutines may write.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// lines are the lines about append attempts since the last call.
func (l *logged) lines(t *testing.T) []map[string]any { return l.said(t, "append attempt") }

// said are the lines with that message since the last call.
func (l *logged) said(t *testing.T, msg string) (out []map[string]any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		var m map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &m))
		if m["msg"] == msg {
			delete(m, "time")
			out = append(out, m)
		}
	}
	l.text.Reset()
	return out
}

func startDecoder(t *testing.T, additional string, level slog.Level, change func(*Config)) *attempts {
	t.Helper()
	a := &attempts{T: t}
	cfg := parsed(t, pdConsumer, additional)
	cfg.KVBlocks, cfg.MaxModelLen, cfg.Eager, cfg.DeviceWorkers = 256, 2048, true, 1
	if change != nil {
		change(&cfg)
	}
	var err error
	a.e, err = New(t.Context(), cfg, Options{Logger: slog.New(slog.NewJSONHandler(&a.log, &slog.HandlerOptions{Level: level}))})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, a.e.Close()) })
	return a
}

// ids is a prompt that begins with that of the same start and a smaller n.
func ids(start, n int) []scheduler.Token {
	out := make([]scheduler.Token, n)
	for i := range out {
		out[i] = scheduler.Token(3 + (start*97+i*i)%200)
	}
	return out
}

func (a *attempts) submit(name string, prompt []scheduler.Token, more func(*Request)) *Stream {
	a.Helper()
	req := Request{ID: name, TraceID: name, Prompt: prompt, MaxTokens: 3, IgnoreEOS: true}
	if more != nil {
		more(&req)
	}
	s, err := a.e.Submit(context.Background(), req)
	require.NoError(a, err)
	return s
}

// end reads a stream to its end.
func (a *attempts) end(s *Stream) (last Delta, tokens int) {
	a.Helper()
	for {
		d, err := s.Next(context.Background())
		require.NoError(a, err)
		tokens += len(d.Tokens)
		if d.Finish != scheduler.NotFinished {
			return d, tokens
		}
	}
}

func attempt(params string) func(*Request) {
	return func(r *Request) { r.Append, r.Params = true, json.RawMessage(params) }
}

// count is the sum of a counter or gauge over the series with these labels.
func (a *attempts) count(name string, labels ...string) (sum float64) {
	a.Helper()
	families, err := a.e.Metrics().Gather()
	require.NoError(a, err)
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.Metric {
			n := 0
			for _, l := range m.Label {
				for i := 0; i+1 < len(labels); i += 2 {
					if l.GetName() == labels[i] && l.GetValue() == labels[i+1] {
						n++
					}
				}
			}
			if n == len(labels)/2 {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

// learn runs enough steps for the governor to know what a step takes.
func (a *attempts) learn() {
	a.Helper()
	for i := range 10 {
		a.end(a.submit("learn", ids(100+i, 40), nil))
	}
}

// One line per decision at debug level: inputs, rule and verdict. What is told
// of the other route's time reaches the decision.
func TestLinePerAppendDecision(t *testing.T) {
	a := startDecoder(t, sched(aGuarded), slog.LevelDebug, nil)
	a.learn()
	a.end(a.submit("first", ids(1, 64), nil))
	require.Empty(t, a.log.lines(t), "no attempts")
	line := func() map[string]any {
		t.Helper()
		lines := a.log.lines(t)
		require.Len(t, lines, 1)
		for _, times := range []string{"waited", "local_eta"} {
			require.GreaterOrEqual(t, lines[0][times], 0.0)
		}
		delete(lines[0], "waited")
		return lines[0]
	}
	const marker = `"decoder_append_prefill":true,"do_remote_prefill":false,"do_remote_decode":false`
	d, n := a.end(a.submit("hit", ids(1, 80), attempt(`{`+marker+`,"remote_eta_ms":3000000}`)))
	require.Equal(t, 3, n)
	require.Equal(t, 64, d.Cached)
	got := line()
	require.Positive(t, got["local_eta"], "it was compared")
	delete(got, "local_eta")
	require.Equal(t, map[string]any{
		"level": "DEBUG", "msg": "append attempt", "rank": 0.0, "request": "hit", "rule": "usable", "verdict": "admit", "reason": "",
		"prompt_tokens": 80.0, "cached_tokens": 64.0, "restorable_tokens": 0.0, "remote_eta": 3e12, "running": 0.0,
	}, got)

	d, n = a.end(a.submit("sooner elsewhere", ids(1, 90), attempt(`{`+marker+`,"remote_eta_ms":0.000001}`)))
	require.Zero(t, n)
	require.Equal(t, scheduler.Refusal{Reason: scheduler.Busy, PromptTokens: 90, CachedTokens: 80}, d.Refusal)
	got = line()
	require.Equal(t, []any{"sooner elsewhere", "unusable", "refuse", "busy", 1.0}, []any{got["request"], got["rule"], got["verdict"], got["reason"], got["remote_eta"]})
	require.Greater(t, got["local_eta"], 1.0)

	a.end(a.submit("miss", ids(2, 64), attempt("")))
	got = line()
	require.Equal(t, []any{"miss", "unusable", "refuse", "no_prefix", 0.0}, []any{got["request"], got["rule"], got["verdict"], got["reason"], got["cached_tokens"]})

	require.NoError(t, a.e.Drain(t.Context()))
	_, err := a.e.Submit(t.Context(), Request{ID: "late", TraceID: "late", Prompt: ids(1, 80), MaxTokens: 1, Append: true})
	require.ErrorIs(t, err, ErrDraining)
	require.Equal(t, map[string]any{
		"level": "DEBUG", "msg": "append attempt", "rank": 0.0, "request": "late", "rule": "draining", "verdict": "refuse", "reason": "draining", "prompt_tokens": 80.0,
	}, a.log.lines(t)[0])

	require.Equal(t, 4.0, a.count("sluice_append_prefill_attempts_total"))
	require.Equal(t, 1.0, a.count("sluice_append_prefill_total", "result", "hit"))
	for _, why := range []string{"busy", "no_prefix", "draining"} {
		require.Equal(t, 1.0, a.count("sluice_append_prefill_total", "result", "refused", "reason", why), why)
	}
	require.Equal(t, 4.0, a.count("sluice_append_prefill_total"), "each attempt ends once")
	require.Equal(t, 64.0, a.count("sluice_append_prefill_tokens_total", "kind", "cached"))
	require.Equal(t, 16.0, a.count("sluice_append_prefill_tokens_total", "kind", "suffix"))
	require.Zero(t, a.count("sluice_append_prefill_tokens_total", "kind", "restored"))
}

// Without debug level nothing is written, and a decision costs no memory.
func TestDecisionsAreFreeWithoutDebug(t *testing.T) {
	a := startDecoder(t, sched(switchedOn), slog.LevelInfo, nil)
	a.end(a.submit("miss", ids(2, 64), attempt("")))
	require.Empty(t, a.log.lines(t))
	require.Zero(t, testing.AllocsPerRun(100, func() { a.e.ranks[0].decided(scheduler.AppendDecision{ID: "x", Rule: scheduler.RuleUsable}) }))
}

// An attempt behind a full Decoder is refused as busy within its bounded time,
// without output, and what runs goes on.
func TestBoundedLocalWait(t *testing.T) {
	full := func(waitMs int) (*attempts, *Stream) {
		a := startDecoder(t, sched(fmt.Sprintf(`%s,"decoder_append_prefill_guards":{"max_local_wait_ms":%d}`, switchedOn, waitMs)), slog.LevelDebug, func(c *Config) { c.MaxSeqs = 1 })
		a.end(a.submit("first", ids(1, 64), nil))
		long := a.submit("long", ids(3, 16), func(r *Request) { r.MaxTokens = 2000 })
		_, err := long.Next(t.Context())
		require.NoError(t, err)
		return a, long
	}
	a, long := full(20)
	d, n := a.end(a.submit("hit", ids(1, 80), attempt("")))
	require.Zero(t, n)
	require.Equal(t, scheduler.Refusal{Reason: scheduler.Busy, PromptTokens: 80, CachedTokens: 64}, d.Refusal)
	got := a.log.lines(t)
	require.Len(t, got, 1)
	require.Equal(t, []any{"waited", "refuse", "busy", 1.0}, []any{got[0]["rule"], got[0]["verdict"], got[0]["reason"], got[0]["running"]})
	require.GreaterOrEqual(t, got[0]["waited"], float64(20*time.Millisecond))
	_, err := long.Next(t.Context())
	require.NoError(t, err, "it was not touched")
	require.Equal(t, 1.0, a.count("sluice_append_prefill_total", "reason", "busy"))

	a, long = full(600_000)
	a.submit("gone", ids(1, 80), attempt("")).Cancel()
	long.Cancel()
	require.Eventually(t, func() bool { return a.count("sluice_append_prefill_total", "result", "gone") == 1 }, 10*time.Second, time.Millisecond)
	require.Equal(t, 1.0, a.count("sluice_append_prefill_attempts_total"))
	require.Equal(t, 1.0, a.count("sluice_append_prefill_total"))
}

// A turn's end tells until when its prefix is kept; without a lease nothing is
// promised.
func TestResidentUntil(t *testing.T) {
	turn := func(a *attempts, name string, more func(*Request)) Delta {
		d, _ := a.end(a.submit(name, ids(1, 64), func(r *Request) {
			r.Session = name
			if more != nil {
				more(r)
			}
		}))
		return d
	}
	a := startDecoder(t, sched(aGuarded), slog.LevelInfo, nil)
	before := time.Now()
	d := turn(a, "a", nil)
	require.Equal(t, 64, d.Resident)
	require.Greater(t, d.ResidentUntil.Sub(before), 100*time.Second, "a person is expected within some 252 s")
	require.LessOrEqual(t, time.Until(d.ResidentUntil), 5*time.Minute)
	require.Equal(t, 1.0, a.count("sluice_session_leases"))
	require.Equal(t, 1.0, a.count("sluice_session_leases_total", "event", "granted"))
	require.Positive(t, a.count("sluice_session_lease_blocks"))
	require.Zero(t, turn(a, "b", func(r *Request) { r.EndSession = true }).ResidentUntil, "nobody comes back")
	require.Equal(t, 1.0, a.count("sluice_session_leases_total", "event", "granted"), "the scheduler knew before the turn ended")
	require.Zero(t, turn(a, "", nil).ResidentUntil, "of no session")
	require.Zero(t, turn(startDecoder(t, sched(switchedOn), slog.LevelInfo, nil), "a", nil).ResidentUntil, "the plain profile keeps nothing")
	require.Zero(t, turn(startDecoder(t, withGuards(`"leases":false`), slog.LevelInfo, nil), "a", nil).ResidentUntil)
}

// A rank is busy while it has something to compute, and not before or after: copies go
// by that.
func TestBusyWhileStepsRun(t *testing.T) {
	d := startDecoder(t, "{}", slog.LevelInfo, nil)
	r := d.e.ranks[0]
	require.False(t, r.busy.Load())
	s := d.submit("long", ids(1, 20), func(r *Request) { r.MaxTokens = 1900 })
	for seen := false; !seen; seen = r.busy.Load() {
		x, err := s.Next(t.Context())
		require.NoError(t, err)
		require.Equal(t, scheduler.NotFinished, x.Finish, "it was not busy all the while")
	}
	s.Cancel()
	for r.busy.Load() {
		time.Sleep(time.Millisecond)
	}
}

// An end of a session that comes after its last turn leaves nothing that is kept
// for it, and nothing of a session that is still expected is lost; said again, or of
// nobody, it does nothing.
func TestEndSessionAfterItsLastTurn(t *testing.T) {
	a := startDecoder(t, sched(aGuarded), slog.LevelInfo, nil)
	for i, name := range []string{"a", "b"} {
		a.end(a.submit(name, ids(i*100+1, 64), func(r *Request) { r.Session = name }))
	}
	kept := func() (awaits, leases int) {
		require.NoError(t, a.e.ranks[0].call(t.Context(), func() {
			st := a.e.ranks[0].cache.Stats()
			awaits, leases = st.Awaits, st.Leases
		}))
		return awaits, leases
	}
	awaits, leases := kept()
	require.Equal(t, 2, awaits)
	require.Equal(t, 2, leases)
	for _, name := range []string{"a", "a", "nobody"} {
		a.e.EndSession(name)
		awaits, leases = kept()
		require.Equal(t, 1, awaits)
		require.Equal(t, 1, leases)
	}
}
