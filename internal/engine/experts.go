package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/graphs/ranks"
	"github.com/sluice-serving/sluice/internal/engine/executor"
	"github.com/sluice-serving/sluice/internal/engine/model"
	"github.com/sluice-serving/sluice/scheduler"
)

// expertGroup is where ranks that share a model's experts meet at the start.
type expertGroup struct {
	votes []ranks.Exchanger

	mu     sync.Mutex
	id     []byte // of the communicator
	here   int
	ready  chan struct{} // closed when all ranks have a device
	failed chan struct{} // closed when one cannot be built
	err    error
}

func newExpertGroup(n int) *expertGroup {
	return &expertGroup{votes: ranks.Local(n), ready: make(chan struct{}), failed: make(chan struct{})}
}

// party is one rank's part in such a group. A step of one is a step of all: the
// operations of its layers wait for every rank. So ranks vote on each step before
// they submit it, and one without work runs a dummy step with the others.
type party struct {
	ranks.Caller
	comm ascendrt.Communicator
	step uint64       // the next one of the group
	idle atomic.Int64 // dummy steps
	deaf bool         // takes no part in steps of others: what must not be, for tests
}

// join waits until every rank has a device, and connects them.
func (g *expertGroup) join(ctx context.Context, index int, dev ascendrt.Device) (*party, error) {
	c, ok := dev.(ascendrt.Collectives)
	if !ok || !dev.Caps().Collectives {
		return nil, fmt.Errorf("device %s has no collectives: its ranks cannot share experts", dev.Caps().Backend)
	}
	if err := g.come(c); err != nil {
		return nil, err
	}
	select {
	case <-g.ready:
	case <-g.failed:
		return nil, g.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	comm, err := c.NewCommunicator(g.id, index, len(g.votes))
	if err != nil {
		return nil, err
	}
	return &party{Caller: g.votes[index].(ranks.Caller), comm: comm}, nil
}

func (g *expertGroup) come(c ascendrt.Collectives) (err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.here == 0 {
		if g.id, err = c.UniqueID(); err != nil {
			return err
		}
	}
	if g.here++; g.here == len(g.votes) {
		close(g.ready)
	}
	return nil
}

// fail ends the start of the other ranks.
func (g *expertGroup) fail(index int, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err == nil {
		g.err = fmt.Errorf("rank %d could not be built: %w", index, err)
		close(g.failed)
	}
}

// newRanks builds the ranks of an engine, one after the other, or at the same
// time where they share experts: each one's first steps wait for the others.
func newRanks(n int, shared bool, build func(index int, g *expertGroup) (*rank, error)) (_ []*rank, err error) {
	built, errs := make([]*rank, n), make([]error, n)
	defer func() {
		for _, r := range built {
			if r != nil && err != nil {
				r.close()
			}
		}
	}()
	if !shared {
		for i := range built {
			if built[i], err = build(i, nil); err != nil {
				return nil, fmt.Errorf("rank %d: %w", i, err)
			}
		}
		return built, nil
	}
	g := newExpertGroup(n)
	var wg sync.WaitGroup
	for i := range built {
		wg.Go(func() {
			if built[i], errs[i] = build(i, g); errs[i] != nil {
				errs[i] = fmt.Errorf("rank %d: %w", i, errs[i])
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	for i, r := range built {
		if have, want := r.exec.Graphs(), built[0].exec.Graphs(); have != want {
			return nil, fmt.Errorf("rank %d has captured %d graphs, rank 0 %d: ranks that share experts replay the same ones", i, have, want)
		}
	}
	return built, nil
}

// leave ends the rank's part: what the others submit from here on fails, with
// the reason.
func (r *rank) leave(why error) {
	if r.party == nil {
		return
	}
	_ = r.party.Leave(why) // never fails
	if err := r.party.comm.Close(); err != nil {
		r.log.Warn("the group of ranks was not left", "error", err)
	}
}

// calls is closed when other ranks wait for this one to run a step with them.
func (r *rank) calls() <-chan struct{} {
	if r.party == nil || r.party.deaf {
		return nil
	}
	return r.party.Called()
}

func (r *rank) called() bool {
	select {
	case <-r.calls():
		return true
	default:
		return false
	}
}

// submit starts a plan. Ranks that share experts agree on its graph and its
// padding before: each waits here for the slowest one to plan, and whatever it
// has planned, a chunk of a prompt or nothing, the others run as many tokens.
func (r *rank) submit(ctx context.Context, p *scheduler.Plan) (executor.Step, error) {
	if r.party == nil || p.Rows() == 0 && !r.called() {
		return r.exec.Submit(ctx, p)
	}
	d := r.exec.Dispatcher()
	b := d.Idle(graphs.Step{})
	if p.Rows() > 0 {
		b = d.Classify(p.GraphRows(), graphs.Step{LoRAs: p.LoRAs, FewerDrafts: int32(r.cfg.Speculative.Tokens) - p.NextDrafts}, p.Verdicts)
	}
	step := r.party.step
	r.party.step++
	dec, a, err := ranks.Run(ctx, r.party, step, d, b)
	if err != nil {
		return executor.Step{}, fmt.Errorf("step %d of all ranks: %w", step, err)
	}
	dec.PaddedTokens = max(dec.PaddedTokens, a.Tokens) // graphs are of one size already, eager steps are not
	ctx = context.WithoutCancel(ctx)                   // the others run it
	if p.Rows() == 0 {
		r.party.idle.Add(1)
		return r.exec.SubmitIdle(ctx, p, dec)
	}
	p.Graph = dec
	return r.exec.Submit(ctx, p)
}

// checkExperts tells whether the model's experts can be where the configuration
// wants them.
func (c Config) checkExperts(m model.Config) error {
	var errs []error
	name, _, _ := strings.Cut(c.Device, ":")
	switch n := m.MoE.Experts; {
	case n == 0 && c.ExpertParallel:
		errs = append(errs, &SettingError{"enable-expert-parallel", "on", fmt.Sprintf("off: model %s has no experts", m.Name)})
	case n > 0 && name != "host":
		errs = append(errs, &SettingError{"device", c.Device, fmt.Sprintf("host: model %s has experts, whose operations only the host has", m.Name)})
	case n > 0 && c.ExpertParallel && n%c.DataParallel != 0:
		errs = append(errs, &SettingError{"data-parallel-size", c.DataParallel, fmt.Sprintf("a divisor of the %d experts of model %s with enable-expert-parallel", n, m.Name)})
	}
	return errors.Join(errs...)
}

// sharesExperts reports whether the ranks have the experts among them.
func (c Config) sharesExperts() bool { return c.ExpertParallel && c.DataParallel > 1 }
