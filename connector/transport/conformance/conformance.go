// Package conformance holds the tests that every transport passes.
package conformance

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sluice-serving/sluice/connector/transport"
)

// Open makes a transport for one test. notified may be nil. The suite closes
// the transport.
type Open func(t *testing.T, notified transport.Notified) transport.Transport

// Run runs the suite.
func Run(t *testing.T, open Open) {
	for _, c := range []struct {
		name string
		run  func(*testing.T, Open)
	}{
		{"read scatters and gathers", readScatters},
		{"write scatters and gathers", writeScatters},
		{"memory that is not mapped", unmapped},
		{"many transfers at once", concurrent},
		{"segments that do not exist", badSegments},
		{"grants", grants},
		{"blocks of several regions", blocks},
		{"revoke fences a running read", revokeFences},
		{"revoke fences a running write", revokeFencesWrites},
		{"notify", notify},
		{"cancelled read leaves memory alone", cancelFences},
		{"cancelled write leaves memory alone once revoked", cancelFencesWrites},
		{"peer gone", peerGone},
		{"failing memory names its segments", failingMemory},
		{"closing under load", closeUnderLoad},
	} {
		t.Run(c.name, func(t *testing.T) {
			defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
			c.run(t, open)
		})
	}
}

// side is one end with a region of random bytes.
type side struct {
	transport.Transport
	mem  transport.Host
	desc transport.Descriptor
}

const unit = 4 << 10

func newSide(t *testing.T, open Open, units int, seed uint64, notified transport.Notified) *side {
	t.Helper()
	s := &side{Transport: open(t, notified), mem: make(transport.Host, units*unit)}
	fill(s.mem, seed)
	var err error
	s.desc, err = s.Register(s.mem, unit)
	require.NoError(t, err)
	return s
}

func fill(b []byte, seed uint64) {
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	r.Read(b)
}

func connect(t *testing.T, from, to transport.Transport) transport.Peer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	p, err := from.Connect(ctx, to.Address())
	require.NoError(t, err)
	require.Equal(t, to.Instance(), p.Instance())
	return p
}

func (s *side) grantAll(t *testing.T, a transport.Access) transport.Capability {
	t.Helper()
	units := make([]int32, s.desc.Size/unit)
	for i := range units {
		units[i] = int32(i)
	}
	c, err := s.Grant(a, []transport.RegionID{s.desc.Region}, units)
	require.NoError(t, err)
	return c
}

// shuffled pairs every unit of the one side with a unit of the other.
func shuffled(n int, local, remote transport.RegionID, seed uint64) []transport.Segment {
	r := rand.New(rand.NewPCG(seed, 1))
	segs := make([]transport.Segment, n)
	to := r.Perm(n)
	for i, from := range r.Perm(n) {
		segs[i] = transport.Segment{Local: local, Remote: remote, LocalOffset: int64(to[i]) * unit, RemoteOffset: int64(from) * unit, Length: unit}
	}
	return segs
}

func equalSegments(t *testing.T, local, remote []byte, segs []transport.Segment) {
	t.Helper()
	for i, s := range segs {
		require.Equal(t, remote[s.RemoteOffset:s.RemoteOffset+s.Length], local[s.LocalOffset:s.LocalOffset+s.Length], "segment %d", i)
	}
}

func pair(t *testing.T, open Open, units int) (a, b *side, p transport.Peer) {
	t.Helper()
	a, b = newSide(t, open, units, 1, nil), newSide(t, open, units, 2, nil)
	p = connect(t, a, b)
	return a, b, p
}

func closeAll(t *testing.T, p transport.Peer, ts ...*side) {
	t.Helper()
	if p != nil {
		require.NoError(t, p.Close())
	}
	for _, s := range ts {
		require.NoError(t, s.Close())
	}
}

func readScatters(t *testing.T, open Open) {
	a, b, p := pair(t, open, 1500) // 6 MB: several parts
	defer closeAll(t, p, a, b)
	segs := shuffled(1500, a.desc.Region, b.desc.Region, 3)
	require.NoError(t, p.Read(t.Context(), b.grantAll(t, transport.PeerReads), segs))
	equalSegments(t, a.mem, b.mem, segs)
	// One long segment, odd bounds.
	long := []transport.Segment{{Local: a.desc.Region, Remote: b.desc.Region, LocalOffset: 1, RemoteOffset: 7, Length: 5<<20 + 3}}
	require.NoError(t, p.Read(t.Context(), b.grantAll(t, transport.PeerReads), long))
	equalSegments(t, a.mem, b.mem, long)
	require.NoError(t, p.Read(t.Context(), transport.Capability{}, nil), "nothing to read")
}

