package scheduler

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/connector"
)

// loader brings the whole prompt of requests whose KV comes from a Prefiller.
type loader struct{ quiet }

func (loader) Lookup(r *connector.Request, local int) connector.Answer {
	if r.Route != RemotePrefill {
		return connector.Answer{}
	}
	return connector.Answer{Tokens: len(r.Tokens) - local, Async: true}
}

// scheduled is the tokens of a request's row in the next plan, which is applied.
func (d *decider) scheduled(id RequestID) (n int32) {
	d.Helper()
	p := d.s.Plan(d.now)
	samples := 0
	for i, r := range p.Requests {
		samples += int(p.Samples[i])
		if r == id {
			n = p.Scheduled[i]
		}
	}
	_, err := d.s.Apply(p, Result{Tokens: make([]Token, samples)})
	require.NoError(d, err)
	return n
}

// While requests whose KV comes from a Prefiller wait for it, attempts leave
// them their share of a step.
func TestAppendsLeaveAShareToArrivals(t *testing.T) {
	for _, c := range []struct {
		share   float64
		arrives bool
		want    int32
	}{{0.25, false, 32}, {0.25, true, 24}, {0.5, true, 16}, {0, true, 32}} {
		d := newDecider(t, Config{MaxBatchedTokens: 32, Append: AppendConfig{Enable: true, Governor: &GovernorConfig{}, RemoteShare: c.share}}, WithConnector(loader{}))
		d.turn("s", 1, 16, Local, EndOfTurn)
		if c.arrives {
			d.add(Request{ID: "from a Prefiller", Prompt: prompt(2, 12), Route: RemotePrefill})
			require.Zero(t, d.scheduled(0))
		}
		id := d.add(Request{ID: "hit", Prompt: prompt(1, 60), Route: AppendPrefill})
		require.Equal(t, c.want, d.scheduled(id), "%+v", c)
	}
}

// An attempt waits for a step in which nobody decodes, as long as that is sure to come
// within Quiet steps; a request that may go on for longer is not waited for.
func TestAppendsWaitForQuiet(t *testing.T) {
	for _, c := range []struct{ quiet, left, steps int }{{8, 5, 5}, {8, 8, 8}, {8, 9, 0}, {0, 5, 0}} {
		d := newDecider(t, Config{MaxBatchedTokens: 64, Append: AppendConfig{Enable: true, Governor: &GovernorConfig{Quiet: c.quiet}}})
		d.turn("s", 1, 16, Local, EndOfTurn)
		other := d.add(Request{ID: "decodes", Prompt: prompt(2, 8), MaxTokens: c.left + 1})
		require.EqualValues(t, 8, d.scheduled(other))
		id := d.add(Request{ID: "hit", Prompt: prompt(1, 60), Route: AppendPrefill})
		held := 0
		for d.scheduled(id) == 0 {
			held++
			require.LessOrEqual(t, held, c.left, "%+v", c)
		}
		require.Equal(t, c.steps, held, "%+v", c)
	}
}

// However often others come meanwhile, no attempt waits longer than Quiet steps.
func TestAppendsWaitForQuietInVain(t *testing.T) {
	d := newDecider(t, Config{MaxBatchedTokens: 64, MaxNumSeqs: 16, Append: AppendConfig{Enable: true, Governor: &GovernorConfig{Quiet: 8}}})
	d.turn("s", 1, 16, Local, EndOfTurn)
	d.scheduled(d.add(Request{ID: "first", Prompt: prompt(2, 8), MaxTokens: 5}))
	id := d.add(Request{ID: "hit", Prompt: prompt(1, 60), Route: AppendPrefill})
	held := 0
	for i := 0; d.scheduled(id) == 0; i++ {
		held++
		require.LessOrEqual(t, held, 8)
		d.add(Request{ID: fmt.Sprint("other ", i), Prompt: prompt(3, 8), MaxTokens: 4})
	}
	require.Greater(t, held, 2)
}

