package ranks

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sluice-serving/sluice/graphs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func dispatcher(t testing.TB, maxSeqs int) *graphs.Dispatcher {
	t.Helper()
	d, err := graphs.New(graphs.Config{MaxNumSeqs: maxSeqs, MaxNumBatchedTokens: 256})
	require.NoError(t, err)
	d.SetCaptureState(graphs.AllCaptured)
	return d
}

// network connects n ranks over loopback.
func network(t testing.TB, n int, fingerprint func(rank int) uint64) ([]Exchanger, []error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	out, errs := make([]Exchanger, n), make([]error, n)
	var wg sync.WaitGroup
	for r := range n {
		wg.Go(func() {
			o := Options{Ranks: n, Fingerprint: fingerprint(r)}
			if r == 0 {
				out[0], errs[0] = Listen(ctx, l, o)
			} else {
				out[r], errs[r] = Join(ctx, l.Addr().String(), r, o)
			}
		})
	}
	wg.Wait()
	t.Cleanup(func() {
		for _, x := range out {
			if x != nil {
				require.NoError(t, x.Close())
				require.NoError(t, x.Close())
			}
		}
	})
	return out, errs
}

func connected(t testing.TB, kind string, n int) []Exchanger {
	t.Helper()
	if kind == "local" {
		return Local(n)
	}
	xs, errs := network(t, n, func(int) uint64 { return 7 })
	for _, err := range errs {
		require.NoError(t, err)
	}
	return xs
}

var kinds = []string{"local", "network"}

// each calls f for every rank at the same time and returns the errors.
func each(n int, f func(rank int) error) []error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for r := range n {
		wg.Go(func() { errs[r] = f(r) })
	}
	wg.Wait()
	return errs
}

// Over many steps with random batches all ranks see the same votes and run the
// same mode and, unless that is NONE, the same number of tokens.
func TestRanksStayInStep(t *testing.T) {
	const n, steps = 4, 200
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			xs := connected(t, kind, n)
			decisions := make([][]graphs.Decision, n)
			for _, err := range each(n, func(rank int) error {
				d := dispatcher(t, 64)
				rng := rand.New(rand.NewPCG(uint64(rank), 1))
				for step := range uint64(steps) {
					b := d.Idle(graphs.Step{})
					if rng.IntN(4) > 0 {
						m := 1 + rng.Int32N(40)
						b = graphs.Batch{Reqs: m, Tokens: m, MaxQuery: 1, Uniform: 1, Bound: 1}
						if rng.IntN(5) == 0 {
							b = graphs.Batch{Reqs: 1, Tokens: 1 + rng.Int32N(200), Obstacle: graphs.ReasonPrefillRow}
						}
					}
					ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
					dec, _, err := Run(ctx, xs[rank], step, d, b)
					cancel()
					if err != nil {
						return err
					}
					decisions[rank] = append(decisions[rank], dec)
				}
				return nil
			}) {
				require.NoError(t, err)
			}
			modes := map[graphs.Mode]int{}
			for step := range steps {
				first := decisions[0][step]
				modes[first.Mode]++
				for _, d := range decisions {
					require.Equal(t, first.Mode, d[step].Mode)
					if first.Mode != graphs.None {
						require.Equal(t, first.PaddedTokens, d[step].PaddedTokens)
					}
				}
			}
			require.Len(t, modes, 3, "all modes were agreed on")
		})
	}
}

// A rank that never answers ends the exchange of all others at the deadline,
// by name, and the group for good.
func TestMissingRank(t *testing.T) {
	const n = 3
	for _, kind := range kinds {
		for missing := range n {
			t.Run(fmt.Sprintf("%s/%d", kind, missing), func(t *testing.T) {
				xs := connected(t, kind, n)
				ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
				defer cancel()
				begin := time.Now()
				errs := each(n, func(rank int) error {
					if rank == missing {
						return nil
					}
					_, err := xs[rank].Exchange(ctx, 5, graphs.Vote{Tokens: 1, Reqs: 1})
					return err
				})
				require.Less(t, time.Since(begin), 5*time.Second)
				for rank, err := range errs {
					if rank == missing {
						continue
					}
					var e *Error
					require.ErrorAs(t, err, &e)
					require.True(t, errors.Is(err, ErrMissing) || errors.Is(err, ErrClosed), "%v", err)
					if rank == 0 || kind == "local" {
						require.Equal(t, missing, e.Rank)
						require.ErrorIs(t, err, context.DeadlineExceeded)
						require.ErrorContains(t, err, fmt.Sprintf("rank %d", missing))
					}
					_, again := xs[rank].Exchange(context.Background(), 6, graphs.Vote{})
					require.Equal(t, err, again, "the first failure stays")
				}
			})
		}
	}
}