func writeScatters(t *testing.T, open Open) {
	a, b, p := pair(t, open, 1500)
	defer closeAll(t, p, a, b)
	segs := shuffled(1500, a.desc.Region, b.desc.Region, 4)
	require.NoError(t, p.Write(t.Context(), b.grantAll(t, transport.PeerWrites), segs))
	equalSegments(t, a.mem, b.mem, segs)
}

// opaque hides that memory is mapped, as device memory is not.
type opaque struct {
	mem transport.Host
	err func(off int64) error
}

func (o opaque) Size() int64 { return o.mem.Size() }
func (o opaque) ReadAt(p []byte, off int64) (int, error) {
	if o.err != nil {
		if err := o.err(off); err != nil {
			return 0, err
		}
	}
	return o.mem.ReadAt(p, off)
}
func (o opaque) WriteAt(p []byte, off int64) (int, error) { return o.mem.WriteAt(p, off) }

func unmapped(t *testing.T, open Open) {
	a, b, p := pair(t, open, 500)
	defer closeAll(t, p, a, b)
	a2, b2 := make(transport.Host, 500*unit), make(transport.Host, 500*unit)
	fill(b2, 9)
	da, err := a.Register(opaque{mem: a2}, unit)
	require.NoError(t, err)
	db, err := b.Register(opaque{mem: b2}, unit)
	require.NoError(t, err)
	all := make([]int32, 500)
	for i := range all {
		all[i] = int32(i)
	}
	r, err := b.Grant(transport.PeerReads, []transport.RegionID{db.Region}, all)
	require.NoError(t, err)
	w, err := b.Grant(transport.PeerWrites, []transport.RegionID{db.Region}, all)
	require.NoError(t, err)
	segs := shuffled(500, da.Region, db.Region, 5)
	require.NoError(t, p.Read(t.Context(), r, segs))
	equalSegments(t, a2, b2, segs)
	fill(a2, 10)
	require.NoError(t, p.Write(t.Context(), w, segs))
	equalSegments(t, a2, b2, segs)
	require.NoError(t, a.Deregister(da.Region))
	require.ErrorIs(t, p.Read(t.Context(), r, segs), transport.ErrRegion)
}

