package scheduler

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/kvcache"
)

// decider is a scheduler whose decisions about append attempts are kept.
type decider struct {
	*leaser
	told []AppendDecision
}

func newDecider(t *testing.T, cfg Config, opts ...Option) *decider {
	t.Helper()
	d := &decider{leaser: &leaser{T: t}}
	cache, err := kvcache.New(kvcache.Config{Blocks: 33, BlockSize: 4})
	require.NoError(t, err)
	cfg.MaxModelLen = 256
	d.s, err = New(cfg, cache, append(opts, WithDecisions(func(a AppendDecision) { d.told = append(d.told, a) }))...)
	require.NoError(t, err)
	return d
}

// add adds a request and gives its handle.
func (d *decider) add(req Request) RequestID {
	d.Helper()
	if req.MaxTokens == 0 {
		req.MaxTokens = 4
	}
	req.Arrival = d.now
	id, err := d.s.Add(req)
	require.NoError(d, err)
	return id
}

// step plans and applies, and gives the outputs.
func (d *decider) step() []Output {
	d.Helper()
	p := d.s.Plan(d.now)
	n := 0
	for _, s := range p.Samples {
		n += int(s)
	}
	outs, err := d.s.Apply(p, Result{Tokens: make([]Token, n)})
	require.NoError(d, err)
	return outs
}

// only is the one decision since the last call.
func (d *decider) only() AppendDecision {
	d.Helper()
	require.Len(d, d.told, 1)
	got := d.told[0]
	d.told = nil
	return got
}

// Each attempt is told once, when what was decided takes effect, with what it
// rests on.
func TestDecisionsAreToldWhenTheyTakeEffect(t *testing.T) {
	d := newDecider(t, Config{Append: AppendConfig{Enable: true, MinPrefixTokens: 8}})
	d.turn("s", 1, 16, Local, EndOfTurn)
	require.Empty(t, d.told, "no attempt")

	d.now = Time(3 * time.Second)
	id := d.add(Request{ID: "hit", Prompt: prompt(1, 20), Route: AppendPrefill, RemoteETA: time.Minute})
	d.step()
	require.Equal(t, AppendDecision{
		Request: id, ID: "hit", Rule: RuleUsable, Verdict: AppendAdmit, PromptTokens: 20, CachedTokens: 16, RemoteETA: time.Minute,
	}, d.only())
	d.step()
	require.Empty(t, d.told, "it is decided once")

	id = d.add(Request{ID: "miss", Prompt: prompt(2, 12), Route: AppendPrefill})
	d.now += Time(time.Second)
	held := d.s.cache.Stats().Held
	outs := d.step()
	require.Equal(t, AppendDecision{
		Request: id, ID: "miss", Rule: RuleUnusable, Verdict: AppendRefuse, Reason: NoPrefix, PromptTokens: 12, Waited: time.Second, Running: 1,
	}, d.only())
	require.Equal(t, FinishRefused, outs[0].Finish, "before the others' outputs")
	require.Equal(t, held, d.s.cache.Stats().Held, "it holds nothing")
	require.Nil(t, d.s.slots.get(id))

	d.add(Request{ID: "asks for more", Prompt: prompt(1, 40), Route: AppendPrefill, CacheHitThreshold: 0.9})
	d.add(Request{ID: "no attempt", Prompt: prompt(1, 40), CacheHitThreshold: 0.9})
	d.step()
	got := d.only()
	require.Equal(t, []any{RuleThreshold, BelowThreshold, "asks for more"}, []any{got.Rule, got.Reason, got.ID})

	d.s.Drain()
	d.add(Request{ID: "late", Prompt: prompt(1, 20), Route: AppendPrefill})
	d.step()
	got = d.only()
	require.Equal(t, []any{RuleUnusable, Draining}, []any{got.Rule, got.Reason})
}

// A hit behind a full Decoder is refused within its bounded time, before any
// output, and its place is left.
func TestBoundedWait(t *testing.T) {
	d := newDecider(t, Config{MaxNumSeqs: 1, Append: AppendConfig{Enable: true, MaxWait: 2 * time.Second}})
	d.turn("s", 1, 16, Local, EndOfTurn)
	d.add(Request{ID: "long", Prompt: prompt(3, 4), MaxTokens: 100})
	d.step()
	d.add(Request{ID: "hit", Prompt: prompt(1, 20), Route: AppendPrefill})
	d.step()
	require.Empty(t, d.told)
	at, ok := d.s.NextDeadline()
	require.True(t, ok)
	require.Equal(t, Time(2*time.Second), at)
	d.now = at - 1
	d.step()
	require.Empty(t, d.told, "a moment before")
	d.now = at
	outs := d.step()
	got := d.only()
	require.Equal(t, []any{RuleWaited, AppendRefuse, Busy, 2 * time.Second, int32(16), 1}, []any{got.Rule, got.Verdict, got.Reason, got.Waited, got.CachedTokens, got.Running})
	require.Equal(t, Refusal{Reason: Busy, PromptTokens: 20, CachedTokens: 16}, outs[0].Refusal)
	require.Empty(t, outs[0].Tokens)
	require.Zero(t, d.s.Stats().Waiting+d.s.Stats().Skipped)
	_, ok = d.s.NextDeadline()
	require.False(t, ok)
}

