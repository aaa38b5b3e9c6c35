package scheduler_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/kvcache"
	"github.com/sluice-serving/sluice/scheduler"
)

// yield runs one request whose model says the given tokens, and returns what
// was output and how it ended.
func yield(t *testing.T, req scheduler.Request, says []scheduler.Token) ([]scheduler.Token, scheduler.Output) {
	t.Helper()
	r := newPlain(t, nil)
	req.ID = "a"
	if req.Prompt == nil {
		req.Prompt = parseInts(1, 3)
	}
	_, err := r.s.Add(req)
	require.NoError(t, err)
	var got []scheduler.Token
	for range 100 {
		p := r.s.Plan(0)
		var res scheduler.Result
		if p.Rows() > 0 && p.Samples[0] == 1 {
			res.Tokens = says[len(got) : len(got)+1]
		}
		outs, err := r.s.Apply(p, res)
		require.NoError(t, err)
		for _, o := range outs {
			got = append(got, o.Tokens...)
			if o.Finish != scheduler.NotFinished {
				return got, o
			}
		}
	}
	t.Fatal("did not end")
	return nil, scheduler.Output{}
}

func TestRepetition(t *testing.T) {
	rule := func(minSize, maxSize, count int) scheduler.Repetition {
		return scheduler.Repetition{MinSize: minSize, MaxSize: maxSize, MinCount: count}
	}
	tokens := func(ts ...scheduler.Token) []scheduler.Token { return ts }
	for _, c := range []struct {
		name  string
		rule  scheduler.Repetition
		min   int
		stop  []scheduler.Token
		says  []scheduler.Token
		ends  int // tokens until the end
		cause scheduler.FinishReason
	}{
		{"pattern of three, three times", rule(0, 3, 3), 0, nil, tokens(1, 2, 3, 1, 2, 3, 1, 2, 3, 9, 9, 9), 9, scheduler.FinishRepetition},
		{"two repeats are not three", rule(0, 3, 3), 0, nil, tokens(1, 2, 3, 1, 2, 3, 4, 5, 6, 7), 10, scheduler.FinishLength},
		{"pattern of two, four times", rule(0, 2, 4), 0, nil, tokens(1, 2, 1, 2, 1, 2, 1, 2, 9, 9), 8, scheduler.FinishRepetition},
		{"varied output", rule(0, 4, 2), 0, nil, tokens(1, 2, 3, 4, 5, 6, 7, 8, 9, 10), 10, scheduler.FinishLength},
		{"a broken last repeat", rule(2, 3, 3), 0, nil, tokens(1, 2, 3, 1, 2, 3, 1, 2, 4, 7), 10, scheduler.FinishLength},
		{"off without a size", rule(0, 0, 3), 0, nil, tokens(1, 1, 1, 1, 1), 5, scheduler.FinishLength},
		{"off below two repeats", rule(0, 3, 1), 0, nil, tokens(1, 2, 3, 4, 5), 5, scheduler.FinishLength},
		{"at the end of more", rule(0, 2, 3), 0, nil, tokens(5, 6, 7, 1, 2, 1, 2, 1, 2, 9), 9, scheduler.FinishRepetition},
		{"a long pattern", rule(8, 8, 2), 0, nil, tokens(1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8, 9), 16, scheduler.FinishRepetition},
		{"one token", rule(1, 1, 4), 0, nil, tokens(3, 5, 5, 5, 5, 5), 5, scheduler.FinishRepetition},
		{"below the least number of tokens", rule(0, 1, 2), 5, nil, tokens(4, 4, 4, 4, 4, 4), 5, scheduler.FinishRepetition},
		{"shorter patterns than the least are ignored", rule(3, 4, 2), 0, nil, tokens(1, 1, 5, 5, 6, 7, 6, 7), 8, scheduler.FinishLength},
		{"size at the limit", rule(4, 4, 2), 0, nil, tokens(1, 2, 3, 4, 1, 2, 3, 4, 5), 8, scheduler.FinishRepetition},
		{"every size in between", rule(1, 4, 2), 0, nil, tokens(7, 1, 2, 3, 1, 2, 3, 5), 7, scheduler.FinishRepetition},
		{"a stop id goes first", rule(0, 1, 2), 0, tokens(4), tokens(4, 4, 4), 1, scheduler.FinishStop},
		{"a high count is not reached", rule(0, 2, 50), 0, nil, tokens(1, 1, 1, 1, 1, 1), 6, scheduler.FinishLength},
		{"no rule", scheduler.Repetition{}, 0, nil, tokens(1, 1, 1, 1), 4, scheduler.FinishLength},
		{"the prompt does not count", rule(0, 1, 3), 0, nil, tokens(3, 3, 9, 9), 4, scheduler.FinishLength},
	} {
		t.Run(c.name, func(t *testing.T) {
			req := scheduler.Request{MaxTokens: len(c.says), MinTokens: c.min, Repetition: c.rule, StopIDs: c.stop, Prompt: []scheduler.Token{1, 2, 3}}
			got, end := yield(t, req, c.says)
			require.Equal(t, c.cause, end.Finish)
			require.Len(t, got, c.ends)
		})
	}
}

