package host_test

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/conformance"
	"github.com/sluice-serving/sluice/ascendrt/host"
)

func devices(t *testing.T, n int) []ascendrt.Device {
	t.Helper()
	ds := make([]ascendrt.Device, n)
	for i := range ds {
		var err error
		ds[i], err = host.Backend{}.Open(0, ascendrt.OpenOptions{Workers: 1})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, ds[i].Close(context.Background())) })
	}
	return ds
}

func TestCollectives(t *testing.T) {
	for _, n := range []int{1, 2, 3} {
		ds := devices(t, n)
		require.True(t, ds[0].Caps().Collectives)
		conformance.Collectives(t, ds)
	}
}

// seat is one rank of a group with a buffer of 64 words to send and one to receive.
type seat struct {
	d        ascendrt.Device
	s        ascendrt.Stream
	m        ascendrt.Communicator
	src, dst ascendrt.Buffer
}

const words = 64

// table joins n devices.
func table(t *testing.T, n int) []*seat {
	t.Helper()
	ds := devices(t, n)
	id, err := ds[0].(ascendrt.Collectives).UniqueID()
	require.NoError(t, err)
	out, errs := make([]*seat, n), make([]error, n)
	var wg sync.WaitGroup
	for r, d := range ds {
		out[r] = &seat{d: d}
		wg.Go(func() { out[r].m, errs[r] = d.(ascendrt.Collectives).NewCommunicator(id, r, n) })
	}
	wg.Wait()
	for r, x := range out {
		require.NoError(t, errs[r])
		require.Equal(t, r, x.m.Rank())
		require.Equal(t, n, x.m.Size())
		x.s, err = x.d.NewStream(ascendrt.StreamOptions{})
		require.NoError(t, err)
		for _, b := range []*ascendrt.Buffer{&x.src, &x.dst} {
			*b, err = x.d.Alloc(4*words*n, ascendrt.PlaceDefault)
			require.NoError(t, err)
		}
	}
	return out
}

func vec(b ascendrt.Buffer, n int) ascendrt.Tensor {
	return ascendrt.NewTensor(b.Slice(0, 4*n), ascendrt.Int32, n)
}

// submit sends n words of every rank to all.
func (x *seat) submit(t *testing.T, n int) ascendrt.Point {
	t.Helper()
	var c ascendrt.Commands
	c.AllGather(x.m, vec(x.dst, n*x.m.Size()), vec(x.src, n))
	p, _, err := x.s.Submit(&c)
	require.NoError(t, err)
	return p
}

// Many operations, of which no rank waits for the one before: each reads what
// its peers had at that operation, not what they write for the next one.
func TestCollectivesInARow(t *testing.T) {
	const ranks, steps = 3, 200
	seats := table(t, ranks)
	run := func(r int) error {
		x := seats[r]
		rng := rand.New(rand.NewPCG(uint64(r), 7))
		log, err := x.d.AllocHost(4 * words * ranks * steps)
		if err != nil {
			return err
		}
		var c ascendrt.Commands
		for i := range steps {
			c.Fill(x.src.View(), byte(rng.IntN(256)))
			switch i % 3 {
			case 0:
				c.AllGather(x.m, vec(x.dst, words*ranks), vec(x.src, words))
			case 1:
				c.AllToAll(x.m, vec(x.dst, words*ranks), vec(x.src, words*ranks))
			case 2: // in place
				c.AllReduce(x.m, vec(x.src, words*ranks), vec(x.src, words*ranks), ascendrt.ReduceMax)
				c.Copy(x.dst.View(), x.src.View())
			}
			c.Copy(log.Slice(4*words*ranks*i, 4*words*ranks), x.dst.View())
		}
		p, _, err := x.s.Submit(&c)
		if err != nil {
			return err
		}
		if err := p.Wait(context.Background()); err != nil {
			return err
		}
		var rngs [ranks]*rand.Rand
		for i := range rngs {
			rngs[i] = rand.New(rand.NewPCG(uint64(i), 7))
		}
		for i := range steps {
			var fills [ranks]int32
			most := int32(-1 << 31)
			for j := range fills {
				fills[j] = int32(uint32(rngs[j].IntN(256)) * 0x01010101)
				most = max(most, fills[j])
			}
			for w := range words * ranks {
				got := int32(binary.LittleEndian.Uint32(log.Bytes()[4*(words*ranks*i+w):]))
				want := fills[w/words]
				if i%3 == 2 {
					want = most
				}
				require.Equal(t, want, got, "rank %d, step %d, word %d", r, i, w)
			}
		}
		return log.FreeAfter(ascendrt.Point{})
	}
	errs := make([]error, ranks)
	var wg sync.WaitGroup
	for r := range ranks {
		wg.Go(func() { errs[r] = run(r) })
	}
	wg.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
}

// An operation waits for the last rank, says for whom, and goes on when it comes.
func TestCollectivesWaitForTheLastRank(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seats := table(t, 3)
		require.Empty(t, host.Missing(seats[0].m))
		points := []ascendrt.Point{seats[0].submit(t, 4), seats[2].submit(t, 4)}
		synctest.Wait()
		require.Equal(t, []int{1}, host.Missing(seats[0].m))
		require.False(t, points[0].Done())
		points = append(points, seats[1].submit(t, 4))
		for _, p := range points {
			require.NoError(t, p.Wait(t.Context()))
		}
		require.Empty(t, host.Missing(seats[0].m))
	})
}

