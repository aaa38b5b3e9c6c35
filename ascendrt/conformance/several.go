package conformance

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
)

// Several checks what needs at least two devices of one host: copies between
// them and collectives. It skips where there is one.
func Several(t *testing.T, b ascendrt.Backend) {
	r, err := b.Probe(context.Background())
	require.NoError(t, err)
	if len(r.Devices) < 2 {
		t.Skipf("%d devices", len(r.Devices))
	}
	var ds []ascendrt.Device
	var ss []ascendrt.Stream
	for i := range r.Devices {
		d, err := b.Open(i, ascendrt.OpenOptions{})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, d.Close(context.Background())) })
		s, err := d.NewStream(ascendrt.StreamOptions{})
		require.NoError(t, err)
		ds, ss = append(ds, d), append(ss, s)
	}
	t.Run("peer copy", func(t *testing.T) { peerCopy(t, ds, ss) })
	t.Run("collectives", func(t *testing.T) { collectives(t, ds, ss) })
}

// Collectives checks sum, gather and exchange between devices that a backend
// has opened for it; it leaves them open.
func Collectives(t *testing.T, ds []ascendrt.Device) {
	var ss []ascendrt.Stream
	for _, d := range ds {
		s, err := d.NewStream(ascendrt.StreamOptions{})
		require.NoError(t, err)
		ss = append(ss, s)
	}
	collectives(t, ds, ss)
	for i, d := range ds {
		require.NoError(t, ss[i].Close())
		require.Zero(t, d.Live(), "handles left")
	}
}

func peerCopy(t *testing.T, ds []ascendrt.Device, ss []ascendrt.Stream) {
	k, err := ds[0].PeerAccess(ds[1])
	require.NoError(t, err)
	t.Log("peer access: ", k)
	x, err := ds[0].Alloc(1<<20, ascendrt.PlaceDefault)
	require.NoError(t, err)
	y, err := ds[1].Alloc(1<<20, ascendrt.PlaceDefault)
	require.NoError(t, err)
	var c ascendrt.Commands
	c.Copy(x.View(), y.View())
	_, _, err = ss[0].Submit(&c)
	require.ErrorIs(t, err, ascendrt.ErrInvalid, "before EnablePeer the other device's memory is nobody's")
	if k != ascendrt.PeerDirect {
		require.ErrorIs(t, ds[0].EnablePeer(ds[1]), ascendrt.ErrUnsupported)
		t.Skip("no direct access")
	}
	require.NoError(t, ds[0].EnablePeer(ds[1]))
	require.NoError(t, ds[0].EnablePeer(ds[1]), "idempotent")
	c.Reset()
	c.Fill(y.View(), 0x21)
	p, _, err := ss[1].Submit(&c)
	require.NoError(t, err)
	require.NoError(t, p.Wait(context.Background()))
	c.Reset()
	c.Copy(x.View(), y.View())
	p, _, err = ss[0].Submit(&c)
	require.NoError(t, err)
	require.NoError(t, p.Wait(context.Background()))
	got := make([]byte, 1<<20)
	require.NoError(t, ascendrt.Download(context.Background(), ds[0], ss[0], got, x.View()))
	require.Equal(t, byte(0x21), got[1<<20-1])
	require.NoError(t, x.FreeAfter(ascendrt.Point{}))
	require.NoError(t, y.FreeAfter(ascendrt.Point{}))
}

// Each rank checks sum, gather and exchange, eagerly and captured.
func collectives(t *testing.T, ds []ascendrt.Device, ss []ascendrt.Stream) {
	if !ds[0].Caps().Collectives {
		_, err := ds[0].(ascendrt.Collectives).UniqueID()
		require.ErrorIs(t, err, ascendrt.ErrUnavailable)
		t.Skip(err)
	}
	id, err := ds[0].(ascendrt.Collectives).UniqueID()
	require.NoError(t, err)
	_, err = ds[0].(ascendrt.Collectives).NewCommunicator(id[:8], 0, len(ds))
	require.ErrorIs(t, err, ascendrt.ErrInvalid)
	errs := make([]error, len(ds))
	var wg sync.WaitGroup
	for r := range ds {
		wg.Go(func() { errs[r] = collect(ds[r], ss[r], id, r, len(ds)) })
	}
	wg.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
}

func collect(d ascendrt.Device, s ascendrt.Stream, id []byte, rank, size int) error {
	m, err := d.(ascendrt.Collectives).NewCommunicator(id, rank, size)
	if err != nil {
		return err
	}
	const n = 1024 // elements per rank
	buf, err := d.Alloc(4*n*size*3, ascendrt.PlaceDefault)
	if err != nil {
		return err
	}
	data := make([]byte, 4*n*size)
	for i := range n * size {
		binary.LittleEndian.PutUint32(data[4*i:], math.Float32bits(float32(rank*1000+i/n)))
	}
	src := ascendrt.NewTensor(buf.Slice(0, 4*n*size), ascendrt.Float32, n*size)
	one := ascendrt.NewTensor(buf.Slice(0, 4*n), ascendrt.Float32, n)
	dst := ascendrt.NewTensor(buf.Slice(4*n*size, 4*n*size), ascendrt.Float32, n*size)
	run := func(what string, f func(c *ascendrt.Commands), want func(i int) float32, x ascendrt.Tensor) error {
		if err := ascendrt.Upload(context.Background(), d, s, src.View, data); err != nil {
			return err
		}
		once := func(c *ascendrt.Commands) error {
			p, _, err := s.Submit(c)
			if err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
			if err := p.Wait(context.Background()); err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
			got := make([]byte, x.Bytes())
			if err := ascendrt.Download(context.Background(), d, s, got, x.View); err != nil {
				return err
			}
			for i := range len(got) / 4 {
				if v := math.Float32frombits(binary.LittleEndian.Uint32(got[4*i:])); v != want(i) {
					return fmt.Errorf("%s: rank %d, element %d is %v, not %v", what, rank, i, v, want(i))
				}
			}
			return nil
		}
		var rec, launch ascendrt.Commands
		f(&rec)
		if err := once(&rec); err != nil { // the first run connects the ranks, which a capture cannot
			return err
		}
		if err := ascendrt.Upload(context.Background(), d, s, x.View, make([]byte, x.Bytes())); err != nil {
			return err
		}
		if err := ascendrt.Upload(context.Background(), d, s, src.View, data); err != nil {
			return err
		}
		g, err := d.Capture(s, &rec, ascendrt.CaptureOptions{})
		if err != nil {
			return fmt.Errorf("%s: capture: %w", what, err)
		}
		launch.Graph(g)
		if err := once(&launch); err != nil {
			return err
		}
		return g.Close()
	}
	sum := float32(0)
	for r := range size {
		sum += float32(r * 1000)
	}
	if err := run("all-reduce", func(c *ascendrt.Commands) { c.AllReduce(m, dst, src, ascendrt.ReduceSum) },
		func(i int) float32 { return sum + float32(size*(i/n)) }, dst); err != nil {
		return err
	}
	if err := run("all-gather", func(c *ascendrt.Commands) { c.AllGather(m, dst, one) },
		func(i int) float32 { return float32(i / n * 1000) }, dst); err != nil {
		return err
	}
	if err := run("all-to-all", func(c *ascendrt.Commands) { c.AllToAll(m, dst, src) },
		func(i int) float32 { return float32(i/n*1000 + rank) }, dst); err != nil {
		return err
	}
	if err := buf.FreeAfter(ascendrt.Point{}); err != nil {
		return err
	}
	return m.Close()
}
