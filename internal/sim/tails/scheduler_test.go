package tails

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/kvcache"
	"github.com/sluice-serving/sluice/scheduler"
)

// play gives the steps of the real scheduler while requests arrive whose
// prompts are in its cache but for the last token.
func playScheduler(t *testing.T, p graphs.Policy, kv graphs.KVTransfer, change ...func(*scheduler.Config, *int)) (modes []graphs.Mode, plans []string, arrivals int) {
	t.Helper()
	const blockSize, output, steps = 16, 12, 90
	prompt := 129
	c := scheduler.Config{MaxNumSeqs: 32, MaxBatchedTokens: 512, MaxModelLen: 1024}
	for _, f := range change {
		f(&c, &prompt)
	}
	cache, err := kvcache.New(kvcache.Config{Blocks: 400, BlockSize: blockSize})
	require.NoError(t, err)
	d, err := graphs.New(graphs.Config{Policy: p, MaxNumSeqs: 32, MaxNumBatchedTokens: 512, KV: kv})
	require.NoError(t, err)
	d.SetCaptureState(graphs.AllCaptured)
	s, err := scheduler.New(c, cache, scheduler.WithGraphs(d))
	require.NoError(t, err)
	n := 0
	add := func() {
		n++
		tokens := make([]kvcache.Token, prompt)
		for i := range tokens {
			tokens[i] = kvcache.Token(i + 1)
		}
		_, err := s.Add(scheduler.Request{ID: fmt.Sprint(n), Prompt: tokens, MaxTokens: output})
		require.NoError(t, err)
	}
	add() // computes the prompt that the others share
	for step := range steps {
		if step > 20 && step%7 == 0 {
			add()
			arrivals++
		}
		plan := s.Plan(scheduler.Time(step))
		if plan.Rows() > 0 && step > 20 {
			modes = append(modes, plan.Graph.Mode)
		}
		plans = append(plans, fmt.Sprint(plan.Requests, plan.Scheduled, plan.Computed, plan.Prefill, plan.Blocks))
		var res scheduler.Result
		for i, samples := range plan.Samples {
			if samples != 0 {
				res.Tokens = append(res.Tokens, kvcache.Token(1000+int(plan.Requests[i])%7+int(plan.Computed[i])))
			}
		}
		_, err := s.Apply(plan, res)
		require.NoError(t, err)
	}
	return modes, plans, arrivals
}

// The scheduler computes the last prompt token over all the others; that costs
// a step per arrival under Strict and none under the default, while what is
// scheduled is the same to the last block.
func TestSchedulerUnderPolicies(t *testing.T) {
	lost := func(modes []graphs.Mode) (n int) {
		for _, m := range modes {
			if m != graphs.Full {
				n++
			}
		}
		return n
	}
	kv := graphs.KVTransfer{Role: graphs.RoleConsumer, Connector: "pd"}
	modes, strict, arrivals := playScheduler(t, graphs.Strict, kv)
	require.Equal(t, arrivals, lost(modes))
	require.Positive(t, arrivals)
	for _, p := range []graphs.Policy{graphs.ConsumerOneToken, graphs.OneNewToken, graphs.OneNewTokenHardened} {
		modes, plans, _ := playScheduler(t, p, kv)
		require.Zero(t, lost(modes), p)
		require.Equal(t, strict, plans, p)
	}
	modes, plans, _ := playScheduler(t, graphs.ConsumerOneToken, graphs.KVTransfer{Role: graphs.RoleBoth, Connector: "pd"})
	require.Equal(t, arrivals, lost(modes), "not a consumer")
	require.Equal(t, strict, plans)
}

// Prompts of which two or three tokens are not cached cost a step per arrival;
// held back by the scheduler they cost none, and their first token comes later.
func TestSchedulerHoldsBack(t *testing.T) {
	kv := graphs.KVTransfer{Role: graphs.RoleConsumer, Connector: "pd"}
	for _, left := range []int{2, 3} {
		for _, hold := range []int{0, left - 1, left} {
			modes, _, arrivals := playScheduler(t, graphs.OneNewTokenHardened, kv, func(c *scheduler.Config, prompt *int) {
				c.HoldBack, *prompt = hold, 128+left
			})
			lost := 0
			for _, m := range modes {
				if m != graphs.Full {
					lost++
				}
			}
			want := arrivals
			if hold == left {
				want = 1 // the first one meets nobody, whose batch it could keep uniform
			}
			require.Equal(t, want, lost, "left %d, hold %d", left, hold)
		}
	}
}
