package ranks

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/sluice-serving/sluice/graphs"
)

// Options describe a group over the network. They are equal on all ranks.
type Options struct {
	Ranks       int    // at least 2
	Fingerprint uint64 // of the dispatcher
}

const maxRanks = 1 << 12

func (o Options) validate() error {
	if o.Ranks < 2 || o.Ranks > maxRanks {
		return fmt.Errorf("ranks: %d ranks, not 2 to %d", o.Ranks, maxRanks)
	}
	return nil
}

// star is one rank's end of a group over the network.
type star struct {
	o     Options
	rank  int
	conns []net.Conn // of the other ranks on rank 0; of rank 0 alone elsewhere
	out   []graphs.Vote
	buf   []byte

	mu     sync.Mutex
	err    error
	closed bool
}

var _ Exchanger = (*star)(nil)

// interrupt makes blocked reads and writes of the connections fail when ctx
// ends. The returned function ends the watch.
func interrupt(ctx context.Context, conns ...net.Conn) (stop func()) {
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Time{}
	}
	for _, c := range conns {
		if c != nil {
			_ = c.SetDeadline(deadline) // a closed connection reports it at the next use
		}
	}
	done := make(chan struct{})
	cancel := context.AfterFunc(ctx, func() {
		defer close(done)
		for _, c := range conns {
			if c != nil {
				_ = c.SetDeadline(time.Unix(1, 0))
			}
		}
	})
	return func() {
		if !cancel() {
			<-done // or it would interrupt a later call
		}
	}
}

// Listen waits on l until every other rank has joined and returns the end of
// rank 0. A connection that is no member is refused and does not disturb the
// others; a member with another configuration ends the group. The listener
// stays the caller's.
func Listen(ctx context.Context, l net.Listener, o Options) (Exchanger, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	s := &star{o: o, conns: make([]net.Conn, o.Ranks), out: make([]graphs.Vote, o.Ranks)}
	type deadliner interface{ SetDeadline(time.Time) error }
	if d, ok := l.(deadliner); ok {
		if t, ok := ctx.Deadline(); ok {
			_ = d.SetDeadline(t)
		}
		stop := context.AfterFunc(ctx, func() { _ = d.SetDeadline(time.Unix(1, 0)) })
		defer func() { stop(); _ = d.SetDeadline(time.Time{}) }()
	}
	for joined := 1; joined < o.Ranks; {
		c, err := l.Accept()
		if err != nil {
			missing := 1
			for missing < o.Ranks && s.conns[missing] != nil {
				missing++
			}
			s.closeAll()
			return nil, &Error{Rank: missing, Err: fmt.Errorf("%w: it has not joined: %w", ErrMissing, cause(ctx, err))}
		}
		rank, err := s.admit(ctx, c)
		switch {
		case err == nil:
			joined++
		case errors.Is(err, ErrDiffers):
			s.closeAll()
			return nil, &Error{Rank: rank, Err: err}
		}
	}
	return s, nil
}

// helloWait bounds the wait for the first bytes of a connection, so that one
// that says nothing does not hold up the others.
const helloWait = 2 * time.Second

func (s *star) admit(ctx context.Context, c net.Conn) (rank int, err error) {
	short, cancel := context.WithTimeout(ctx, helloWait)
	defer cancel()
	defer interrupt(short, c)()
	defer func() {
		if err != nil {
			answer := hello{status: statusOf(err), ranks: uint32(s.o.Ranks), fingerprint: s.o.Fingerprint}
			_, _ = c.Write(answer.encode()) // a courtesy; the connection is closed either way
			_ = c.Close()
		}
	}()
	h, err := readHello(c)
	if err != nil {
		return -1, fmt.Errorf("%w: %w", ErrHello, err)
	}
	if h.rank == 0 || h.rank >= uint32(s.o.Ranks) || s.conns[h.rank] != nil {
		return -1, fmt.Errorf("%w: rank %d", ErrHello, h.rank)
	}
	rank = int(h.rank)
	if h.ranks != uint32(s.o.Ranks) || h.fingerprint != s.o.Fingerprint {
		return rank, fmt.Errorf("%w: %d ranks and fingerprint %#x, here %d and %#x", ErrDiffers, h.ranks, h.fingerprint, s.o.Ranks, s.o.Fingerprint)
	}
	if _, err := c.Write(hello{ranks: uint32(s.o.Ranks), fingerprint: s.o.Fingerprint}.encode()); err != nil {
		return rank, fmt.Errorf("%w: %w", ErrHello, err)
	}
	s.conns[rank] = c
	return rank, nil
}

// joinRetry is the pause between attempts to reach a rank 0 that does not
// listen yet.
const joinRetry = 20 * time.Millisecond