// An attempt that is done in chunks waits for each as long as one that has not begun.
func TestChunksWaitForQuietInVain(t *testing.T) {
	d := newDecider(t, Config{MaxBatchedTokens: 64, MaxNumSeqs: 16, Append: AppendConfig{Enable: true, Governor: &GovernorConfig{Quiet: 8, FirstTokens: 16}}})
	d.turn("s", 1, 16, Local, EndOfTurn)
	d.scheduled(d.add(Request{ID: "first", Prompt: prompt(2, 8), MaxTokens: 5}))
	id := d.add(Request{ID: "hit", Prompt: prompt(1, 60), Route: AppendPrefill})
	held, chunks := 0, 0
	for i := 0; chunks < 3; i++ {
		switch n := d.scheduled(id); n {
		case 0:
			held++
			require.LessOrEqual(t, held, 8)
		default:
			require.LessOrEqual(t, n, int32(16))
			require.Greater(t, held, 2)
			held, chunks = 0, chunks+1
		}
		d.add(Request{ID: fmt.Sprint("other ", i), Prompt: prompt(3, 8), MaxTokens: 4})
	}
}

// An attempt waits for quiet wherever it stands in the queues, and steps that others than
// it keep it from are not counted.
func TestAttemptsBehindOthersWaitForQuiet(t *testing.T) {
	for _, first := range []Request{{ID: "first", Prompt: prompt(4, 8), Grammar: GrammarPending}, {ID: "first", Prompt: prompt(4, 8)}} {
		d := newDecider(t, Config{MaxBatchedTokens: 64, Append: AppendConfig{Enable: true, Governor: &GovernorConfig{Quiet: 8}}})
		d.turn("s", 1, 16, Local, EndOfTurn)
		d.scheduled(d.add(Request{ID: "decodes", Prompt: prompt(2, 8), MaxTokens: 6}))
		d.add(first)
		id := d.add(Request{ID: "hit", Prompt: prompt(1, 60), Route: AppendPrefill})
		for range 5 {
			require.Zero(t, d.scheduled(id), "%+v", first)
		}
		require.EqualValues(t, 44, d.scheduled(id), "%+v", first)
	}

	d := newDecider(t, Config{MaxBatchedTokens: 64, Append: AppendConfig{Enable: true, Governor: &GovernorConfig{Quiet: 8}}})
	d.turn("s", 1, 16, Local, EndOfTurn)
	d.scheduled(d.add(Request{ID: "decodes", Prompt: prompt(2, 8), MaxTokens: 8}))
	id := d.add(Request{ID: "hit", Prompt: prompt(1, 60), Route: AppendPrefill})
	for _, pause := range []Pause{PauseAll, PauseNew, Unpaused} {
		d.s.SetPause(pause)
		for range 2 {
			require.Zero(t, d.scheduled(id))
		}
	}
	require.Equal(t, 2, d.s.appends.governor.held)
}

// Drafts in flight may all be rejected: what they may bring is neither sure nor over, and
// requests of synchronous plans in flight are not in each of them.
func TestQuietRestsOnWhatIsSure(t *testing.T) {
	for _, c := range []struct {
		cfg   Config
		plans int
		want  []int // steps left after each plan
	}{
		{Config{}, 1, []int{6}},
		{Config{Scheduling: Async, InFlight: 3}, 3, []int{5, 4, 3}},
		{Config{Scheduling: Async, InFlight: 3, Drafts: 4, MaxBatchedTokens: 64}, 3, []int{5, 4, 3}},
		{Config{InFlight: 3}, 3, []int{18, 18, 18}},
	} {
		c.cfg.Append = AppendConfig{Enable: true, Governor: &GovernorConfig{Quiet: 20}}
		d := newDecider(t, c.cfg)
		d.add(Request{ID: "decodes", Prompt: prompt(2, 8), MaxTokens: 6})
		var plans []*Plan
		for i := range c.plans {
			plans = append(plans, d.s.Plan(d.now))
			decodes, left, _, _ := d.s.appendLoad()
			require.Equal(t, 1, decodes, "%+v", c.cfg)
			require.Equal(t, c.want[i], left, "%+v", c.cfg)
		}
		for _, p := range plans { // no draft is accepted
			res := Result{Tokens: make([]Token, p.Rows())}
			for range p.Rows() {
				res.Counts = append(res.Counts, 1)
			}
			_, err := d.s.Apply(p, res)
			require.NoError(t, err)
		}
		decodes, left, _, _ := d.s.appendLoad()
		require.Equal(t, 1, decodes, "%+v", c.cfg)
		require.LessOrEqual(t, left, c.want[len(c.want)-1], "%+v", c.cfg)
	}
}

