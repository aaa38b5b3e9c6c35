package conformance

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/connector/transport"
)

// blocks moves units of regions of several sizes in both directions, mapped and not, and
// nothing beside them.
func blocks(t *testing.T, open Open) {
	const n = 300
	a, b, p := pair(t, open, 1)
	defer closeAll(t, p, a, b)
	var mems [2][]transport.Host
	var list transport.Blocks
	var ids []transport.RegionID
	for k, size := range []int64{unit, 64, 8 << 10, 13} {
		ours, theirs := make(transport.Host, n*size), make(transport.Host, n*size)
		var m, o transport.Memory = ours, theirs
		if k%2 == 1 {
			m, o = opaque{mem: ours}, opaque{mem: theirs}
		}
		da, err := a.Register(m, size)
		require.NoError(t, err)
		db, err := b.Register(o, size)
		require.NoError(t, err)
		mems[0], mems[1], ids = append(mems[0], ours), append(mems[1], theirs), append(ids, db.Region)
		list.Regions = append(list.Regions, transport.RegionPair{Local: da.Region, Remote: db.Region, Bytes: size})
	}
	r := rand.New(rand.NewPCG(7, 1))
	to := r.Perm(n)
	for i, from := range r.Perm(n)[:n/2] {
		list.Local, list.Remote = append(list.Local, int32(to[i])), append(list.Remote, int32(from))
	}
	slices.Sort(list.Local[n/4:]) // so that some lie in a row on both sides
	slices.Sort(list.Remote[n/4:])
	move := func(access transport.Access, do func(c transport.Capability) error, src, dst []transport.Host, at, place []int32) {
		t.Helper()
		c, err := b.Grant(access, ids, list.Remote)
		require.NoError(t, err)
		for k := range src {
			fill(src[k], uint64(access)+10*uint64(k))
			clear(dst[k])
		}
		require.NoError(t, do(c))
		for k, x := range list.Regions {
			want := make(transport.Host, n*x.Bytes)
			for i := range at {
				copy(want[int64(place[i])*x.Bytes:][:x.Bytes], src[k][int64(at[i])*x.Bytes:])
			}
			require.Equal(t, want, dst[k], "region %d", k)
		}
		b.Revoke(c)
		require.ErrorIs(t, do(c), transport.ErrDenied)
	}
	move(transport.PeerReads, func(c transport.Capability) error { return transport.ReadBlocks(t.Context(), p, c, list) }, mems[1], mems[0], list.Remote, list.Local)
	move(transport.PeerWrites, func(c transport.Capability) error { return transport.WriteBlocks(t.Context(), p, c, list) }, mems[0], mems[1], list.Local, list.Remote)
	require.ErrorIs(t, transport.WriteBlocks(t.Context(), p, transport.Capability{1}, list), transport.ErrDenied)
	list.Local[0] = n
	require.ErrorIs(t, transport.ReadBlocks(t.Context(), p, transport.Capability{1}, list), transport.ErrRegion)
	require.ErrorIs(t, transport.WriteBlocks(t.Context(), p, transport.Capability{1}, list), transport.ErrRegion)
}

// paired are all units of both sides, shuffled.
func paired(n int, local, remote transport.RegionID, seed uint64) transport.Blocks {
	r := rand.New(rand.NewPCG(seed, 2))
	b := transport.Blocks{Regions: []transport.RegionPair{{Local: local, Remote: remote, Bytes: unit}}}
	to := r.Perm(n)
	for i, from := range r.Perm(n) {
		b.Local, b.Remote = append(b.Local, int32(to[i])), append(b.Remote, int32(from))
	}
	return b
}

// writes are the two ways to write units.
var writes = []func(context.Context, transport.Peer, transport.Capability, transport.Blocks) error{transport.WriteBlocks, transport.WritePieces}

// revokeFencesWrites revokes while writes run, and overwrites the memory right after the
// return: nothing may write into it later.
func revokeFencesWrites(t *testing.T, open Open) {
	const n = 2000
	a, b, p := pair(t, open, n)
	defer closeAll(t, p, a, b)
	list := paired(n, a.desc.Region, b.desc.Region, 6)
	zero := make([]byte, len(b.mem))
	for i := range 4 {
		for _, write := range writes {
			c := b.grantAll(t, transport.PeerWrites)
			done := make(chan error, 1)
			go func() { done <- write(t.Context(), p, c, list) }()
			time.Sleep(time.Duration(i) * time.Millisecond)
			b.Revoke(c)
			clear(b.mem)
			<-done
			require.Equal(t, zero, []byte(b.mem))
		}
	}
}

// cancelFencesWrites cancels writes at random moments; after their capability is revoked
// nothing may write into the peer's memory.
func cancelFencesWrites(t *testing.T, open Open) {
	const n = 2000
	a, b, p := pair(t, open, n)
	defer closeAll(t, p, a, b)
	list := paired(n, a.desc.Region, b.desc.Region, 8)
	zero := make([]byte, len(b.mem))
	for i := range 4 {
		for _, write := range writes {
			c := b.grantAll(t, transport.PeerWrites)
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*time.Millisecond)
			err := write(ctx, p, c, list)
			cancel()
			if err != nil {
				require.ErrorIs(t, err, context.DeadlineExceeded)
			}
			b.Revoke(c)
			clear(b.mem)
			time.Sleep(2 * time.Millisecond)
			require.Equal(t, zero, []byte(b.mem))
		}
	}
	require.NoError(t, transport.WriteBlocks(t.Context(), p, b.grantAll(t, transport.PeerWrites), list), "the peer still works")
	for i := range n {
		from, to := int(list.Local[i])*unit, int(list.Remote[i])*unit
		require.Equal(t, []byte(a.mem[from:from+unit]), []byte(b.mem[to:to+unit]), "unit %d", i)
	}
}
