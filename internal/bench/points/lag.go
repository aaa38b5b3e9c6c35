package points

import (
	"context"
	"runtime"
	"time"

	"github.com/sluice-serving/sluice/internal/bench/measure"
)

// Lag is what the load generator says about itself, so that it can be told
// whether a figure is the server's.
type Lag struct {
	SentP50Ms  float64 `json:"sent_p50_ms"` // from when a request was due to when it was sent
	SentP99Ms  float64 `json:"sent_p99_ms"`
	SentMaxMs  float64 `json:"sent_max_ms"`
	TimerP99Ms float64 `json:"timer_p99_ms"` // how late a goroutine ran that slept meanwhile
	TimerMaxMs float64 `json:"timer_max_ms"`
	Processor  float64 `json:"processor_share"` // of one core, user and system
	EventsPS   float64 `json:"events_per_s"`
}

// lagEvery is how long the goroutine sleeps that watches for lateness.
const lagEvery = 2 * time.Millisecond

// watch measures how late timers fire and how much processor time the process
// takes from now until the function that it gives is called.
func watch(ctx context.Context) (stop func(*Lag)) {
	ctx, cancel := context.WithCancel(ctx)
	late := make(chan []float64, 1)
	begun, used := time.Now(), processorTime()
	due := begun.Add(lagEvery)
	go func() {
		var out []float64
		defer func() { late <- out }()
		timer := time.NewTimer(lagEvery)
		defer timer.Stop()
		for {
			select {
			case <-ctx.Done():
				if late := time.Since(due); late > 0 { // it never came to run in between
					out = append(out, milliseconds(late))
				}
				return
			case <-timer.C:
				now := time.Now()
				out = append(out, milliseconds(now.Sub(due)))
				due = now.Add(lagEvery)
				timer.Reset(lagEvery)
			}
		}
	}()
	return func(l *Lag) {
		cancel()
		values := <-late
		if took := time.Since(begun); took > 0 {
			l.Processor = float64(processorTime()-used) / float64(took)
		}
		s := measure.NewSpread(values)
		l.TimerP99Ms, l.TimerMaxMs = s.P99, s.Max
	}
}

// sent takes how late requests left.
func (l *Lag) sent(records []measure.Record) {
	var late []float64
	for i := range records {
		if r := &records[i]; r.Sent > 0 {
			late = append(late, milliseconds(r.Sent-r.Eligible))
		}
	}
	s := measure.NewSpread(late)
	l.SentP50Ms, l.SentP99Ms, l.SentMaxMs = s.P50, s.P99, s.Max
}

// calm collects garbage before a point, so that less is left to do during it.
func calm() { runtime.GC() }