// teach shows the governor that a step takes 10 ms, and a quarter of one more for each token of a prompt.
func (d *decider) teach() {
	d.Helper()
	for i := range 20 {
		d.add(Request{ID: fmt.Sprint("teaches ", i), Prompt: prompt(5+i, 8), MaxTokens: 3})
		for range 3 {
			p := d.s.Plan(d.now)
			res := Result{Elapsed: 10 * time.Millisecond, Tokens: make([]Token, p.Rows())}
			if p.Total > 1 {
				res.Elapsed += time.Duration(p.Total) * time.Millisecond / 4
			}
			_, err := d.s.Apply(p, res)
			require.NoError(d, err)
		}
	}
}

// Attempts that have waited for quiet together are computed together: none is compared as
// if the one before it decoded already.
func TestAttemptsRunInAQuietStepTogether(t *testing.T) {
	d := newDecider(t, Config{MaxBatchedTokens: 128, Append: AppendConfig{Enable: true, Overload: CompareRemote, Governor: &GovernorConfig{Quiet: 8}}})
	d.teach()
	d.turn("s", 1, 16, Local, EndOfTurn)
	d.scheduled(d.add(Request{ID: "decodes", Prompt: prompt(2, 8), MaxTokens: 4}))
	d.add(Request{ID: "first", Prompt: prompt(1, 57), Route: AppendPrefill, RemoteETA: 90 * time.Millisecond, MaxTokens: 100})
	second := d.add(Request{ID: "second", Prompt: append(prompt(1, 16), prompt(9, 41)...), Route: AppendPrefill, RemoteETA: 90 * time.Millisecond, MaxTokens: 100})
	for range 3 {
		require.Zero(t, d.scheduled(second))
	}
	require.EqualValues(t, 41, d.scheduled(second))
}

// Whether an attempt is held back is the same in a replay, also in a group, of which
// what was agreed on is recorded alone.
func TestReplayOfAttemptsHeldBackInAGroup(t *testing.T) {
	var tape bytes.Buffer
	guards := AppendConfig{Enable: true, Overload: CompareRemote, Governor: &GovernorConfig{Quiet: 8}}
	d := newDecider(t, Config{MaxBatchedTokens: 64, MaxNumSeqs: 16, Append: guards}, WithRecorder(NewRecorder(&tape)))
	d.teach()
	d.turn("s", 1, 16, Local, EndOfTurn)
	d.scheduled(d.add(Request{ID: "decodes", Prompt: prompt(2, 8), MaxTokens: 8}))
	d.add(Request{ID: "hit", Prompt: prompt(1, 60), Route: AppendPrefill})
	refused := false
	for i := range 12 {
		_ = d.s.Propose() // asked without an effect
		d.s.SetAgreement(Agree([]Proposal{d.s.Propose(), {Cap: 50}}))
		if i == 5 {
			d.add(Request{ID: "more", Prompt: prompt(3, 8), MaxTokens: 6})
			d.add(Request{ID: "compared", Prompt: prompt(1, 59), Route: AppendPrefill, RemoteETA: 90 * time.Millisecond})
		}
		for _, o := range d.step() {
			refused = refused || o.Finish == FinishRefused
		}
	}
	require.True(t, refused, "the hold had run out, and by chunks it takes longer")
	sum, err := Replay(bytes.NewReader(tape.Bytes()))
	require.NoError(t, err)
	require.Nil(t, sum.Divergence, "%v", sum.Divergence)
}

// Ranks that hold attempts back one after the other do so for Quiet steps each, whatever
// becomes of the attempts of one.
func TestRanksWaitForQuietInVain(t *testing.T) {
	var ranks [2]*decider
	for i := range ranks {
		ranks[i] = newDecider(t, Config{MaxBatchedTokens: 64, MaxNumSeqs: 16, Append: AppendConfig{Enable: true, Governor: &GovernorConfig{Quiet: 8}}})
		ranks[i].turn("s", 1, 16, Local, EndOfTurn)
	}
	ranks[0].scheduled(ranks[0].add(Request{ID: "decodes", Prompt: prompt(2, 8), MaxTokens: 3}))
	id := ranks[0].add(Request{ID: "hit", Prompt: prompt(1, 60), Route: AppendPrefill})
	var other RequestID
	for i := 0; ; i++ {
		require.LessOrEqual(t, i, 2*8)
		for k, d := range ranks {
			if i%2 == k {
				d.add(Request{ID: fmt.Sprint("other ", i), Prompt: prompt(3, 8), MaxTokens: 2})
			}
		}
		switch i % 4 {
		case 1:
			other = ranks[1].add(Request{ID: fmt.Sprint("given up ", i), Prompt: prompt(1, 60), Route: AppendPrefill})
		case 3:
			require.NoError(t, ranks[1].s.Abort(other))
		}
		a := Agree([]Proposal{ranks[0].s.Propose(), ranks[1].s.Propose()})
		for _, d := range ranks {
			d.s.SetAgreement(a)
		}
		n := ranks[0].scheduled(id)
		ranks[1].step()
		if n > 0 {
			require.Greater(t, i, 3)
			return
		}
	}
}