func TestStops(t *testing.T) {
	says := []scheduler.Token{10, 11, 12, 13, 14, 15}
	for _, c := range []struct {
		name string
		req  scheduler.Request
		n    int
		end  scheduler.FinishReason
		why  scheduler.Stop
	}{
		{"end of sequence", scheduler.Request{MaxTokens: 6, EOS: []scheduler.Token{12}}, 3, scheduler.FinishStop, scheduler.StopEOS},
		{"one of several ends", scheduler.Request{MaxTokens: 6, EOS: []scheduler.Token{99, 11}}, 2, scheduler.FinishStop, scheduler.StopEOS},
		{"ignored when not given", scheduler.Request{MaxTokens: 6}, 6, scheduler.FinishLength, scheduler.StopNone},
		{"stop id", scheduler.Request{MaxTokens: 6, StopIDs: []scheduler.Token{98, 13}}, 4, scheduler.FinishStop, scheduler.StopID},
		{"the end goes before the stop id", scheduler.Request{MaxTokens: 6, EOS: []scheduler.Token{12}, StopIDs: []scheduler.Token{12}}, 3, scheduler.FinishStop, scheduler.StopEOS},
		{"a stop on the last token goes before length", scheduler.Request{MaxTokens: 3, StopIDs: []scheduler.Token{12}}, 3, scheduler.FinishStop, scheduler.StopID},
		{"not below the least number", scheduler.Request{MaxTokens: 6, MinTokens: 3, StopIDs: []scheduler.Token{11, 14}}, 5, scheduler.FinishStop, scheduler.StopID},
		{"at the least number", scheduler.Request{MaxTokens: 6, MinTokens: 3, StopIDs: []scheduler.Token{12}}, 3, scheduler.FinishStop, scheduler.StopID},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, end := yield(t, c.req, says)
			require.Equal(t, says[:c.n], got)
			require.Equal(t, c.end, end.Finish)
			require.Equal(t, c.why, end.Stop)
			if c.why == scheduler.StopID {
				require.Equal(t, got[len(got)-1], end.StopToken)
			}
		})
	}
}

func TestSurplusDraftsAfterAStopAreCut(t *testing.T) {
	r := newPlain(t, func(c *rigConfig) { c.Drafts = 3 })
	r.propose(3, 100)
	prompt := parseInts(11, 14)
	want := answer(prompt, 4)
	require.NoError(t, r.add(scheduler.Request{ID: "a", Prompt: prompt, MaxTokens: 9, StopIDs: want[2:3]}, remote{}))
	require.NoError(t, r.add(scheduler.Request{ID: "b", Prompt: parseInts(21, 24), MaxTokens: 9}, remote{}))
	require.NoError(t, r.quiesce(50))
	require.Equal(t, want[:3], r.got["a"])
	require.Equal(t, scheduler.FinishStop, r.ends["a"])
	require.Len(t, r.got["b"], 9)
}

