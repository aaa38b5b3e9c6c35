package scheduler_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/internal/invariants"
	"github.com/sluice-serving/sluice/kvcache"
	"github.com/sluice-serving/sluice/scheduler"
)

func newPlain(t *testing.T, change func(*rigConfig)) *rig {
	t.Helper()
	c := rigConfig{blocks: 40, blockSize: 4}
	c.MaxModelLen, c.VocabSize = 60, 5000
	if change != nil {
		change(&c)
	}
	r, err := newRig(c)
	require.NoError(t, err)
	return r
}

func TestConfigValidate(t *testing.T) {
	require.NoError(t, scheduler.Config{MaxModelLen: 1}.Validate())
	for name, c := range map[string]scheduler.Config{
		"MaxModelLen":        {},
		"MaxNumSeqs":         {MaxModelLen: 1, MaxNumSeqs: -1},
		"Watermark":          {MaxModelLen: 1, Watermark: 1},
		"MaxScheduledTokens": {MaxModelLen: 1, MaxBatchedTokens: 8, MaxScheduledTokens: 9},
		"DraftSlots":         {MaxModelLen: 1, MaxBatchedTokens: 8, DraftSlots: 8},
		"Drafts":             {MaxModelLen: 1, MaxBatchedTokens: 8, Drafts: 8},
		"DynamicDrafts":      {MaxModelLen: 1, Drafts: 2, DynamicDrafts: []int{1, 3}},
		"Policy":             {MaxModelLen: 1, Policy: 99},
		"Chunking":           {MaxModelLen: 9000, MaxBatchedTokens: 100, Chunking: scheduler.WholePrefill},
		"HoldBack":           {MaxModelLen: 1, HoldBack: -1},
		"HoldBack: needs":    {MaxModelLen: 1, HoldBack: 2, Chunking: scheduler.WholePrefill},
		"LoadTimeout":        {MaxModelLen: 1, LoadTimeout: -1},
		"Lookahead":          {MaxModelLen: 1, Lookahead: -2},
	} {
		require.ErrorContains(t, c.Validate(), name, name)
	}
	err := scheduler.Config{MaxNumSeqs: -1, Workers: -1}.Validate()
	for _, field := range []string{"MaxModelLen", "MaxNumSeqs", "Workers"} {
		require.ErrorContains(t, err, field, "all faults are reported")
	}
	_, err = scheduler.New(scheduler.Config{MaxModelLen: 1}, nil)
	require.Error(t, err)
	_, err = scheduler.ParsePolicy("best_effort")
	require.Error(t, err)
}

func TestAddRefuses(t *testing.T) {
	r := newPlain(t, nil)
	good := scheduler.Request{ID: "a", Prompt: parseInts(1, 5), MaxTokens: 2}
	for field, change := range map[string]func(*scheduler.Request){
		"ID":         func(q *scheduler.Request) { q.ID = "" },
		"Prompt":     func(q *scheduler.Request) { q.Prompt = nil },
		"MaxTokens":  func(q *scheduler.Request) { q.MaxTokens = -1 },
		"MinTokens":  func(q *scheduler.Request) { q.MinTokens = 3 },
		"Repetition": func(q *scheduler.Request) { q.Repetition.MaxSize = -1 },
		"Route":      func(q *scheduler.Request) { q.Route = 9 },
		"Grammar":    func(q *scheduler.Request) { q.Grammar = 9 },
	} {
		q := good
		change(&q)
		_, err := r.s.Add(q)
		var bad *scheduler.RequestError
		require.ErrorAs(t, err, &bad, field)
		require.Equal(t, field, bad.Field)
	}
	for _, tok := range []scheduler.Token{-1, 5000, 1 << 30} {
		for at := range 11 { // wherever it stands
			q := good
			q.Prompt = parseInts(1, 11)
			q.Prompt[at] = tok
			_, err := r.s.Add(q)
			require.ErrorContains(t, err, "vocabulary")
		}
	}
	require.Zero(t, r.s.Unfinished())
	_, err := r.s.Add(good)
	require.NoError(t, err)
	_, err = r.s.Add(good)
	require.ErrorIs(t, err, scheduler.ErrDuplicate)
	require.Equal(t, 1, r.s.Unfinished())
}