// An attempt that waits for a time without end is not refused for it.
func TestWaitWithoutBound(t *testing.T) {
	d := newDecider(t, Config{MaxNumSeqs: 1, Append: AppendConfig{Enable: true}})
	d.turn("s", 1, 16, Local, EndOfTurn)
	d.add(Request{ID: "long", Prompt: prompt(3, 4), MaxTokens: 3})
	d.step()
	d.add(Request{ID: "hit", Prompt: prompt(1, 20), Route: AppendPrefill})
	for range 4 {
		d.now += Time(time.Hour)
		d.step()
	}
	require.Equal(t, AppendAdmit, d.only().Verdict)
}

// A victim without a token ends as a refusal where requests are sent away, and
// is told as such; one that a connector has saved goes on, by line c.
func TestDecisionsAboutVictims(t *testing.T) {
	for _, saved := range []bool{false, true} {
		k := &saver{saves: saved}
		d := newDecider(t, Config{Recompute: RecomputeAway, Append: AppendConfig{Enable: true}}, WithConnector(k))
		d.turn("s", 1, 16, Local, EndOfTurn)
		id := d.add(Request{ID: "hit", Prompt: prompt(1, 20), Route: AppendPrefill})
		p := d.s.Plan(d.now)
		require.Equal(t, RuleUsable, d.only().Rule)
		_, err := d.s.Apply(p, Result{Outcome: Failed}) // no token of it is in flight
		require.NoError(t, err)
		require.NoError(t, d.s.ResetCache(ResetPreempt))
		d.step()
		got := d.only()
		require.Equal(t, id, got.Request)
		if !saved {
			require.Equal(t, []any{RuleGaveWay, AppendRefuse, Busy}, []any{got.Rule, got.Verdict, got.Reason})
			continue
		}
		require.Equal(t, []any{RuleRecovery, AppendNative, NotRefused}, []any{got.Rule, got.Verdict, got.Reason})
	}
}

// saver saves what is preempted, or not.
type saver struct {
	quiet
	saves bool
	kept  map[connector.RequestID]bool
}

func (c *saver) Preempting(r *connector.Request, _ connector.Tables, _ int) bool {
	if c.saves {
		c.kept = map[connector.RequestID]bool{r.ID: true}
	}
	return c.saves
}

func (c *saver) Recovering(id connector.RequestID) bool { return c.kept[id] }

func (c *saver) ResetCache() bool { return true }

// Telling decisions allocates nothing, and neither does not telling them.
func TestDecisionsAllocateNothing(t *testing.T) {
	for _, f := range []func(AppendDecision){nil, func(AppendDecision) {}} {
		cache, err := kvcache.New(kvcache.Config{Blocks: 33, BlockSize: 4})
		require.NoError(t, err)
		s, err := New(Config{MaxModelLen: 256, Append: AppendConfig{Enable: true}}, cache, WithDecisions(f))
		require.NoError(t, err)
		id, err := s.Add(Request{ID: "a", Prompt: prompt(1, 12), MaxTokens: 4, Route: AppendPrefill})
		require.NoError(t, err)
		r := s.slots.get(id)
		require.Zero(t, testing.AllocsPerRun(100, func() { s.tellAppend(r, s.appendVerdict(r, 8)) }))
	}
}

func TestDecisionNames(t *testing.T) {
	for r := RuleNone; r <= RuleGaveWay; r++ {
		require.NotContains(t, r.String(), "(")
	}
	for v := AppendNative; v <= AppendRefuse; v++ {
		require.NotContains(t, v.String(), "(")
	}
	require.Equal(t, "AppendRule(99) AppendVerdict(99)", AppendRule(99).String()+" "+AppendVerdict(99).String())
}

// The answer of a turn can say until when its prefix is kept.
func TestLeasedUntil(t *testing.T) {
	l := newLeaser(t, 12, AppendConfig{Enable: true, Lease: &LeaseConfig{TurnWait: 100 * time.Second, ToolWait: time.Second, Spread: 1}})
	l.now = Time(7 * time.Second)
	l.turn("a", 1, 18, Local, EndOfTurn)
	until, tokens := l.s.LeasedUntil("a")
	require.Equal(t, 16, tokens, "whole blocks")
	require.Equal(t, l.now.Add(150*time.Second), until, "the wait and one deviation of half as much")
	require.NoError(t, l.s.EndTurn("a", EndInTool))
	until, _ = l.s.LeasedUntil("a")
	require.Equal(t, l.now.Add(1500*time.Millisecond), until, "renewed by what the answer told")
	l.now = until
	l.turn("", 2, 8, Local, EndOfTurn)
	require.Zero(t, first(l.s.LeasedUntil("a")), "its time is over")
	require.Zero(t, first(l.s.LeasedUntil("nobody")))
	plain := newLeaser(t, 12, AppendConfig{Enable: true})
	plain.turn("a", 1, 16, Local, EndOfTurn)
	require.Zero(t, first(plain.s.LeasedUntil("a")), "nothing is kept")
}

func first(t Time, _ int) Time { return t }