func TestFirstOutputTellsWhatWasCached(t *testing.T) {
	c := rigConfig{connector: true}
	c.MaxModelLen = 60
	r, err := newRig(c)
	require.NoError(t, err)
	require.NoError(t, r.add(scheduler.Request{ID: "a", Prompt: parseInts(1, 8), MaxTokens: 1}, remote{}))
	require.NoError(t, r.quiesce(9))
	require.NoError(t, r.add(scheduler.Request{ID: "b", Prompt: parseInts(1, 20), MaxTokens: 3, Session: "s"}, remote{tokens: 16, sync: true}))
	first := true
	for r.s.HasWork() {
		_, err := r.plan(false)
		require.NoError(t, err)
		f := r.flight[0]
		r.flight = nil
		outs, err := r.s.Apply(f.p, f.res)
		require.NoError(t, err)
		for _, o := range outs {
			require.Equal(t, first, o.First)
			if first {
				require.EqualValues(t, 8, o.Cached)
				require.EqualValues(t, 8, o.External)
			}
			first = false
		}
	}
	require.False(t, first)
}

// TestResumedByGeneration: what a plan says of a resumed request depends on
// what the executor keeps.
func TestResumedByGeneration(t *testing.T) {
	for _, generation := range []scheduler.Executor{scheduler.CachedResume, scheduler.NewResume} {
		r := newPlain(t, func(c *rigConfig) { c.blocks, c.Executor = 6, generation })
		require.NoError(t, r.add(scheduler.Request{ID: "a", Prompt: parseInts(1, 8), MaxTokens: 6}, remote{}))
		require.NoError(t, r.add(scheduler.Request{ID: "b", Prompt: parseInts(11, 18), MaxTokens: 6}, remote{}))
		resumed := false
		for r.s.HasWork() {
			p, err := r.plan(false)
			require.NoError(t, err)
			for i, id := range p.Requests {
				known := p.KnownTokens(i)
				switch {
				case p.Kinds[i] == scheduler.RowRunning:
					require.Empty(t, known)
					continue
				case generation == scheduler.CachedResume:
					require.Empty(t, known)
				default:
					require.Equal(t, scheduler.RowNew, p.Kinds[i])
					all := append(append([]scheduler.Token{}, r.reqs[r.names[id]].Prompt...), r.got[r.names[id]]...)
					require.Equal(t, all, known)
				}
				from, blocks := p.Table(i, 0)
				require.Zero(t, from)
				require.NotEmpty(t, blocks, "the whole table")
				if len(r.got[r.names[id]]) > 0 {
					resumed = true
					require.Equal(t, generation == scheduler.CachedResume, p.Kinds[i] == scheduler.RowResumed)
					require.EqualValues(t, 9, p.Prefill[i], "its output is part of what it computes again")
				}
			}
			_, err = r.apply()
			require.NoError(t, err)
		}
		require.True(t, resumed)
		require.NoError(t, r.verify("a"))
		require.NoError(t, r.verify("b"))
	}
}

// sessionConnector remembers what it is told of a request.
type sessionConnector struct {
	connector.Base
	seen []connector.Request
}

func (c *sessionConnector) Added(r *connector.Request) { c.seen = append(c.seen, *r) }

func TestConnectorSeesTheRequest(t *testing.T) {
	c := rigConfig{}
	conn := &sessionConnector{}
	c.opts = append(c.opts, scheduler.WithConnector(conn))
	c.MaxModelLen = 60
	r, err := newRig(c)
	require.NoError(t, err)
	_, err = r.s.Add(scheduler.Request{ID: "a", Prompt: parseInts(1, 8), MaxTokens: 1, Session: "s", Params: 7, Route: scheduler.RemotePrefill})
	require.NoError(t, err)
	require.Len(t, conn.seen, 1)
	require.Equal(t, "s", conn.seen[0].Session)
	require.Equal(t, "a", conn.seen[0].Name)
	require.Equal(t, 8, conn.seen[0].Prompt)
	require.Equal(t, scheduler.RemotePrefill, conn.seen[0].Route)
	require.Equal(t, 7, conn.seen[0].Params)
	require.False(t, connector.HasRecovery(conn, conn.seen[0].ID))
}

