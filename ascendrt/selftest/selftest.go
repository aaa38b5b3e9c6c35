// Package selftest looks at the devices of a machine and tries each one for a
// few seconds: what it finds, whether it works, and what to do if it does not.
package selftest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/host"
)

// Check is one finding about a device.
type Check struct {
	Name   string
	Detail string // what was measured
	Err    error  // nil: it works
	Advice string // what to do about Err
}

// Run tries one device: open, memory, copies, a named operation against the
// host backend, a graph and its update, event timing, completion. It stops at
// the first check without which the next ones make no sense. It takes up to
// five seconds; ctx ends it earlier.
func Run(ctx context.Context, b ascendrt.Backend, ordinal int) []Check {
	r := &run{ctx: ctx}
	var d ascendrt.Device
	if !r.check("open", func() (detail string, err error) {
		begin := time.Now()
		d, err = b.Open(ordinal, ascendrt.OpenOptions{})
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("%s, %.0f ms", d.Info().Name, time.Since(begin).Seconds()*1e3), nil
	}) {
		return r.checks
	}
	r.d = d
	ok := r.check("memory", r.memory) && r.check("copy", r.copies)
	if ok {
		r.check("completion", r.completion)
		r.check("event timing", r.timing)
		if r.check("operation", r.operation) {
			r.check("graph", r.graph)
		}
	}
	r.check("close", func() (string, error) {
		if r.s != nil {
			if err := r.s.Close(); err != nil {
				return "", err
			}
		}
		l := d.Live()
		if err := d.Close(ctx); err != nil {
			return "", err
		}
		if l != (ascendrt.Live{}) {
			return "", fmt.Errorf("handles left: %+v", l)
		}
		return "nothing left", nil
	})
	return r.checks
}

type run struct {
	ctx    context.Context
	d      ascendrt.Device
	s      ascendrt.Stream
	checks []Check
}

func (r *run) check(name string, f func() (string, error)) bool {
	detail, err := f()
	c := Check{Name: name, Detail: detail, Err: err}
	if err != nil {
		c.Advice = advise(err)
	}
	r.checks = append(r.checks, c)
	return err == nil
}

// submit runs commands and waits for them.
func (r *run) submit(f func(c *ascendrt.Commands)) (time.Duration, error) {
	var c ascendrt.Commands
	f(&c)
	begin := time.Now()
	p, _, err := r.s.Submit(&c)
	if err != nil {
		return 0, err
	}
	err = p.Wait(r.ctx)
	return time.Since(begin), err
}

func (r *run) memory() (string, error) {
	free, total, err := r.d.MemInfo()
	if err != nil {
		return "", err
	}
	if r.s, err = r.d.NewStream(ascendrt.StreamOptions{Role: "selftest"}); err != nil {
		return "", err
	}
	return fmt.Sprintf("%.1f of %.1f GiB free", float64(free)/(1<<30), float64(total)/(1<<30)), nil
}

// copies moves a pattern to the device, within it, and back.
func (r *run) copies() (detail string, err error) {
	const n = 32 << 20
	h, err := r.d.AllocHost(2 * n)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, h.FreeAfter(ascendrt.Point{})) }()
	x, err := r.d.Alloc(2*n, ascendrt.PlaceDefault)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, x.FreeAfter(ascendrt.Point{})) }()
	for i := 0; i < n; i += 8 {
		binary.LittleEndian.PutUint64(h.Bytes()[i:], uint64(i)*0x9e3779b97f4a7c15)
	}
	var best [3]time.Duration
	for range 3 {
		for i, f := range []func(c *ascendrt.Commands){
			func(c *ascendrt.Commands) { c.Copy(x.Slice(0, n), h.Slice(0, n)) },
			func(c *ascendrt.Commands) { c.Copy(x.Slice(n, n), x.Slice(0, n)) },
			func(c *ascendrt.Commands) { c.Copy(h.Slice(n, n), x.Slice(n, n)) },
		} {
			t, err := r.submit(f)
			if err != nil {
				return "", err
			}
			if best[i] == 0 || t < best[i] {
				best[i] = t
			}
		}
	}
	if !bytes.Equal(h.Bytes()[:n], h.Bytes()[n:]) {
		return "", fmt.Errorf("what came back differs from what was sent: %w", ascendrt.ErrDegraded)
	}
	rate := func(t time.Duration) float64 { return n / t.Seconds() / 1e9 }
	return fmt.Sprintf("to the device %.1f GB/s, within %.1f, back %.1f", rate(best[0]), rate(best[1]), rate(best[2])), nil
}

// completion is the time from an empty submission to knowing that it is done.
func (r *run) completion() (string, error) {
	var best time.Duration
	for range 200 {
		t, err := r.submit(func(*ascendrt.Commands) {})
		if err != nil {
			return "", err
		}
		if best == 0 || t < best {
			best = t
		}
	}
	return fmt.Sprintf("%.1f µs", float64(best.Nanoseconds())/1e3), nil
}