func concurrent(t *testing.T, open Open) {
	const n, each = 8, 200
	a, b, p := pair(t, open, n*each)
	defer closeAll(t, p, a, b)
	read, write := b.grantAll(t, transport.PeerReads), b.grantAll(t, transport.PeerWrites)
	var wg sync.WaitGroup
	errs := make([]error, n)
	plans := make([][]transport.Segment, n)
	for i := range n {
		plans[i] = shuffled(each, a.desc.Region, b.desc.Region, uint64(i))
		for k := range plans[i] { // lanes that do not overlap
			plans[i][k].LocalOffset += int64(i) * each * unit
			plans[i][k].RemoteOffset += int64(i) * each * unit
		}
		wg.Go(func() {
			if i%2 == 0 {
				errs[i] = p.Read(t.Context(), read, plans[i])
			} else {
				errs[i] = p.Write(t.Context(), write, plans[i])
			}
		})
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
	for _, segs := range plans {
		equalSegments(t, a.mem, b.mem, segs)
	}
}

func badSegments(t *testing.T, open Open) {
	a, b, p := pair(t, open, 4)
	defer closeAll(t, p, a, b)
	c := b.grantAll(t, transport.PeerReads)
	l, r := a.desc.Region, b.desc.Region
	for _, s := range []transport.Segment{
		{Local: l + 9, Remote: r, Length: 1},
		{Local: l, Remote: r + 9, Length: 1},
		{Local: l, Remote: r, Length: 0},
		{Local: l, Remote: r, Length: -1},
		{Local: l, Remote: r, LocalOffset: -1, Length: 1},
		{Local: l, Remote: r, RemoteOffset: -1, Length: 1},
		{Local: l, Remote: r, LocalOffset: 4*unit - 1, Length: 2},
		{Local: l, Remote: r, RemoteOffset: 4*unit - 1, Length: 2},
		{Local: l, Remote: r, RemoteOffset: 1<<63 - 1, Length: 2},
		{Local: l, Remote: r, Length: 1<<63 - 1},
	} {
		require.ErrorIs(t, p.Read(t.Context(), c, []transport.Segment{s}), transport.ErrRegion, "%+v", s)
	}
	for _, u := range []int64{0, -1, 3, 5 * unit} {
		_, err := a.Register(make(transport.Host, 4*unit), u)
		require.Error(t, err)
	}
	require.ErrorIs(t, a.Deregister(77), transport.ErrRegion)
}

func grants(t *testing.T, open Open) {
	a, b, p := pair(t, open, 8)
	defer closeAll(t, p, a, b)
	c, err := b.Grant(transport.PeerReads, []transport.RegionID{b.desc.Region}, []int32{2, 3, 5})
	require.NoError(t, err)
	seg := func(off, n int64) []transport.Segment {
		return []transport.Segment{{Local: a.desc.Region, Remote: b.desc.Region, RemoteOffset: off, Length: n}}
	}
	require.NoError(t, p.Read(t.Context(), c, seg(2*unit, 2*unit)))
	require.NoError(t, p.Read(t.Context(), c, seg(5*unit+1, unit-1)))
	denied := func(err error, what string) {
		t.Helper()
		require.ErrorIs(t, err, transport.ErrDenied, what)
	}
	denied(p.Read(t.Context(), c, seg(2*unit-1, 2)), "one byte before")
	denied(p.Read(t.Context(), c, seg(4*unit-1, 2)), "one byte behind")
	denied(p.Read(t.Context(), c, seg(7*unit, 1)), "beyond the last")
	denied(p.Write(t.Context(), c, seg(2*unit, unit)), "other direction")
	denied(p.Read(t.Context(), transport.Capability{}, seg(2*unit, unit)), "no capability")
	denied(p.Read(t.Context(), transport.Capability{1}, seg(2*unit, unit)), "guessed capability")
	b.Revoke(c)
	b.Revoke(c)
	denied(p.Read(t.Context(), c, seg(2*unit, unit)), "revoked")
	_, err = b.Grant(transport.PeerReads, nil, []int32{-1})
	require.Error(t, err)
	_, err = b.Grant(0, nil, nil)
	require.Error(t, err)
}

// revokeFences revokes while reads run: after Revoke the memory is
// overwritten, and no reader may have seen the new bytes as success.
func revokeFences(t *testing.T, open Open) {
	const n = 2000
	a, b, p := pair(t, open, n)
	defer closeAll(t, p, a, b)
	c := b.grantAll(t, transport.PeerReads)
	want := append([]byte(nil), b.mem...)
	segs := shuffled(n, a.desc.Region, b.desc.Region, 6)
	done := make(chan error, 1)
	go func() { done <- p.Read(t.Context(), c, segs) }()
	time.Sleep(2 * time.Millisecond)
	b.Revoke(c)
	clear(b.mem)
	err := <-done
	bad := map[int]bool{}
	for _, i := range transport.FailedSegments(err, n) {
		bad[i] = true
	}
	for i, s := range segs {
		if !bad[i] {
			require.Equal(t, want[s.RemoteOffset:s.RemoteOffset+unit], []byte(a.mem[s.LocalOffset:s.LocalOffset+unit]), "segment %d", i)
		}
	}
}

func notify(t *testing.T, open Open) {
	var mu sync.Mutex
	var got []string
	var from transport.Instance
	a := newSide(t, open, 1, 1, nil)
	b := newSide(t, open, 1, 2, func(i transport.Instance, msg []byte) {
		mu.Lock()
		defer mu.Unlock()
		from, got = i, append(got, string(msg))
	})
	p := connect(t, a, b)
	defer closeAll(t, p, a, b)
	for i := range 5 {
		require.NoError(t, p.Notify(t.Context(), fmt.Appendf(nil, "message %d", i)))
	}
	big := make([]byte, transport.MaxNotify)
	require.NoError(t, p.Notify(t.Context(), big))
	require.Error(t, p.Notify(t.Context(), make([]byte, transport.MaxNotify+1)))
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, a.Instance(), from)
	require.Equal(t, []string{"message 0", "message 1", "message 2", "message 3", "message 4", string(big)}, got)
	back := connect(t, b, a)
	require.Error(t, back.Notify(t.Context(), []byte("x")), "no handler")
	require.NoError(t, back.Close())
}