// However a rank goes, the others do not wait for it: their operations fail with
// its number and the reason.
func TestCollectivesEndWithARank(t *testing.T) {
	for name, c := range map[string]struct {
		go1  func(t *testing.T, x *seat)
		text string
	}{
		"leaves":       {func(t *testing.T, x *seat) { require.NoError(t, x.m.Close()); require.NoError(t, x.m.Close()) }, "rank 1 of the group has left"},
		"lost":         {func(_ *testing.T, x *seat) { x.d.(interface{ Lose(string) }).Lose("pulled out") }, "rank 1 of the group has lost its device"},
		"closed":       {func(t *testing.T, x *seat) { require.NoError(t, x.d.Close(context.Background())) }, "rank 1 of the group has closed its device"},
		"other length": {func(t *testing.T, x *seat) { x.submit(t, 5) }, "the ranks disagree"},
		"other kind": {func(t *testing.T, x *seat) {
			var c ascendrt.Commands
			c.AllReduce(x.m, vec(x.dst, 4), vec(x.src, 4), ascendrt.ReduceSum)
			_, _, err := x.s.Submit(&c)
			require.NoError(t, err)
		}, "the ranks disagree"},
	} {
		for _, order := range []string{"before", "after"} {
			t.Run(name+" "+order, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					seats := table(t, 3)
					if order == "before" {
						c.go1(t, seats[1])
						synctest.Wait()
					}
					points := []ascendrt.Point{seats[0].submit(t, 4), seats[2].submit(t, 4)}
					if order == "after" {
						synctest.Wait()
						c.go1(t, seats[1])
					}
					for _, p := range points {
						err := p.Wait(t.Context())
						require.ErrorIs(t, err, ascendrt.ErrDeviceLost)
						require.ErrorContains(t, err, c.text)
					}
				})
			})
		}
	}
}

// What a rank had submitted before it left still runs.
func TestCollectivesRunBehindClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seats := table(t, 2)
		first := seats[0].submit(t, 4)
		seats[0].submit(t, 4)
		require.NoError(t, seats[0].m.Close())
		for range 2 {
			require.NoError(t, seats[1].submit(t, 4).Wait(t.Context()))
		}
		require.NoError(t, first.Wait(t.Context()))
		require.ErrorContains(t, seats[1].submit(t, 4).Wait(t.Context()), "rank 0 of the group has left")
		require.Zero(t, seats[0].d.Live().Communicators)
	})
}

func TestCollectiveErrors(t *testing.T) {
	seats := table(t, 2)
	var c ascendrt.Commands
	c.AllReduce(seats[0].m, ascendrt.NewTensor(seats[0].dst.Slice(0, 8), ascendrt.Float16, 4), ascendrt.NewTensor(seats[0].src.Slice(0, 8), ascendrt.Float16, 4), ascendrt.ReduceSum)
	_, _, err := seats[0].s.Submit(&c)
	require.ErrorIs(t, err, ascendrt.ErrUnsupported)

	a := devices(t, 1)[0].(ascendrt.Collectives)
	id, err := a.UniqueID()
	require.NoError(t, err)
	for _, bad := range []struct {
		id         []byte
		rank, size int
		text       string
	}{
		{id[:5], 0, 2, "an id of 5 bytes"}, {id, 2, 2, "rank 2 of 2"}, {id, -1, 2, "rank -1 of 2"}, {id, 0, 0, "rank 0 of 0"},
		{make([]byte, len(id)), 0, 2, "no group waits"},
	} {
		_, err := a.NewCommunicator(bad.id, bad.rank, bad.size)
		require.ErrorIs(t, err, ascendrt.ErrInvalid)
		require.ErrorContains(t, err, bad.text)
	}
}

// A rank that waits for others to join ends when its device is lost or closed,
// and so do the others that wait.
func TestJoiningEnds(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, d ascendrt.Device){
		"lost":   func(_ *testing.T, d ascendrt.Device) { d.(interface{ Lose(string) }).Lose("pulled out") },
		"closed": func(t *testing.T, d ascendrt.Device) { require.NoError(t, d.Close(context.Background())) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ds := devices(t, 3)
				id, err := ds[2].(ascendrt.Collectives).UniqueID()
				require.NoError(t, err)
				errs := make([]error, 2)
				var wg sync.WaitGroup
				for r := range errs {
					wg.Go(func() { _, errs[r] = ds[r].(ascendrt.Collectives).NewCommunicator(id, r, 3) })
				}
				synctest.Wait()
				_, err = ds[2].(ascendrt.Collectives).NewCommunicator(id, 0, 3)
				require.ErrorContains(t, err, "rank 0 has joined already")
				_, err = ds[2].(ascendrt.Collectives).NewCommunicator(id, 2, 4)
				require.ErrorContains(t, err, "joined a group of 3")
				end(t, ds[0])
				wg.Wait()
				require.Error(t, errs[0])
				require.ErrorContains(t, errs[1], "rank 0 of the group has")
				_, err = ds[2].(ascendrt.Collectives).NewCommunicator(id, 2, 3)
				require.Error(t, err, "the group is over")
				require.Zero(t, ds[1].Live().Communicators)
			})
		})
	}
}