func (r *run) timing() (detail string, err error) {
	var e [2]ascendrt.Event
	for i := range e {
		if e[i], err = r.d.NewEvent(ascendrt.EventTiming); err != nil {
			return "", err
		}
		defer func() { err = errors.Join(err, e[i].Close()) }()
	}
	x, err := r.d.Alloc(16<<20, ascendrt.PlaceDefault)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, x.FreeAfter(ascendrt.Point{})) }()
	wall, err := r.submit(func(c *ascendrt.Commands) {
		c.Record(e[0])
		for range 8 {
			c.Fill(x.View(), 1)
		}
		c.Record(e[1])
	})
	if err != nil {
		return "", err
	}
	d, err := e[1].Elapsed(e[0])
	if err != nil {
		return "", err
	}
	if d <= 0 || d > 2*wall+time.Millisecond {
		return "", fmt.Errorf("events measure %v of %v: %w", d, wall, ascendrt.ErrDegraded)
	}
	return fmt.Sprintf("%.0f µs of %.0f", float64(d.Nanoseconds())/1e3, float64(wall.Nanoseconds())/1e3), nil
}

// The operation of the test: y[N,M] = x[N,K]·Wᵀ.
const opN, opK, opM = 64, 128, 96

func opInput() []byte {
	data := make([]byte, 4*(opN*opK+opM*opK))
	for i := range len(data) / 4 {
		v := float32(math.Sin(float64(i)*0.37)) / 3
		binary.LittleEndian.PutUint32(data[4*i:], math.Float32bits(v))
	}
	return data
}

// multiply runs the operation on a device, as prepared by submit, and gives y.
func multiply(ctx context.Context, d ascendrt.Device, s ascendrt.Stream, data []byte, submit func(c *ascendrt.Commands) error) (y []byte, err error) {
	op, err := d.Plan(ascendrt.OpSpec{Kind: ascendrt.OpMatmul, Type: ascendrt.Float32, Attr: ascendrt.MatmulAttr{In: opK, Out: opM}})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, op.Close()) }()
	const nx, nw, ny = 4 * opN * opK, 4 * opM * opK, 4 * opN * opM
	buf, err := d.Alloc(nx+nw+ny+op.Workspace(), ascendrt.PlaceDefault)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, buf.FreeAfter(ascendrt.Point{})) }()
	if err := ascendrt.Upload(ctx, d, s, buf.Slice(0, nx+nw), data); err != nil {
		return nil, err
	}
	var c ascendrt.Commands
	c.Op(op, buf.Slice(nx+nw+ny, op.Workspace()),
		ascendrt.NewTensor(buf.Slice(0, nx), ascendrt.Float32, opN, opK),
		ascendrt.NewTensor(buf.Slice(nx, nw), ascendrt.Float32, opM, opK),
		ascendrt.NewTensor(buf.Slice(nx+nw, ny), ascendrt.Float32, opN, opM))
	if err := submit(&c); err != nil {
		return nil, err
	}
	y = make([]byte, ny)
	return y, ascendrt.Download(ctx, d, s, y, buf.Slice(nx+nw, ny))
}

// reference is the operation on the host backend.
func reference(ctx context.Context) (y []byte, err error) {
	d, err := host.Backend{}.Open(0, ascendrt.OpenOptions{Workers: 1})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.Close(ctx)) }()
	s, err := d.NewStream(ascendrt.StreamOptions{})
	if err != nil {
		return nil, err
	}
	r := &run{ctx: ctx, d: d, s: s}
	return multiply(ctx, d, s, opInput(), r.eager)
}

func (r *run) eager(c *ascendrt.Commands) error {
	p, _, err := r.s.Submit(c)
	if err != nil {
		return err
	}
	return p.Wait(r.ctx)
}

func (r *run) operation() (string, error) {
	want, err := reference(r.ctx)
	if err != nil {
		return "", err
	}
	begin := time.Now()
	got, err := multiply(r.ctx, r.d, r.s, opInput(), r.eager)
	if err != nil {
		return "", err
	}
	return r.compare(want, got, fmt.Sprintf("first run %.0f ms", time.Since(begin).Seconds()*1e3))
}

func (r *run) compare(want, got []byte, detail string) (string, error) {
	if bytes.Equal(want, got) {
		return "the host's bits, " + detail, nil
	}
	if r.d.Caps().DeterministicReduce {
		return "", fmt.Errorf("the result differs from the host's: %w", ascendrt.ErrDegraded)
	}
	var diff, norm float64
	for i := 0; i < len(want); i += 4 {
		w := float64(math.Float32frombits(binary.LittleEndian.Uint32(want[i:])))
		g := float64(math.Float32frombits(binary.LittleEndian.Uint32(got[i:])))
		diff, norm = diff+(w-g)*(w-g), norm+w*w
	}
	rel := math.Sqrt(diff / norm)
	if !(rel < 1e-2) {
		return "", fmt.Errorf("the result is off by %.1e of the host's: %w", rel, ascendrt.ErrDegraded)
	}
	return fmt.Sprintf("off by %.1e of the host's, %s", rel, detail), nil
}

func (r *run) graph() (string, error) {
	if !r.d.Caps().Graphs {
		return "not supported", nil
	}
	want, err := reference(r.ctx)
	if err != nil {
		return "", err
	}
	var replay time.Duration
	got, err := multiply(r.ctx, r.d, r.s, opInput(), func(c *ascendrt.Commands) error {
		g, err := r.d.Capture(r.s, c, ascendrt.CaptureOptions{})
		if err != nil {
			return err
		}
		for range 3 {
			if replay, err = r.submit(func(c *ascendrt.Commands) { c.Graph(g) }); err != nil {
				return errors.Join(err, g.Close())
			}
		}
		return g.Close()
	})
	if err != nil {
		return "", err
	}
	return r.compare(want, got, fmt.Sprintf("replay %.0f µs", float64(replay.Nanoseconds())/1e3))
}