func TestNames(t *testing.T) {
	for _, s := range []fmt.Stringer{
		scheduler.Waiting, scheduler.WaitingGrammar, scheduler.WaitingKV, scheduler.WaitingInput, scheduler.Running, scheduler.Preempted, scheduler.Finished,
		scheduler.FinishStop, scheduler.FinishLength, scheduler.FinishAbort, scheduler.FinishError, scheduler.FinishRepetition,
		scheduler.NoPrefix, scheduler.BelowMinPrefix, scheduler.SuffixTooLong, scheduler.Busy, scheduler.Draining, scheduler.BelowThreshold,
		scheduler.RowNew, scheduler.RowResumed, scheduler.RowRunning, scheduler.ForStep, scheduler.ForLoad, scheduler.ForInput,
		scheduler.FCFS, scheduler.Priority, scheduler.ShortFirst, scheduler.EarliestDeadline, scheduler.FairShare, scheduler.Sync, scheduler.Async,
		scheduler.NoGrammar, scheduler.GrammarPending, scheduler.GrammarReady, scheduler.GrammarFailed,
		scheduler.Local, scheduler.RemotePrefill, scheduler.AppendPrefill,
	} {
		require.NotEmpty(t, s.String())
		require.NotContains(t, s.String(), "(", "%T", s)
	}
	for _, s := range []fmt.Stringer{
		scheduler.Status(99), scheduler.FinishReason(99), scheduler.RefusalReason(99), scheduler.RowKind(99), scheduler.Wait(99),
		scheduler.Policy(99), scheduler.GrammarState(99), scheduler.Route(99),
	} {
		require.Contains(t, s.String(), "(99)")
	}
	require.Equal(t, "stop", scheduler.FinishRefused.String(), "a refusal in band ends as a stop")
}

func TestGroupsThatAreNotServed(t *testing.T) {
	for _, kind := range []kvcache.GroupKind{kvcache.ChunkedLocal, kvcache.Recurrent} {
		_, err := newRig(rigConfig{groups: []kvcache.GroupSpec{{}, {Kind: kind}}})
		var unsupported *kvcache.UnsupportedGroupError
		require.ErrorAs(t, err, &unsupported)
		require.Equal(t, kind, unsupported.Kind)
	}
}

// forgetful is a connector that can or cannot forget what it keeps.
type forgetful struct {
	connector.Base
	can    bool
	forgot int
}

func (c *forgetful) ResetCache() bool {
	if c.can {
		c.forgot++
	}
	return c.can
}

func TestResetReachesTheConnector(t *testing.T) {
	for i := range 4 {
		can, recorded := i%2 == 0, i >= 2
		conn := &forgetful{can: can}
		c := rigConfig{opts: []scheduler.Option{scheduler.WithConnector(conn)}}
		c.MaxModelLen = 40
		var recording bytes.Buffer
		if recorded {
			c.opts = append(c.opts, scheduler.WithRecorder(scheduler.NewRecorder(&recording)))
		}
		r, err := newRig(c)
		require.NoError(t, err)
		if err := r.s.ResetCache(scheduler.ResetIdle); can {
			require.NoError(t, err)
			require.Equal(t, 1, conn.forgot)
		} else {
			require.ErrorIs(t, err, scheduler.ErrBusy)
		}
		if recorded {
			_, err := scheduler.Replay(&recording)
			require.NoError(t, err)
		}
	}
	r := newPlain(t, nil)
	require.NoError(t, r.s.ResetCache(scheduler.ResetIdle), "nothing to reset without a connector")
}

// TestDeliveryIsTheConnectorsToSay: output in flight of a preempted request is
// dropped if the connector must deliver its KV, and delivered otherwise.
func TestDeliveryIsTheConnectorsToSay(t *testing.T) {
	for _, producer := range []bool{false, true} {
		c := rigConfig{blocks: 5, blockSize: 16, connector: true, producer: producer}
		c.MaxModelLen, c.Scheduling = 64, scheduler.Async
		r, err := newRig(c)
		require.NoError(t, err)
		require.NoError(t, r.add(scheduler.Request{ID: "a", Prompt: parseInts(1, 32), MaxTokens: 4}, remote{}))
		require.NoError(t, r.add(scheduler.Request{ID: "b", Prompt: parseInts(101, 132), MaxTokens: 4}, remote{}))
		for range 2 {
			_, err := r.plan(false)
			require.NoError(t, err)
		}
		_, err = r.apply()
		require.NoError(t, err)
		require.Len(t, r.got["a"], 1)
		if producer {
			require.Empty(t, r.got["b"])
		} else {
			require.Len(t, r.got["b"], 1)
		}
		require.NoError(t, r.quiesce(50))
		require.NoError(t, r.verify("b"))
	}
}

