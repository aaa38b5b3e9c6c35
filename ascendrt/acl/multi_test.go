//go:build cgo && linux

package acl

import (
	"context"
	"encoding/binary"
	"math"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
)

// openAll opens every device, or skips if there is only one.
func openAll(t *testing.T) ([]ascendrt.Device, []ascendrt.Stream) {
	t.Helper()
	r, err := Backend{}.Probe(context.Background())
	require.NoError(t, err)
	if len(r.Devices) < 2 {
		t.Skipf("%d devices", len(r.Devices))
	}
	var ds []ascendrt.Device
	var ss []ascendrt.Stream
	for i := range r.Devices {
		d, err := Backend{}.Open(i, ascendrt.OpenOptions{})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, d.Close(context.Background())) })
		s, err := d.NewStream(ascendrt.StreamOptions{})
		require.NoError(t, err)
		ds, ss = append(ds, d), append(ss, s)
	}
	return ds, ss
}

func TestPeerCopy(t *testing.T) {
	ds, ss := openAll(t)
	x, err := ds[0].Alloc(1<<16, ascendrt.PlaceDefault)
	require.NoError(t, err)
	y, err := ds[1].Alloc(1<<16, ascendrt.PlaceDefault)
	require.NoError(t, err)
	var c ascendrt.Commands
	c.Copy(x.View(), y.View())
	_, _, err = ss[0].Submit(&c)
	require.ErrorIs(t, err, ascendrt.ErrInvalid, "before EnablePeer the other device's memory is nobody's")
	k, err := ds[0].PeerAccess(ds[1])
	require.NoError(t, err)
	require.Equal(t, ascendrt.PeerDirect, k)
	require.NoError(t, ds[0].EnablePeer(ds[1]))
	require.NoError(t, ds[0].EnablePeer(ds[1]), "idempotent")
	submit(t, ss[1], func(c *ascendrt.Commands) { c.Fill(y.View(), 0x21) })
	submit(t, ss[0], func(c *ascendrt.Commands) { c.Copy(x.View(), y.View()) })
	got := make([]byte, 1<<16)
	require.NoError(t, ascendrt.Download(context.Background(), ds[0], ss[0], got, x.View()))
	require.Equal(t, byte(0x21), got[1<<16-1])
}

// Every collective runs eagerly and captured on all devices.
func TestCollectives(t *testing.T) {
	ds, ss := openAll(t)
	if !ds[0].Caps().Collectives {
		t.Skip("no HCCL")
	}
	id, err := ds[0].(ascendrt.Collectives).UniqueID()
	require.NoError(t, err)
	_, err = ds[0].(ascendrt.Collectives).NewCommunicator(id[:8], 0, 2)
	require.ErrorIs(t, err, ascendrt.ErrInvalid)
	size := len(ds)
	var wg sync.WaitGroup
	errs := make([]error, size)
	got := make([][]float32, size)
	for rank := range size {
		wg.Go(func() { got[rank], errs[rank] = collectives(ds[rank], ss[rank], id, rank, size) })
	}
	wg.Wait()
	for rank := range size {
		require.NoError(t, errs[rank])
		want := []float32{}
		for i := range 4 { // sum over the ranks of 10·rank + i
			want = append(want, float32(10*size*(size-1)/2+size*i))
		}
		for r := range size {
			for i := range 4 {
				want = append(want, float32(10*r+i))
			}
		}
		for r := range size { // the part of each rank that was meant for this one
			for i := range 4 / size {
				want = append(want, float32(10*r+4/size*rank+i))
			}
		}
		require.Equal(t, want, got[rank], "rank %d", rank)
	}
}

// collectives sums, gathers and exchanges four numbers of each rank, twice.
func collectives(d ascendrt.Device, s ascendrt.Stream, id []byte, rank, size int) ([]float32, error) {
	m, err := d.(ascendrt.Collectives).NewCommunicator(id, rank, size)
	if err != nil {
		return nil, err
	}
	total := 4 + 4*size + 4
	x, err := d.Alloc(4*4, ascendrt.PlaceDefault)
	if err != nil {
		return nil, err
	}
	y, err := d.Alloc(4*total, ascendrt.PlaceDefault)
	if err != nil {
		return nil, err
	}
	var in []byte
	for i := range 4 {
		in = binary.LittleEndian.AppendUint32(in, math.Float32bits(float32(10*rank+i)))
	}
	ctx := context.Background()
	if err := ascendrt.Upload(ctx, d, s, x.View(), in); err != nil {
		return nil, err
	}
	t := func(b ascendrt.Buffer, off, n int) ascendrt.Tensor {
		return ascendrt.NewTensor(b.Slice(4*off, 4*n), ascendrt.Float32, n)
	}
	var c ascendrt.Commands
	record := func() {
		c.AllReduce(m, t(y, 0, 4), t(x, 0, 4), ascendrt.ReduceSum)
		c.AllGather(m, t(y, 4, 4*size), t(x, 0, 4))
		c.AllToAll(m, t(y, 4+4*size, 4), t(x, 0, 4))
	}
	record()
	p, _, err := s.Submit(&c)
	if err != nil {
		return nil, err
	}
	if err := p.Wait(ctx); err != nil {
		return nil, err
	}
	c.Reset()
	c.Fill(y.View(), 0)
	record()
	g, err := d.Capture(s, &c, ascendrt.CaptureOptions{})
	if err != nil {
		return nil, err
	}
	c.Reset()
	c.Graph(g)
	if p, _, err = s.Submit(&c); err != nil {
		return nil, err
	}
	if err := p.Wait(ctx); err != nil {
		return nil, err
	}
	out := make([]byte, 4*total)
	if err := ascendrt.Download(ctx, d, s, out, y.View()); err != nil {
		return nil, err
	}
	if err := g.Close(); err != nil {
		return nil, err
	}
	if err := m.Close(); err != nil {
		return nil, err
	}
	var f []float32
	for i := range total {
		f = append(f, math.Float32frombits(binary.LittleEndian.Uint32(out[4*i:])))
	}
	return f, nil
}