// Join connects rank r to rank 0. It tries again until ctx ends while nobody
// listens.
func Join(ctx context.Context, addr string, r int, o Options) (Exchanger, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	if r < 1 || r >= o.Ranks {
		return nil, fmt.Errorf("%w: rank %d of %d", ErrHello, r, o.Ranks)
	}
	var (
		d net.Dialer
		c net.Conn
	)
	for {
		var err error
		if c, err = d.DialContext(ctx, "tcp", addr); err == nil {
			break
		}
		select {
		case <-ctx.Done():
			return nil, &Error{Rank: 0, Err: fmt.Errorf("%w: %w", ErrMissing, err)}
		case <-time.After(joinRetry):
		}
	}
	defer interrupt(ctx, c)()
	fail := func(err error) (Exchanger, error) {
		_ = c.Close()
		return nil, &Error{Rank: 0, Err: err}
	}
	if _, err := c.Write(hello{rank: uint32(r), ranks: uint32(o.Ranks), fingerprint: o.Fingerprint}.encode()); err != nil {
		return fail(fmt.Errorf("%w: %w", ErrClosed, cause(ctx, err)))
	}
	h, err := readHello(c)
	switch {
	case err != nil && !errors.Is(err, ErrHello):
		return fail(fmt.Errorf("%w: %w", ErrMissing, cause(ctx, err)))
	case err != nil:
		return fail(err)
	case h.status != statusOK:
		return fail(fmt.Errorf("%w: rank 0 has %d ranks and fingerprint %#x, here %d and %#x", statusErr(h.status), h.ranks, h.fingerprint, o.Ranks, o.Fingerprint))
	}
	return &star{o: o, rank: r, conns: []net.Conn{c}, out: make([]graphs.Vote, o.Ranks)}, nil
}

// cause prefers the end of the context to the error that it caused.
func cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return context.DeadlineExceeded
	}
	return err
}

func (s *star) Exchange(ctx context.Context, step uint64, v graphs.Vote) ([]graphs.Vote, error) {
	if err := s.broken(); err != nil {
		return nil, err
	}
	err := v.Validate()
	switch {
	case err != nil:
		err = &Error{Rank: s.rank, Step: step, Err: fmt.Errorf("%w: %w", ErrVote, err)}
	case s.rank == 0:
		err = s.gather(ctx, step, v)
	default:
		err = s.ask(ctx, step, v)
	}
	if err != nil {
		return nil, s.fail(err, step)
	}
	return s.out, nil
}

// gather is rank 0's part: it collects the votes and sends all to everyone.
func (s *star) gather(ctx context.Context, step uint64, v graphs.Vote) error {
	defer interrupt(ctx, s.conns...)()
	s.out[0] = v
	var b [voteBytes]byte
	for rank, c := range s.conns {
		if c == nil {
			continue
		}
		if _, err := io.ReadFull(c, b[:]); err != nil {
			return &Error{Rank: rank, Step: step, Err: readError(ctx, err)}
		}
		at, vote, err := decodeVote(b[:])
		switch {
		case err != nil:
			return &Error{Rank: rank, Step: step, Err: err}
		case at != step:
			return &Error{Rank: rank, Step: step, Err: fmt.Errorf("%w: step %d", ErrStep, at)}
		}
		s.out[rank] = vote
	}
	s.buf = appendResult(s.buf[:0], statusOK, -1, step)
	for _, vote := range s.out {
		s.buf = appendVote(s.buf, step, vote)
	}
	for rank, c := range s.conns {
		if c == nil {
			continue
		}
		if _, err := c.Write(s.buf); err != nil {
			return &Error{Rank: rank, Step: step, Err: readError(ctx, err)}
		}
	}
	return nil
}

// ask is every other rank's part.
func (s *star) ask(ctx context.Context, step uint64, v graphs.Vote) error {
	c := s.conns[0]
	defer interrupt(ctx, c)()
	s.buf = appendVote(s.buf[:0], step, v)
	if _, err := c.Write(s.buf); err != nil {
		return &Error{Rank: 0, Step: step, Err: readError(ctx, err)}
	}
	var head [resultBytes]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return &Error{Rank: 0, Step: step, Err: readError(ctx, err)}
	}
	status, rank, at := decodeResult(head[:])
	if status != statusOK {
		return &Error{Rank: rank, Step: at, Err: fmt.Errorf("%w (told by rank 0)", statusErr(status))}
	}
	if at != step {
		return &Error{Rank: 0, Step: step, Err: fmt.Errorf("%w: step %d", ErrStep, at)}
	}
	var b [voteBytes]byte
	for i := range s.out {
		if _, err := io.ReadFull(c, b[:]); err != nil {
			return &Error{Rank: 0, Step: step, Err: readError(ctx, err)}
		}
		_, vote, err := decodeVote(b[:])
		if err != nil {
			return &Error{Rank: 0, Step: step, Err: err}
		}
		s.out[i] = vote
	}
	return nil
}

func readError(ctx context.Context, err error) error {
	err = cause(ctx, err)
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return fmt.Errorf("%w: %w", ErrMissing, err)
	}
	return fmt.Errorf("%w: %w", ErrClosed, err)
}

func (s *star) broken() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// fail ends the group: rank 0 tells the others why, everyone hangs up.
func (s *star) fail(err error, step uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	s.err = err
	if s.rank == 0 && !s.closed {
		rank := -1
		if e, ok := errors.AsType[*Error](err); ok {
			rank = e.Rank
		}
		b := appendResult(nil, statusOf(err), rank, step)
		for _, c := range s.conns {
			if c != nil {
				_ = c.SetDeadline(time.Now().Add(time.Second))
				_, _ = c.Write(b) // whoever cannot be told sees the connection end
			}
		}
	}
	s.closeAll()
	return s.err
}

func (s *star) closeAll() {
	s.closed = true
	for _, c := range s.conns {
		if c != nil {
			_ = c.Close()
		}
	}
}

func (s *star) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = &Error{Rank: s.rank, Err: ErrClosed}
	}
	s.closeAll()
	return nil
}