func TestUnknownHandles(t *testing.T) {
	r := newPlain(t, nil)
	require.NoError(t, r.add(scheduler.Request{ID: "a", Prompt: parseInts(1, 5), MaxTokens: 1}, remote{}))
	first := r.ids["a"]
	require.NoError(t, r.quiesce(10))
	require.NoError(t, r.add(scheduler.Request{ID: "a", Prompt: parseInts(1, 5), MaxTokens: 1}, remote{}))
	second := r.ids["a"]
	require.Equal(t, first.Slot(), second.Slot(), "the slot is used again")
	require.NotEqual(t, first, second, "the handle is not")
	require.ErrorIs(t, r.s.Abort(first), scheduler.ErrUnknown)
	require.ErrorIs(t, r.s.Abort(0), scheduler.ErrUnknown)
	require.ErrorIs(t, r.s.SetGrammar(first, scheduler.GrammarReady), scheduler.ErrUnknown)
	_, ok := r.s.Status(first)
	require.False(t, ok)
	require.Error(t, r.s.Finish(second, scheduler.NotFinished))
	_, ok = r.s.Status(second)
	require.True(t, ok, "a refused call changes nothing")
}

// TestApplyRefuses gives a scheduler wrong plans and results. Each is a typed
// error, nothing changes, and the right result still goes through.
func TestApplyRefuses(t *testing.T) {
	r := newPlain(t, func(c *rigConfig) { c.Drafts, c.InFlight = 1, 2 })
	other := newPlain(t, nil)
	for _, id := range []string{"a", "b"} {
		require.NoError(t, r.add(scheduler.Request{ID: id, Prompt: parseInts(1, 5), MaxTokens: 9}, remote{}))
	}
	require.NoError(t, other.add(scheduler.Request{ID: "x", Prompt: parseInts(1, 5), MaxTokens: 9}, remote{}))
	foreign, err := other.plan(false)
	require.NoError(t, err)
	p, err := r.plan(false)
	require.NoError(t, err)
	later, err := r.plan(false)
	require.NoError(t, err)
	require.Nil(t, r.s.Plan(9), "no more than two in flight")
	before := r.s.Dump()
	for name, try := range map[string]struct {
		p   *scheduler.Plan
		res scheduler.Result
		is  error
	}{
		"no plan":            {nil, scheduler.Result{}, scheduler.ErrForeignPlan},
		"foreign plan":       {foreign, scheduler.Result{Tokens: parseInts(1, 1)}, scheduler.ErrForeignPlan},
		"decoded plan":       {&scheduler.Plan{}, scheduler.Result{}, scheduler.ErrForeignPlan},
		"later plan":         {later, scheduler.Result{}, scheduler.ErrPlanOrder},
		"too few tokens":     {p, scheduler.Result{Tokens: parseInts(1, 1)}, nil},
		"too many tokens":    {p, scheduler.Result{Tokens: parseInts(1, 3)}, nil},
		"a row without any":  {p, scheduler.Result{Tokens: parseInts(1, 1), Counts: []int32{0, 1}}, nil},
		"too many counts":    {p, scheduler.Result{Tokens: parseInts(1, 2), Counts: []int32{1, 1, 0}}, nil},
		"negative count":     {p, scheduler.Result{Tokens: parseInts(1, 2), Counts: []int32{-1, 3}}, nil},
		"more than drafts":   {p, scheduler.Result{Tokens: parseInts(1, 3), Counts: []int32{1, 2}}, nil},
		"no such token":      {p, scheduler.Result{Tokens: []scheduler.Token{1, 5000}}, nil},
		"negative token":     {p, scheduler.Result{Tokens: []scheduler.Token{1, -7}}, nil},
		"no such outcome":    {p, scheduler.Result{Outcome: 9}, nil},
		"drafts uncounted":   {p, scheduler.Result{Tokens: parseInts(1, 2), Drafts: parseInts(1, 1)}, nil},
		"too many drafts":    {p, scheduler.Result{Tokens: parseInts(1, 2), Drafts: parseInts(1, 2), DraftCounts: []int32{2, 0}}, nil},
		"grammar of no row":  {p, scheduler.Result{Tokens: parseInts(1, 2), GrammarErrors: []int32{2}}, nil},
		"a draft out of it":  {p, scheduler.Result{Tokens: parseInts(1, 2), Drafts: []scheduler.Token{9999}, DraftCounts: []int32{1, 0}}, nil},
		"draft counts short": {p, scheduler.Result{Tokens: parseInts(1, 2), DraftCounts: []int32{0}}, nil},
	} {
		_, err := r.s.Apply(try.p, try.res)
		require.Error(t, err, name)
		if try.is != nil {
			require.ErrorIs(t, err, try.is, name)
		} else {
			var bad *scheduler.ResultError
			require.ErrorAs(t, err, &bad, name)
		}
		require.Equal(t, before, r.s.Dump(), name)
	}
	_, err = r.apply()
	require.NoError(t, err)
	_, err = r.s.Apply(p, scheduler.Result{Tokens: parseInts(1, 2)})
	require.ErrorIs(t, err, scheduler.ErrStalePlan)
	require.NoError(t, r.quiesce(100))
	require.NoError(t, r.verify("a"))
}

