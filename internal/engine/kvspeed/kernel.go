package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/sluice-serving/sluice/ascendrt"
)

// kernels measures the copy of a prompt by itself, without another process, against one
// large copy, both by the device's clock.
func kernels(ctx context.Context, dev ascendrt.Device, o options, s kvShape, out io.Writer) error {
	peers, err := peerDevices(ctx, o)
	if err != nil {
		return err
	}
	for _, peer := range peers {
		if err := kernelFrom(ctx, dev, o, s, peer, out); err != nil {
			return fmt.Errorf("from %s: %w", peer, err)
		}
	}
	return nil
}

func kernelFrom(ctx context.Context, dev ascendrt.Device, o options, s kvShape, peer string, out io.Writer) (err error) {
	to, err := newPool(dev, s)
	if err != nil {
		return err
	}
	plain, err := newPlain(to, o.device, peer)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, plain.close(ctx)) }()
	source := dev
	if plain.peer != nil {
		source = plain.peer
	}
	from, err := newPool(source, s)
	if err != nil {
		return err
	}
	if err := from.fill(ctx, mark); err != nil {
		return err
	}
	k, err := newStopwatch(to)
	if err != nil {
		return err
	}
	large := func(c *ascendrt.Commands) { c.Copy(plain.dst.View(), plain.src.View()) }
	var raw, row, scattered, one, submit figures
	for i := range uint64(o.repeat + 1) {
		if i == 1 { // the first one loads kernels
			raw, row, scattered, one, submit = nil, nil, nil, nil, nil
		}
		for _, x := range []struct {
			into  *figures
			seeds [2]uint64
		}{{&row, [2]uint64{}}, {&scattered, [2]uint64{2*i + 1, 2*i + 2}}} {
			src, dst := order(s.blocks, x.seeds[0]), order(s.blocks, x.seeds[1])
			b := ascendrt.BlockCopy{By: ascendrt.CopyByUnits}
			for j := range src {
				b.Src, b.Dst = append(b.Src, int32(src[j])), append(b.Dst, int32(dst[j]))
			}
			for r := range to.buffers {
				b.Regions = append(b.Regions, ascendrt.BlockRegion{Dst: to.buffers[r].View(), Src: from.buffers[r].View(), DstStride: s.bytes, SrcStride: s.bytes, Bytes: s.bytes})
			}
			took, prepared, err := k.time(ctx, func(c *ascendrt.Commands) { c.CopyBlocks(&b) })
			if err != nil {
				return err
			}
			*x.into, submit = append(*x.into, rate(s.total(), took)), append(submit, milliseconds(prepared))
			if err := to.check(ctx, src, dst, newRand()); err != nil {
				return err
			}
			b.Regions, b.Src, b.Dst = b.Regions[:1], b.Src[:1], b.Dst[:1]
			if took, _, err = k.time(ctx, func(c *ascendrt.Commands) { c.CopyBlocks(&b) }); err != nil {
				return err
			}
			one = append(one, milliseconds(took))
			if took, _, err = k.time(ctx, large); err != nil {
				return err
			}
			raw = append(raw, rate(s.total(), took))
		}
	}
	with := fmt.Sprintf("%s from %s", o.device, peer)
	line(out, "plain copy by itself", with, raw, nil, "GB/s")
	line(out, "kernel by itself of a row", with, row, raw, "GB/s")
	line(out, "kernel by itself of scattered blocks", with, scattered, raw, "GB/s")
	line(out, "kernel by itself of one block", with, one, nil, "ms")
	line(out, "submission of scattered blocks", with, submit, nil, "ms")
	return errors.Join(k.close(), from.close(), to.close())
}

// stopwatch measures by the device's clock.
type stopwatch struct {
	p          *pool
	begin, end ascendrt.Event
}

func newStopwatch(p *pool) (*stopwatch, error) {
	k := &stopwatch{p: p}
	var err error
	if k.begin, err = p.dev.NewEvent(ascendrt.EventTiming); err != nil {
		return nil, err
	}
	k.end, err = p.dev.NewEvent(ascendrt.EventTiming)
	return k, err
}

// time is how long the device takes for a copy into a pool that it clears ahead of it, so that
// all has been submitted when the copy begins; and how long the host takes to submit the copy.
func (k *stopwatch) time(ctx context.Context, copies func(*ascendrt.Commands)) (took, submitted time.Duration, err error) {
	var c ascendrt.Commands
	for _, b := range k.p.buffers {
		c.Fill(b.View(), 0)
	}
	if _, _, err := k.p.stream.Submit(&c); err != nil {
		return 0, 0, err
	}
	begin := time.Now()
	c.Reset()
	c.Record(k.begin)
	copies(&c)
	c.Record(k.end)
	at, _, err := k.p.stream.Submit(&c)
	submitted = time.Since(begin)
	if err == nil {
		err = at.Wait(ctx)
	}
	if err == nil {
		took, err = k.end.Elapsed(k.begin)
	}
	return took, submitted, err
}

func (k *stopwatch) close() error { return errors.Join(k.begin.Close(), k.end.Close()) }