// cancelFences cancels reads at random moments and overwrites the local memory
// right after the return: nothing may write into it later.
func cancelFences(t *testing.T, open Open) {
	const n = 2000
	a, b, p := pair(t, open, n)
	defer closeAll(t, p, a, b)
	c := b.grantAll(t, transport.PeerReads)
	segs := shuffled(n, a.desc.Region, b.desc.Region, 8)
	zero := make([]byte, len(a.mem))
	for i := range 8 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*time.Millisecond)
		err := p.Read(ctx, c, segs)
		cancel()
		if err != nil {
			require.ErrorIs(t, err, context.DeadlineExceeded)
		}
		clear(a.mem)
		time.Sleep(2 * time.Millisecond)
		require.Equal(t, zero, []byte(a.mem))
	}
	require.NoError(t, p.Read(t.Context(), c, segs), "the peer still works")
	equalSegments(t, a.mem, b.mem, segs)
}

func peerGone(t *testing.T, open Open) {
	a, b, p := pair(t, open, 16)
	c := b.grantAll(t, transport.PeerReads)
	segs := shuffled(16, a.desc.Region, b.desc.Region, 8)
	require.NoError(t, p.Read(t.Context(), c, segs))
	require.NoError(t, b.Close())
	err := p.Read(t.Context(), c, segs)
	require.ErrorIs(t, err, transport.ErrUnreachable)
	require.Len(t, transport.FailedSegments(err, 16), 16)
	require.Error(t, p.Notify(t.Context(), nil))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	_, err = a.Connect(ctx, b.Address())
	require.ErrorIs(t, err, transport.ErrUnreachable)
	closeAll(t, p, a)
	require.ErrorIs(t, p.Read(t.Context(), c, segs), transport.ErrClosed)
}

func failingMemory(t *testing.T, open Open) {
	const n = 2048 // 8 MB: several parts
	a, b, p := pair(t, open, n)
	defer closeAll(t, p, a, b)
	broken := errors.New("ecc")
	mem := make(transport.Host, n*unit)
	fill(mem, 11)
	d, err := b.Register(opaque{mem: mem, err: func(off int64) error {
		if off/unit == 7 {
			return broken
		}
		return nil
	}}, unit)
	require.NoError(t, err)
	all := make([]int32, n)
	for i := range all {
		all[i] = int32(i)
	}
	c, err := b.Grant(transport.PeerReads, []transport.RegionID{d.Region}, all)
	require.NoError(t, err)
	segs := shuffled(n, a.desc.Region, d.Region, 12)
	err = p.Read(t.Context(), c, segs)
	require.ErrorIs(t, err, transport.ErrMemory)
	failed := map[int]bool{}
	for _, i := range transport.FailedSegments(err, n) {
		failed[i] = true
	}
	require.Less(t, len(failed), n, "the other parts arrived")
	for i, s := range segs {
		if s.RemoteOffset == 7*unit {
			require.True(t, failed[i], "the broken segment is named")
		}
		if !failed[i] {
			require.Equal(t, mem[s.RemoteOffset:s.RemoteOffset+unit], a.mem[s.LocalOffset:s.LocalOffset+unit])
		}
	}
}

// closeUnderLoad has three reads running, each into memory of its own, when the
// reading side closes.
func closeUnderLoad(t *testing.T, open Open) {
	const n, readers = 1500, 3
	a, b := newSide(t, open, n*readers, 1, nil), newSide(t, open, n, 2, nil)
	p := connect(t, a, b)
	c := b.grantAll(t, transport.PeerReads)
	var wg sync.WaitGroup
	for i := range readers {
		segs := shuffled(n, a.desc.Region, b.desc.Region, 8)
		for j := range segs {
			segs[j].LocalOffset += int64(i) * n * unit
		}
		wg.Go(func() {
			for p.Read(t.Context(), c, segs) == nil {
			}
		})
	}
	time.Sleep(20 * time.Millisecond)
	require.NoError(t, a.Close())
	wg.Wait()
	require.NoError(t, b.Close())
	require.NoError(t, p.Close())
}
