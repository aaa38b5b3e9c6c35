package selftest

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/sluice-serving/sluice/ascendrt"
)

// advise says what to do about an error of a device.
func advise(err error) string {
	for _, a := range []struct {
		class error
		text  string
	}{
		{ascendrt.ErrDeviceLost, "the device has met a fault that this process cannot repair: restart it; if it comes back, look at the driver's log (dmesg) and at the device's ECC and temperature"},
		{ascendrt.ErrOutOfMemory, "other processes hold the memory: end them, or give this one a smaller budget"},
		{ascendrt.ErrResourceLimit, "streams or events are exhausted: other processes on this device hold them"},
		{ascendrt.ErrUnavailable, "install or repair the runtime that the text names, and check that the device is visible to this process"},
		{ascendrt.ErrCompile, "the compiler's log is in the text: a newer compiler library may be needed for this device"},
		{ascendrt.ErrUnsupported, "this driver or device lacks the feature: a newer driver may have it"},
		{ascendrt.ErrCapture, "steps run eagerly instead: slower, but correct; a newer driver may capture them"},
		{ascendrt.ErrTimeout, "the device did not finish in time: another process may keep it busy"},
		{ascendrt.ErrDegraded, "results cannot be trusted: take the device out of service and run the vendor's diagnostics"},
		{context.DeadlineExceeded, "the device did not finish in time: another process may keep it busy"},
	} {
		if errors.Is(err, a.class) {
			return a.text
		}
	}
	return "this is unexpected: report it with the text above"
}

// List writes what each backend finds on this machine.
func List(ctx context.Context, w io.Writer, backends []ascendrt.Backend) error {
	p := &printer{w: w}
	for _, b := range backends {
		r, err := b.Probe(ctx)
		p.line("%s", b.Name())
		if err != nil {
			p.line("  problem  %v", err)
			continue
		}
		for _, d := range r.Devices {
			p.line("  device   %s:%d  %s  %s  %.1f GiB  %d units  %s", b.Name(), d.Ordinal, d.Name, d.Arch, float64(d.TotalMemory)/(1<<30), d.ComputeUnits, d.RuntimeVersion)
			if d.UUID != "" || d.Note != "" {
				p.line("           %s  %s", d.UUID, d.Note)
			}
		}
		for _, l := range r.Libraries {
			if l.Problem != "" {
				p.line("  library  %s  not loaded: %s", l.Name, l.Problem)
			} else {
				p.line("  library  %s  %s  %s", l.Name, l.Version, l.Path)
			}
		}
		for _, m := range r.Missing {
			p.line("  missing  %s", m)
		}
		if r.Problem != "" {
			p.line("  problem  %s", r.Problem)
		}
	}
	return p.err
}

// Doctor tries every device of the backends, writes what it finds, and tells
// how many checks failed. A backend without devices is no failure: its problem
// is written.
func Doctor(ctx context.Context, w io.Writer, backends []ascendrt.Backend) (failed int, err error) {
	p := &printer{w: w}
	for _, b := range backends {
		r, err := b.Probe(ctx)
		if err != nil || len(r.Devices) == 0 {
			if err == nil {
				err = errors.New(r.Problem)
			}
			p.line("%s: no device: %v", b.Name(), err)
			continue
		}
		for _, d := range r.Devices {
			p.line("%s:%d %s", b.Name(), d.Ordinal, d.Name)
			for _, c := range Run(ctx, b, d.Ordinal) {
				if c.Err == nil {
					p.line("  ok    %-12s %s", c.Name, c.Detail)
					continue
				}
				failed++
				p.line("  FAIL  %-12s %v", c.Name, c.Err)
				p.line("        %-12s %s", "what to do:", c.Advice)
			}
		}
	}
	return failed, p.err
}

// printer keeps the first error of a writer.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) line(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format+"\n", args...)
	}
}
