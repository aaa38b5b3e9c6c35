package handles

import (
	"fmt"
	"log/slog"
	"runtime"
	"sync/atomic"
)

// Leaks counts and reports handles that were dropped without Close. Its Report
// is the cleanup of a handle (runtime.AddCleanup): it frees nothing. The zero
// value is ready; it reports to Log, which may be nil.
type Leaks struct {
	Log   *slog.Logger
	count atomic.Int64
	over  atomic.Bool
}

// Dropped describes a handle for a report.
type Dropped struct {
	What  string
	Bytes int       // of memory, 0 for other handles
	Stack []uintptr // where it was made; nil: unknown
}

// Report counts a handle and says what it was and where it was made.
func (l *Leaks) Report(x Dropped) {
	if l.over.Load() {
		return
	}
	l.count.Add(1)
	if l.Log == nil {
		return
	}
	where := "unknown (open with DebugSync)"
	if len(x.Stack) > 0 {
		f, _ := runtime.CallersFrames(x.Stack).Next()
		where = fmt.Sprintf("%s:%d", f.File, f.Line)
	}
	l.Log.Warn("device handle dropped without Close", "what", x.What, "bytes", x.Bytes, "made_at", where)
}

// Count is the number of handles reported.
func (l *Leaks) Count() int { return int(l.count.Load()) }

// Stop ends reporting: the device is closed, and its handles with it.
func (l *Leaks) Stop() { l.over.Store(true) }
