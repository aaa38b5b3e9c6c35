// Package progress shows how far a load run is: a bar that redraws itself on a
// terminal, and nothing but a first and a last line anywhere else.
package progress

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/sluice-serving/sluice/internal/bench/load"
)

// redraw is the least time between two drawings of a bar.
const redraw = 100 * time.Millisecond

const width = 30 // characters of a bar

// Bar shows one run. It is not for concurrent use; load.Config.Observe calls
// from one goroutine at a time.
type Bar struct {
	out   io.Writer
	label string
	live  bool
	start time.Time
	drawn time.Time
	last  load.Progress
}

// Start announces a run on out.
func Start(out io.Writer, label string) *Bar {
	b := &Bar{out: out, label: label, live: IsTerminal(out), start: time.Now()}
	if !b.live {
		fmt.Fprintf(out, "%s\n", label)
	}
	return b
}

// IsTerminal tells whether out is a terminal, on which a bar can be redrawn.
func IsTerminal(out io.Writer) bool {
	f, ok := out.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// Observe notes a change and redraws the bar when it is time to.
func (b *Bar) Observe(p load.Progress) {
	b.last = p
	if now := time.Now(); b.live && (now.Sub(b.drawn) >= redraw || p.Done == p.Total) {
		b.drawn = now
		fmt.Fprintf(b.out, "\r\x1b[K%s", b.line(now))
	}
}

// End finishes the line.
func (b *Bar) End() {
	if b.live {
		fmt.Fprintf(b.out, "\r\x1b[K%s\n", b.line(time.Now()))
		return
	}
	fmt.Fprintf(b.out, "  %d of %d done, %d failed, %.1f s\n", b.last.Done, b.last.Total, b.last.Failed, time.Since(b.start).Seconds())
}

func (b *Bar) line(now time.Time) string {
	full := 0
	if b.last.Total > 0 {
		full = width * b.last.Done / b.last.Total
	}
	s := fmt.Sprintf("%-44s [%s%s] %d/%d  %.1f s", b.label, strings.Repeat("#", full), strings.Repeat(".", width-full), b.last.Done, b.last.Total, now.Sub(b.start).Seconds())
	if waiting := b.last.Sent - b.last.Done; waiting > 0 && b.last.Done < b.last.Total {
		s += fmt.Sprintf("  %d running", waiting)
	}
	if b.last.Failed > 0 {
		s += fmt.Sprintf("  %d failed", b.last.Failed)
	}
	return s
}
