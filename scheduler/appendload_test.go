package scheduler

import (
	"fmt"
	"testing"

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
