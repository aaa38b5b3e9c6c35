package ascendrt

import (
	"context"
	"math"
)

// stagingBytes bounds the pinned memory of Upload and Download.
const stagingBytes = 4 << 20

// Upload copies data to device memory and waits for it. It stages through
// pinned memory of its own: for loading, not for steps.
func Upload(ctx context.Context, d Device, s Stream, dst View, data []byte) error {
	return stage(ctx, d, s, len(data), func(c *Commands, host View, off int) {
		c.Copy(dst.Slice(off, host.Len), host)
	}, func(pinned []byte, off int) { copy(pinned, data[off:]) }, nil)
}

// Download copies device memory to data and waits for it; it fills data.
func Download(ctx context.Context, d Device, s Stream, data []byte, src View) error {
	return stage(ctx, d, s, len(data), func(c *Commands, host View, off int) {
		c.Copy(host, src.Slice(off, host.Len))
	}, nil, func(pinned []byte, off int) { copy(data[off:], pinned) })
}

func stage(ctx context.Context, d Device, s Stream, n int, enqueue func(*Commands, View, int), before, after func([]byte, int)) (err error) {
	if n == 0 {
		return nil
	}
	h, err := d.AllocHost(min(n, stagingBytes))
	if err != nil {
		return err
	}
	var last Point
	defer func() {
		if ferr := h.FreeAfter(last); err == nil {
			err = ferr
		}
	}()
	var c Commands
	for off := 0; off < n; off += stagingBytes {
		size := min(stagingBytes, n-off)
		if before != nil {
			before(h.Bytes()[:size], off)
		}
		c.Reset()
		enqueue(&c, h.Slice(0, size), off)
		p, _, err := s.Submit(&c)
		if err != nil {
			return err
		}
		last = p
		if err := p.Wait(ctx); err != nil {
			return err
		}
		if after != nil {
			after(h.Bytes()[:size], off)
		}
	}
	return nil
}

// RopeTable gives the table of OpRope: per position headDim/2 cosines, then
// headDim/2 sines, of position · theta^(-2i/headDim). The angles are computed
// in float64 and rounded once, so every backend rotates by the same numbers.
func RopeTable(positions, headDim int, theta float64) []float32 {
	half := headDim / 2
	t := make([]float32, positions*headDim)
	for p := range positions {
		row := t[p*headDim : (p+1)*headDim]
		for i := range half {
			a := float64(p) * math.Pow(theta, -2*float64(i)/float64(headDim))
			row[i] = float32(math.Cos(a))
			row[half+i] = float32(math.Sin(a))
		}
	}
	return t
}