// TestWindowsAreFreedOnProcessedTokens: blocks leave a sliding window only
// when the steps that read them are applied, and then once.
func TestWindowsAreFreedOnProcessedTokens(t *testing.T) {
	cache, err := kvcache.New(kvcache.Config{Blocks: 101, BlockSize: 16, Groups: []kvcache.GroupSpec{{Kind: kvcache.SlidingWindow, Window: 32}}})
	require.NoError(t, err)
	s, err := scheduler.New(scheduler.Config{MaxModelLen: 512, Scheduling: scheduler.Async, InFlight: 3, Lookahead: scheduler.NoLookahead}, cache)
	require.NoError(t, err)
	_, err = s.Add(scheduler.Request{ID: "a", Prompt: parseInts(1, 96), MaxTokens: 20})
	require.NoError(t, err)
	first := s.Plan(0)
	require.EqualValues(t, 94, first.Free)
	second := s.Plan(0)
	require.EqualValues(t, 93, second.Free, "the prompt's step is in flight and reads all of it")
	_, err = s.Apply(first, scheduler.Result{Tokens: []scheduler.Token{7}})
	require.NoError(t, err)
	third := s.Plan(0)
	require.EqualValues(t, 97, third.Free, "(96-32+1)/16 = 4 blocks have left the window")
	require.NoError(t, s.Check())
	_, err = s.Apply(second, scheduler.Result{Tokens: []scheduler.Token{8}})
	require.NoError(t, err)
	fourth := s.Plan(0)
	require.EqualValues(t, 97, fourth.Free, "and none of them twice")
	_, err = s.Apply(third, scheduler.Result{Tokens: []scheduler.Token{9}})
	require.NoError(t, err)
	require.NoError(t, s.Check())
}

// TestGroupsHaveTablesOfTheirOwn: with two groups each has a table, and no
// block stands in both, also when hits and loads come together in a full pool.
func TestGroupsHaveTablesOfTheirOwn(t *testing.T) {
	cache, err := kvcache.New(kvcache.Config{Blocks: 13, BlockSize: 4, Groups: []kvcache.GroupSpec{{}, {}}})
	require.NoError(t, err)
	conn := newScripted()
	s, err := scheduler.New(scheduler.Config{MaxModelLen: 24, Lookahead: scheduler.NoLookahead}, cache, scheduler.WithConnector(conn))
	require.NoError(t, err)
	step := func() *scheduler.Plan {
		p := s.Plan(0)
		var res scheduler.Result
		for _, n := range p.Samples {
			for range n {
				res.Tokens = append(res.Tokens, 9)
			}
		}
		_, err := s.Apply(p, res)
		require.NoError(t, err)
		require.NoError(t, s.Check())
		return p
	}
	_, err = s.Add(scheduler.Request{ID: "a", Prompt: parseInts(1, 13), MaxTokens: 1})
	require.NoError(t, err)
	step()
	_, err = s.Add(scheduler.Request{ID: "b", Prompt: parseInts(1, 24), MaxTokens: 1, Params: remote{tokens: 23, sync: true}})
	require.NoError(t, err)
	p := step()
	require.Equal(t, 1, p.Rows())
	require.EqualValues(t, 12, p.LocalHits[0])
	require.EqualValues(t, 11, p.ExternalHits[0])
	seen := map[kvcache.BlockID]bool{}
	for g := range 2 {
		_, blocks := p.Table(0, g)
		require.Len(t, blocks, 6)
		for _, b := range blocks {
			require.False(t, seen[b], "block %d stands twice", b)
			seen[b] = true
		}
	}
	require.Len(t, seen, 12)
}

// TestSteadyStateAllocatesNothing: a decode step allocates no memory.
func TestSteadyStateAllocatesNothing(t *testing.T) {
	if invariants.Enabled {
		t.Skip("the checks of the invariants allocate")
	}
	st := newSteady(t, 64)
	for range 600 { // every request takes blocks and token room
		st.step(t)
	}
	require.Zero(t, testing.AllocsPerRun(300, func() { st.step(t) }))
}

func TestErrorTexts(t *testing.T) {
	for _, err := range []error{
		&scheduler.RequestError{ID: "a", Field: "Prompt", Reason: "is empty"},
		&scheduler.TooLongError{ID: "a", Prompt: 5, Limit: 4},
		&scheduler.NeverFitsError{ID: "a", Need: 5, Usable: 4},
		&scheduler.ResultError{Step: 3, Row: -1, Reason: "r"},
		&scheduler.ResultError{Step: 3, Row: 1, Reason: "r"},
	} {
		require.NotEmpty(t, err.Error())
		require.NotErrorIs(t, err, errors.ErrUnsupported)
	}
}
