package main

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/connector/offload"
)

// copiesOf are a prompt's blocks as the offload connector copies them: a slot of the
// tier holds a block of all regions. Blocks and slots are in these orders.
func copiesOf(s kvShape, blocks, slots uint64) (c offload.Copies) {
	for r := range s.regions() {
		c.Parts = append(c.Parts, offload.Part{Region: r, Bytes: s.bytes, Offset: int64(r * s.bytes)})
	}
	c.SlotBytes = int64(s.regions() * s.bytes)
	to := order(s.blocks, slots)
	for i, b := range order(s.blocks, blocks) {
		c.Blocks, c.Slots = append(c.Blocks, int32(b)), append(c.Slots, int32(to[i]-1))
	}
	return c
}

// hostTier measures saves and restores by each way, beside one large copy.
func hostTier(ctx context.Context, dev ascendrt.Device, o options, s kvShape, out io.Writer) error {
	variants, err := parseTiers(o.tiers)
	if err != nil {
		return err
	}
	p, err := newPool(dev, s)
	if err != nil {
		return err
	}
	pinned, err := dev.AllocHost(int(s.total()))
	if err != nil {
		return errors.Join(err, p.close())
	}
	large, err := dev.Alloc(int(s.total()), ascendrt.PlaceDefault)
	if err != nil {
		return errors.Join(err, p.close())
	}
	for _, v := range variants {
		if err := tierOf(ctx, p, v, pinned.View(), large.View(), o, out); err != nil {
			return errors.Join(err, p.close())
		}
	}
	return errors.Join(large.FreeAfter(ascendrt.Point{}), pinned.FreeAfter(ascendrt.Point{}), p.close())
}

// tierOf measures one way, with the plain copies in turn. What a copy writes to was
// written last by the device, as is the plain copy's destination: what the CPU wrote
// just before would lie in its caches, and be in the device's way.
func tierOf(ctx context.Context, p *pool, v tierVariant, pinned, large ascendrt.View, o options, out io.Writer) (err error) {
	m, err := offload.NewDeviceMover(p.dev, p.buffers, v.how)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	host, err := m.Alloc(p.total())
	if err != nil {
		return err
	}
	row, scattered := copiesOf(p.kvShape, 0, 0), copiesOf(p.kvShape, 1, 2)
	var d2h, h2d figures
	what := []struct {
		name    string
		copies  offload.Copies
		before  offload.Copies // leave other bytes in every slot
		load    bool
		speed   figures
		prepare figures
		plain   *figures
	}{
		{name: "save of a row", copies: row, before: scattered, plain: &d2h},
		{name: "save", copies: scattered, before: row, plain: &d2h},
		{name: "restore of a row", copies: row, load: true, plain: &h2d},
		{name: "restore", copies: scattered, load: true, plain: &h2d},
	}
	if err := p.fill(ctx, mark); err != nil { // a restore brings the marks back
		return err
	}
	for i := range o.repeat + 1 {
		if i == 1 { // the first one touches all pages
			d2h, h2d = nil, nil
			for k := range what {
				what[k].speed, what[k].prepare = nil, nil
			}
		}
		down, err := timed(ctx, p.stream, pinned, large, 1)
		if err != nil {
			return err
		}
		up, err := timed(ctx, p.stream, large, pinned, 1)
		if err != nil {
			return err
		}
		d2h, h2d = append(d2h, rate(p.total(), down)), append(h2d, rate(p.total(), up))
		for k := range what {
			w := &what[k]
			run := m.Save
			if w.load { // the tier has the marks, and the pool lost them
				if err := errors.Join(m.Save(ctx, w.copies), p.clear(ctx)); err != nil {
					return err
				}
				run = m.Load
			} else if err := m.Save(ctx, w.before); err != nil {
				return err
			}
			ready, begin := m.Prepared(), time.Now()
			if err := run(ctx, w.copies); err != nil {
				return err
			}
			w.speed = append(w.speed, rate(p.total(), time.Since(begin)))
			w.prepare = append(w.prepare, milliseconds(m.Prepared()-ready))
			if err := p.checkTier(ctx, host, w.copies); err != nil {
				return err
			}
		}
	}
	line(out, "plain copy to the host", v.name, d2h, nil, "GB/s")
	line(out, "plain copy from the host", v.name, h2d, nil, "GB/s")
	for _, w := range what {
		line(out, w.name, v.name, w.speed, *w.plain, "GB/s")
		line(out, w.name+": preparation", v.name, w.prepare, nil, "ms")
	}
	return nil
}