// TestSessionOutputIsNotOverwritten: tokens that were handed out stay what
// they are although the next turn begins where they stood.
func TestSessionOutputIsNotOverwritten(t *testing.T) {
	r := newPlain(t, nil)
	for _, prompt := range [][]scheduler.Token{parseInts(1, 4), parseInts(500, 520)} {
		_, err := r.s.Add(scheduler.Request{ID: "a", Prompt: prompt, MaxTokens: 2, Resumable: true})
		require.NoError(t, err)
	}
	p := r.s.Plan(0)
	_, err := r.s.Apply(p, scheduler.Result{Tokens: []scheduler.Token{7}})
	require.NoError(t, err)
	p = r.s.Plan(0)
	outs, err := r.s.Apply(p, scheduler.Result{Tokens: []scheduler.Token{8}})
	require.NoError(t, err)
	require.Len(t, outs, 1)
	require.Equal(t, []scheduler.Token{8}, outs[0].Tokens, "the next turn has begun already")
	p = r.s.Plan(0)
	require.Equal(t, append([]scheduler.Token{}, parseInts(500, 520)...), p.Input(0))
	require.EqualValues(t, 5, p.Computed[0])
}

// TestEventsAreToldWhenAppliedNotWhenPlanned: others learn of a block when the
// step that computed it is applied, and never of one that was not computed.
func TestEventsAreToldWhenAppliedNotWhenPlanned(t *testing.T) {
	cache, err := kvcache.New(kvcache.Config{Blocks: 20, BlockSize: 4, Events: kvcache.Events{Mode: kvcache.EventsOn}})
	require.NoError(t, err)
	s, err := scheduler.New(scheduler.Config{MaxModelLen: 40, InFlight: 2}, cache)
	require.NoError(t, err)
	add := func(id string, from int) {
		_, err := s.Add(scheduler.Request{ID: id, Prompt: parseInts(from, from+7), MaxTokens: 1})
		require.NoError(t, err)
	}
	add("a", 1)
	first := s.Plan(0)
	add("b", 101)
	second := s.Plan(0)
	require.Empty(t, s.TakeEvents(nil), "planned, not computed")
	_, err = s.Apply(first, scheduler.Result{Tokens: []scheduler.Token{9}})
	require.NoError(t, err)
	events := s.TakeEvents(nil)
	require.NotEmpty(t, events)
	for _, e := range events {
		require.Equal(t, kvcache.Stored, e.Kind)
		require.Less(t, int(e.Tokens[0]), 100, "of the first request only")
	}
	_, err = s.Apply(second, scheduler.Result{Outcome: scheduler.Failed})
	require.NoError(t, err)
	require.Empty(t, s.TakeEvents(nil), "a step that failed tells nothing")
}

// TestEventsOfAPromptInChunks: two steps in flight compute one prompt; others
// learn of the second one's blocks when that one is applied, though they follow
// the first one's.
func TestEventsOfAPromptInChunks(t *testing.T) {
	cache, err := kvcache.New(kvcache.Config{Blocks: 20, BlockSize: 4, Events: kvcache.Events{Mode: kvcache.EventsOn}})
	require.NoError(t, err)
	s, err := scheduler.New(scheduler.Config{MaxModelLen: 40, MaxBatchedTokens: 8, InFlight: 2}, cache)
	require.NoError(t, err)
	prompt := parseInts(1, 17)
	_, err = s.Add(scheduler.Request{ID: "a", Prompt: prompt, MaxTokens: 1})
	require.NoError(t, err)
	first, second := s.Plan(0), s.Plan(0)
	require.EqualValues(t, 8, first.Total)
	require.EqualValues(t, 8, second.Total)
	_, err = s.Apply(first, scheduler.Result{})
	require.NoError(t, err)
	events := s.TakeEvents(nil)
	require.Len(t, events, 1)
	require.Equal(t, prompt[:8], events[0].Tokens)
	last := events[0].Hashes[1]
	_, err = s.Apply(second, scheduler.Result{})
	require.NoError(t, err)
	events = s.TakeEvents(nil)
	require.Len(t, events, 1)
	require.Equal(t, prompt[8:16], events[0].Tokens)
	require.Equal(t, last, events[0].Parent)
}