// However often a scheduler is asked what it proposes, its plans are the same.
func TestProposeHasNoEffect(t *testing.T) {
	for policy := FCFS; policy <= FairShare; policy++ {
		var plans [2][]byte
		for asked := range plans {
			cfg := Config{Policy: policy, Quantum: 4, ShortPrompt: 10, MaxNumSeqs: 2, MaxBatchedTokens: 16, MaxModelLen: 64, Append: AppendConfig{Enable: true, Governor: &GovernorConfig{Quiet: 8}}}
			d := newDecider(t, cfg)
			d.turn("s", 1, 16, Local, EndOfTurn)
			for i := range 60 {
				for range 3 * asked {
					_ = d.s.Propose()
				}
				if i < 12 {
					req := Request{ID: fmt.Sprint(i), Tenant: fmt.Sprint(i % 3), Prompt: prompt(i%4, 40-12*(i%3)), Priority: i % 3, Deadline: Time(100 - i)}
					if i%4 == 1 {
						req.Route, req.Prompt = AppendPrefill, prompt(1, 20+i)
					}
					d.add(req)
				}
				p := d.s.Plan(d.now)
				plans[asked] = append(plans[asked], encodePlain(p)...)
				n := 0
				for _, s := range p.Samples {
					n += int(s)
				}
				_, err := d.s.Apply(p, Result{Tokens: make([]Token, n)})
				require.NoError(t, err)
			}
		}
		require.Equal(t, plans[0], plans[1], "%v", policy)
	}
}

// A prompt's last token that would be padded to the shape of those that verify drafts is
// not where that is more than attempts may have: the row has that one token alone.
func TestAppendsArePaddedWithinTheCap(t *testing.T) {
	for cap, want := range map[int][2]int32{5: {5, 4}, 4: {1, 0}, 2: {1, 0}, 1: {1, 0}} {
		d := newDecider(t, Config{MaxBatchedTokens: 64, Drafts: 4, Append: AppendConfig{Enable: true, Governor: &GovernorConfig{FirstTokens: cap}}})
		d.turn("s", 1, 16, Local, EndOfTurn)
		d.scheduled(d.add(Request{ID: "decodes", Prompt: prompt(2, 8), MaxTokens: 100}))
		id := d.add(Request{ID: "hit", Prompt: prompt(1, 17), Route: AppendPrefill})
		p := d.s.Plan(d.now)
		require.Equal(t, id, p.Requests[1])
		require.Equal(t, want, [2]int32{p.Scheduled[1], p.Placeholders[1]}, "%d", cap)
	}
}

// What the ranks of a group have agreed on binds the next plan alone.
func TestAnAgreementBindsTheNextPlan(t *testing.T) {
	d := newDecider(t, Config{MaxBatchedTokens: 32, Append: AppendConfig{Enable: true, Governor: &GovernorConfig{}}})
	d.turn("s", 1, 16, Local, EndOfTurn)
	require.Equal(t, WantsNothing, d.s.Propose().Wants)
	id := d.add(Request{ID: "hit", Prompt: prompt(1, 60), Route: AppendPrefill})
	mine := d.s.Propose()
	require.Equal(t, WantsAppend, mine.Wants)
	d.s.SetAgreement(Agree([]Proposal{mine, {Cap: 5}}))
	require.EqualValues(t, 5, d.scheduled(id), "another rank bears no more")
	d.s.SetAgreement(Agree([]Proposal{d.s.Propose(), {Cap: 0}}))
	require.Zero(t, d.scheduled(id), "another rank bears nothing")
	require.EqualValues(t, 32, d.scheduled(id), "by its own proposal")
}
