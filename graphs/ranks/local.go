package ranks

import (
	"context"
	"fmt"
	"sync"

	"github.com/sluice-serving/sluice/graphs"
)

// group is the meeting place of ranks in one process.
type group struct {
	mu    sync.Mutex
	step  uint64
	votes []graphs.Vote // of the round that is open
	spare []graphs.Vote // of the round before, which a slow rank may still read
	voted []bool
	count int
	first chan struct{} // closed when the first vote of the round is there, or the group is over
	all   chan struct{} // closed when the last vote of the round is there
	ended chan struct{} // closed when the group is over
	err   error
}

type member struct {
	g    *group
	rank int
	out  []graphs.Vote
}

// Local connects n ranks of one process. Element i belongs to rank i.
func Local(n int) []Exchanger {
	g := &group{votes: make([]graphs.Vote, n), spare: make([]graphs.Vote, n), voted: make([]bool, n), first: make(chan struct{}), all: make(chan struct{}), ended: make(chan struct{})}
	out := make([]Exchanger, n)
	for i := range out {
		out[i] = &member{g: g, rank: i, out: make([]graphs.Vote, n)}
	}
	return out
}

var _ Caller = (*member)(nil)

// end closes the group with the first error; the caller holds mu.
func (g *group) end(err error) error {
	if g.err == nil {
		g.err = err
		close(g.ended)
		if g.count == 0 {
			close(g.first)
		}
	}
	return g.err
}

func (m *member) Exchange(ctx context.Context, step uint64, v graphs.Vote) ([]graphs.Vote, error) {
	g := m.g
	g.mu.Lock()
	switch {
	case g.err != nil:
	case ctx.Err() != nil:
		_ = g.end(&Error{Rank: m.rank, Step: step, Err: fmt.Errorf("%w: %w", ErrMissing, ctx.Err())})
	case v.Validate() != nil:
		_ = g.end(&Error{Rank: m.rank, Step: step, Err: fmt.Errorf("%w: %w", ErrVote, v.Validate())})
	case g.voted[m.rank]:
		_ = g.end(&Error{Rank: m.rank, Step: step, Err: fmt.Errorf("%w: voted twice in step %d", ErrStep, g.step)})
	case g.count > 0 && step != g.step:
		_ = g.end(&Error{Rank: m.rank, Step: step, Err: fmt.Errorf("%w: the others are at step %d", ErrStep, g.step)})
	}
	if g.err != nil {
		defer g.mu.Unlock()
		return nil, g.err
	}
	g.step, g.votes[m.rank], g.voted[m.rank] = step, v, true
	all := g.all
	if g.count++; g.count == 1 {
		close(g.first)
	}
	if g.count == len(g.votes) {
		copy(m.out, g.votes)
		clear(g.voted)
		g.count = 0
		g.first, g.all = make(chan struct{}), make(chan struct{})
		// A rank votes again only after it has copied this round, so the round
		// behind the next one finds this memory free.
		g.votes, g.spare = g.spare, g.votes
		g.mu.Unlock()
		close(all)
		return m.out, nil
	}
	votes := g.votes
	g.mu.Unlock()

	select {
	case <-all:
	case <-g.ended:
		g.mu.Lock()
		defer g.mu.Unlock()
		if isClosed(all) { // the last vote came before the end: the others run this step
			copy(m.out, votes)
			return m.out, nil
		}
		return nil, g.err
	case <-ctx.Done():
		g.mu.Lock()
		defer g.mu.Unlock()
		if isClosed(all) { // the last vote came together with the end of ctx
			copy(m.out, votes)
			return m.out, nil
		}
		missing := -1
		for i, ok := range g.voted {
			if !ok {
				missing = i
				break
			}
		}
		return nil, g.end(&Error{Rank: missing, Step: step, Err: fmt.Errorf("%w: %w", ErrMissing, ctx.Err())})
	}
	copy(m.out, votes)
	return m.out, nil
}

func isClosed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

func (m *member) Called() <-chan struct{} {
	m.g.mu.Lock()
	defer m.g.mu.Unlock()
	return m.g.first
}

func (m *member) Close() error { return m.Leave(nil) }

func (m *member) Leave(reason error) error {
	why := ErrClosed
	if reason != nil {
		why = fmt.Errorf("%w: %w", ErrClosed, reason)
	}
	m.g.mu.Lock()
	defer m.g.mu.Unlock()
	_ = m.g.end(&Error{Rank: m.rank, Step: m.g.step, Err: why}) // an earlier end stays the reason
	return nil
}