func TestRankLeaves(t *testing.T) {
	const n = 3
	for _, kind := range kinds {
		for gone := range n {
			t.Run(fmt.Sprintf("%s/%d", kind, gone), func(t *testing.T) {
				xs := connected(t, kind, n)
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
				defer cancel()
				for rank, err := range each(n, func(rank int) error {
					if rank == gone {
						return xs[rank].Close()
					}
					_, err := xs[rank].Exchange(ctx, 1, graphs.Vote{Tokens: 1, Reqs: 1})
					return err
				}) {
					if rank != gone {
						require.ErrorIs(t, err, ErrClosed)
					}
				}
			})
		}
	}
}

func TestRanksAtDifferentSteps(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			xs := connected(t, kind, 2)
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			for _, err := range each(2, func(rank int) error {
				_, err := xs[rank].Exchange(ctx, uint64(10+rank), graphs.Vote{Tokens: 1, Reqs: 1})
				return err
			}) {
				require.ErrorIs(t, err, ErrStep)
			}
		})
	}
	t.Run("twice", func(t *testing.T) {
		xs := Local(2)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error)
		go func() {
			_, err := xs[0].Exchange(ctx, 1, graphs.Vote{})
			done <- err
		}()
		for {
			xs[0].(*member).g.mu.Lock()
			voted := xs[0].(*member).g.count
			xs[0].(*member).g.mu.Unlock()
			if voted == 1 {
				break
			}
			time.Sleep(time.Millisecond)
		}
		_, err := xs[0].Exchange(ctx, 1, graphs.Vote{})
		require.ErrorIs(t, err, ErrStep)
		require.ErrorIs(t, <-done, ErrStep)
		cancel()
	})
}

func TestImpossibleVote(t *testing.T) {
	for _, kind := range kinds {
		xs := connected(t, kind, 2)
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		for rank, err := range each(2, func(rank int) error {
			v := graphs.Vote{Tokens: 1, Reqs: 1}
			if rank == 1 {
				v.Tokens = -5
			}
			_, err := xs[rank].Exchange(ctx, 1, v)
			return err
		}) {
			if rank == 1 || kind == "local" {
				require.ErrorIs(t, err, ErrVote)
			} else {
				require.ErrorIs(t, err, ErrClosed)
			}
		}
	}
}

// Ranks with different ladders never get as far as a step.
func TestDifferentConfiguration(t *testing.T) {
	xs, errs := network(t, 2, func(rank int) uint64 { return dispatcher(t, 16+rank).Fingerprint() })
	for rank, err := range errs {
		require.ErrorIs(t, err, ErrDiffers)
		require.Nil(t, xs[rank])
	}
}

// Strangers and liars do not disturb the ranks that join.
func TestStrangers(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	o := Options{Ranks: 2, Fingerprint: 1}
	type end struct {
		x   Exchanger
		err error
	}
	done := make(chan end)
	go func() {
		x, err := Listen(ctx, l, o)
		done <- end{x, err}
	}()
	for _, first := range [][]byte{
		[]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
		hello{rank: 0, ranks: 2, fingerprint: 1}.encode(),
		hello{rank: 9, ranks: 2, fingerprint: 1}.encode(),
		nil,
	} {
		c, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		if first == nil {
			require.NoError(t, c.Close())
			continue
		}
		_, err = c.Write(first)
		require.NoError(t, err)
		h, err := readHello(c)
		if err == nil {
			require.Equal(t, statusHello, h.status)
		}
		require.NoError(t, c.Close())
	}
	x1, err := Join(ctx, l.Addr().String(), 1, o)
	require.NoError(t, err)
	e := <-done
	require.NoError(t, e.err)
	for _, err := range each(2, func(rank int) error {
		_, err := []Exchanger{e.x, x1}[rank].Exchange(ctx, 0, graphs.Vote{Tokens: 1, Reqs: 1})
		return err
	}) {
		require.NoError(t, err)
	}
	require.NoError(t, e.x.Close())
	require.NoError(t, x1.Close())
}

