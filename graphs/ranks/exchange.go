package ranks

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-serving/sluice/graphs"
)

// Exchanger carries votes between ranks.
type Exchanger interface {
	// Exchange gives this rank's vote for a step and returns those of all ranks,
	// in the order of ranks, valid until the next call. It blocks until all have
	// voted or ctx ends. One goroutine per rank calls it.
	Exchange(ctx context.Context, step uint64, v graphs.Vote) ([]graphs.Vote, error)
	// Close leaves the group; the other ranks' exchanges fail. It may be called
	// twice and from any goroutine.
	Close() error
}

// Caller is an Exchanger that tells a rank without work when the others wait for
// it. Those of [Local] are Callers.
type Caller interface {
	Exchanger
	// Called is closed when another rank has voted on the next step, or the group
	// has ended. It is of that step: ask again after every Exchange. The caller of
	// Exchange calls it.
	Called() <-chan struct{}
	// Leave is Close with a reason, which reaches the others and is wrapped in
	// their errors; nil for none.
	Leave(reason error) error
}

// Sentinels.
var (
	// ErrMissing: a rank did not vote in time.
	ErrMissing = errors.New("ranks: no vote")
	// ErrStep: a rank is at another step.
	ErrStep = errors.New("ranks: at another step")
	// ErrDiffers: a rank has another configuration.
	ErrDiffers = errors.New("ranks: different graph configuration")
	// ErrVote: a rank cast a vote that cannot be.
	ErrVote = errors.New("ranks: impossible vote")
	// ErrClosed: a rank has left.
	ErrClosed = errors.New("ranks: a rank has left")
	// ErrHello: the other side does not speak this protocol, or claims a rank
	// that is taken or does not exist.
	ErrHello = errors.New("ranks: refused")
)

// Error is the end of a group: which rank, in which step, and why.
type Error struct {
	Rank int // that failed; -1 if no single one
	Step uint64
	Err  error
}

func (e *Error) Error() string {
	if e.Rank < 0 {
		return fmt.Sprintf("step %d: %v", e.Step, e.Err)
	}
	return fmt.Sprintf("rank %d, step %d: %v", e.Rank, e.Step, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// Run exchanges the vote of a batch and chooses the graph of this rank.
func Run(ctx context.Context, x Exchanger, step uint64, d *graphs.Dispatcher, b graphs.Batch) (graphs.Decision, graphs.Agreement, error) {
	votes, err := x.Exchange(ctx, step, d.Vote(b))
	if err != nil {
		return graphs.Decision{}, graphs.Agreement{}, err
	}
	a := graphs.Agree(votes)
	dec, err := d.SelectAgreed(b, a)
	return dec, a, err
}
