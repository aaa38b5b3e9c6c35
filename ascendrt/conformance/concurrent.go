package conformance

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
)

// 64 goroutines work on one device at a time, eight of them capturing,
// updating and launching graphs; every result is checked.
func testManyGoroutines(t *testing.T, s Suite) {
	b := s.bench(t, ascendrt.OpenOptions{})
	const goroutines, capturing, rounds = 64, 8, 6
	op := b.adder()
	shared := make([]ascendrt.Stream, 4)
	for i := range shared {
		shared[i] = b.stream()
	}
	errs := make(chan error, goroutines)
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			if g < capturing {
				errs <- captureLoop(b.d, op, rounds, g)
			} else {
				errs <- copyLoop(b.d, shared[g%len(shared)], rounds, g)
			}
		})
	}
	wg.Wait()
	for range goroutines {
		require.NoError(t, <-errs)
	}
	for _, s := range shared {
		require.NoError(t, s.Close())
	}
	require.NoError(t, op.Close())
	b.closed()
}

func copyLoop(d ascendrt.Device, s ascendrt.Stream, rounds, g int) error {
	for r := range rounds {
		x, err := d.Alloc(1000+g, ascendrt.PlaceDefault)
		if err != nil {
			return err
		}
		h, err := d.AllocHost(1000 + g)
		if err != nil {
			return err
		}
		e, err := d.NewEvent(ascendrt.EventOrder)
		if err != nil {
			return err
		}
		var c ascendrt.Commands
		c.Fill(x.View(), byte(g+r))
		c.Record(e)
		c.Copy(h.View(), x.View())
		p, _, err := s.Submit(&c)
		if err != nil {
			return err
		}
		if err := p.Wait(context.Background()); err != nil {
			return err
		}
		for _, v := range h.Bytes() {
			if v != byte(g+r) {
				return fmt.Errorf("goroutine %d, round %d: read %d", g, r, v)
			}
		}
		if err := x.FreeAfter(p); err != nil {
			return err
		}
		if err := h.FreeAfter(p); err != nil {
			return err
		}
		if err := e.Close(); err != nil {
			return err
		}
	}
	return nil
}

func captureLoop(d ascendrt.Device, op ascendrt.Op, rounds, g int) error {
	s, err := d.NewStream(ascendrt.StreamOptions{})
	if err != nil {
		return err
	}
	ws, err := d.Alloc(max(1, op.Workspace()), ascendrt.PlaceDefault)
	if err != nil {
		return err
	}
	for r := range rounds {
		x, err := d.Alloc(4*rowPitch, ascendrt.PlaceDefault)
		if err != nil {
			return err
		}
		h, err := d.AllocHost(64)
		if err != nil {
			return err
		}
		at := func(i int) ascendrt.Tensor {
			return ascendrt.NewTensor(x.Slice(rowPitch*i, 16), ascendrt.Float32, 1, 4)
		}
		in := []float32{float32(g), float32(r), 1, 2, 3, 4, 5, 6, 100, 200, 300, 400}
		copy(h.Bytes(), floatBytes(in))
		var c ascendrt.Commands
		for i := range 3 {
			c.Copy(at(i).View, h.Slice(16*i, 16))
		}
		ref := c.Op(op, ws.View(), at(0), at(1), at(3))
		c.Copy(h.Slice(48, 16), at(3).View)
		gr, err := d.Capture(s, &c, ascendrt.CaptureOptions{Updatable: []ascendrt.OpRef{ref}})
		if err != nil {
			return err
		}
		run := func(second int) error {
			c.Reset()
			c.Graph(gr)
			p, _, err := s.Submit(&c)
			if err != nil {
				return err
			}
			if err := p.Wait(context.Background()); err != nil {
				return err
			}
			got := floatsOf(h.Bytes()[48:])
			for i, v := range got {
				if want := in[i] + in[second*4+i]; v != want {
					return fmt.Errorf("goroutine %d, round %d: %v, not %v", g, r, v, want)
				}
			}
			return nil
		}
		if err := run(1); err != nil {
			return err
		}
		if d.Caps().GraphUpdate != ascendrt.UpdateNone {
			slot := -1
			for i, v := range op.Slots() {
				if v.Name == "addr:b" {
					slot = i
				}
			}
			if err := gr.Update([]ascendrt.Slot{{Op: ref, Slot: slot, Addr: at(2).View}}); err != nil {
				return err
			}
			if err := run(2); err != nil {
				return err
			}
		}
		if err := gr.Close(); err != nil {
			return err
		}
		if err := x.FreeAfter(ascendrt.Point{}); err != nil {
			return err
		}
		if err := h.FreeAfter(ascendrt.Point{}); err != nil {
			return err
		}
	}
	if err := ws.FreeAfter(ascendrt.Point{}); err != nil {
		return err
	}
	return s.Close()
}

// Handles are opened, used and closed by several goroutines while the device
// closes: each works or says that the device is closed, and none is left.
func testOpenWhileClosing(t *testing.T, s Suite) {
	const goroutines, times = 4, 8
	for range times {
		d := s.Open(t, ascendrt.OpenOptions{})
		errs := make(chan error, goroutines)
		opened := make(chan struct{}, goroutines)
		for range goroutines {
			go func() {
				for first := true; ; first = false {
					if err := openAll(d); err != nil {
						errs <- err
						return
					}
					if first {
						opened <- struct{}{}
					}
				}
			}()
		}
		for range goroutines {
			<-opened
		}
		require.NoError(t, d.Close(context.Background()))
		for range goroutines {
			require.ErrorIs(t, <-errs, ascendrt.ErrClosed)
		}
		l := d.Live()
		l.Leaked = 0 // those that a goroutine dropped when it saw the end
		require.Zero(t, l, "handles left")
	}
}

// openAll opens a handle of each kind and closes every other one.
func openAll(d ascendrt.Device) error {
	for i := range 2 {
		s, err := d.NewStream(ascendrt.StreamOptions{})
		if err != nil {
			return err
		}
		e, err := d.NewEvent(ascendrt.EventOrder)
		if err != nil {
			return err
		}
		x, err := d.Alloc(64, ascendrt.PlaceDefault)
		if err != nil {
			return err
		}
		h, err := d.AllocHost(64)
		if err != nil {
			return err
		}
		var c ascendrt.Commands
		c.Fill(x.View(), 1)
		c.Record(e)
		g, err := d.Capture(s, &c, ascendrt.CaptureOptions{})
		if err != nil {
			return err
		}
		c.Reset()
		c.Graph(g)
		p, _, err := s.Submit(&c)
		if err != nil {
			return err
		}
		if i == 0 {
			continue // left to the device
		}
		for _, end := range []func() error{
			g.Close, func() error { return x.FreeAfter(p) }, func() error { return h.FreeAfter(p) }, e.Close, s.Close,
		} {
			if err := end(); err != nil {
				return err
			}
		}
	}
	return nil
}