// A member that sends garbage as its vote is named.
func TestGarbageVote(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	done := make(chan error)
	go func() {
		x, err := Listen(ctx, l, Options{Ranks: 2})
		if err == nil {
			_, err = x.Exchange(ctx, 0, graphs.Vote{Tokens: 1, Reqs: 1})
		}
		done <- err
	}()
	c, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	_, err = c.Write(hello{rank: 1, ranks: 2}.encode())
	require.NoError(t, err)
	_, err = readHello(c)
	require.NoError(t, err)
	_, err = c.Write(make([]byte, voteBytes-4))
	require.NoError(t, err)
	_, err = c.Write([]byte{0xff, 0xff, 0xff, 0xff})
	require.NoError(t, err)
	err = <-done
	require.ErrorIs(t, err, ErrVote)
	var e *Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, 1, e.Rank)
	require.NoError(t, c.Close())
}

func TestNobodyListensOrJoins(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	_, err = Listen(ctx, l, Options{Ranks: 3})
	require.ErrorIs(t, err, ErrMissing)
	require.ErrorContains(t, err, "rank 1")
	addr := l.Addr().String()
	require.NoError(t, l.Close())

	ctx, cancel = context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_, err = Join(ctx, addr, 1, Options{Ranks: 3})
	require.ErrorIs(t, err, ErrMissing)

	_, err = Join(ctx, addr, 3, Options{Ranks: 3})
	require.ErrorIs(t, err, ErrHello)
	_, err = Listen(ctx, l, Options{Ranks: 1})
	require.Error(t, err)
	_, err = Join(ctx, addr, 1, Options{Ranks: 1})
	require.Error(t, err)
}

func TestCancel(t *testing.T) {
	for _, kind := range kinds {
		xs := connected(t, kind, 2)
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_, err := xs[0].Exchange(ctx, 0, graphs.Vote{Tokens: 1, Reqs: 1})
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, ErrMissing)
	}
}

func FuzzWire(f *testing.F) {
	f.Add(hello{rank: 1, ranks: 2, fingerprint: 3}.encode())
	f.Add(appendVote(nil, 4, graphs.Vote{Mode: graphs.Full, Tokens: 3, Reqs: 3, Uniform: 1}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) >= helloBytes {
			if h, err := decodeHello(b); err == nil && string(h.encode()) != string(b[:helloBytes]) {
				t.Fatalf("%+v", h)
			}
		}
		if len(b) >= voteBytes {
			if step, v, err := decodeVote(b); err == nil {
				if string(appendVote(nil, step, v)) != string(b[:voteBytes]) || v.Validate() != nil {
					t.Fatalf("%+v", v)
				}
			}
		}
		if len(b) >= resultBytes {
			status, _, _ := decodeResult(b)
			_ = statusErr(status)
		}
	})
}

func BenchmarkExchange(b *testing.B) {
	for _, kind := range kinds {
		b.Run(kind, func(b *testing.B) {
			xs := connected(b, kind, 2)
			steps := make(chan uint64)
			var wg sync.WaitGroup
			wg.Go(func() {
				for s := range steps {
					_, _ = xs[1].Exchange(context.Background(), s, graphs.Vote{Tokens: 1, Reqs: 1})
				}
			})
			b.ReportAllocs()
			step := uint64(0)
			for b.Loop() {
				steps <- step
				if _, err := xs[0].Exchange(context.Background(), step, graphs.Vote{Tokens: 1, Reqs: 1}); err != nil {
					b.Fatal(err)
				}
				step++
			}
			close(steps)
			wg.Wait()
		})
	}
}
