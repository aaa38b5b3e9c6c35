package main

import (
	"context"
	"errors"
	"io"
	"strings"
	"time"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/connector/offload"
)

func splitList(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' })
}

// tier is the mover of the host tier over a pool.
type tier struct {
	m     *offload.DeviceMover
	moves []offload.Move // of a prompt, scattered
}

func newTier(p *pool) (*tier, error) {
	m, err := offload.NewDeviceMover(p.dev, p.buffers)
	if err != nil {
		return nil, err
	}
	if _, err := m.Alloc(p.total()); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return &tier{m, moves(p.kvShape)}, nil
}

// moves are the copies of a prompt's blocks as the offload connector makes them:
// a slot of the tier holds a block of all regions.
func moves(s kvShape) []offload.Move {
	var out []offload.Move
	slots := order(s.blocks, 2)
	for i, b := range order(s.blocks, 1) {
		slot := int(slots[i] - 1)
		for r := range s.regions() {
			out = append(out, offload.Move{
				Region: r, Offset: int64(b) * int64(s.bytes), Host: int64(slot*s.regions()+r) * int64(s.bytes), Bytes: s.bytes,
			})
		}
	}
	return out
}

func hostTier(ctx context.Context, dev ascendrt.Device, o options, s kvShape, out io.Writer) error {
	p, err := newPool(dev, s)
	if err != nil {
		return err
	}
	t, err := newTier(p)
	if err != nil {
		return errors.Join(err, p.close())
	}
	pinned, err := dev.AllocHost(int(s.total()))
	if err != nil {
		return errors.Join(err, t.m.Close(), p.close())
	}
	large, err := dev.Alloc(int(s.total()), ascendrt.PlaceDefault)
	if err != nil {
		return errors.Join(err, t.m.Close(), p.close())
	}
	var d2h, h2d, save, load figures
	measure := func(into *figures, f func() error) error {
		begin := time.Now()
		err := f()
		*into = append(*into, rate(s.total(), time.Since(begin)))
		return err
	}
	for i := range o.repeat + 1 {
		if i == 1 { // the first one touches all pages
			d2h, h2d, save, load = nil, nil, nil, nil
		}
		for _, err := range []error{
			measure(&d2h, func() error { _, err := timed(ctx, p.stream, pinned.View(), large.View()); return err }),
			measure(&save, func() error { return t.m.Save(ctx, t.moves) }),
			measure(&h2d, func() error { _, err := timed(ctx, p.stream, large.View(), pinned.View()); return err }),
			measure(&load, func() error { return t.m.Load(ctx, t.moves) }),
		} {
			if err != nil {
				return err
			}
		}
	}
	line(out, "plain copy to the host", o.device, d2h, nil, "GB/s")
	line(out, "save", o.device, save, d2h, "GB/s")
	line(out, "plain copy from the host", o.device, h2d, nil, "GB/s")
	line(out, "restore", o.device, load, h2d, "GB/s")
	return errors.Join(t.m.Close(), large.FreeAfter(ascendrt.Point{}), pinned.FreeAfter(ascendrt.Point{}), p.close())
}
