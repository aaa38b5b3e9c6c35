package load

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Nobody is woken before the time, however many sleep, and no place is left taken.
func TestSleepUntil(t *testing.T) {
	at := time.Now().Add(3 * napFor)
	var all sync.WaitGroup
	for i := range 4 * maxNaps {
		all.Go(func() {
			due := at.Add(time.Duration(i) * 50 * time.Microsecond)
			if err := sleepUntil(t.Context(), due); err != nil || time.Now().Before(due) {
				t.Errorf("woken %v before the time: %v", time.Until(due), err)
			}
		})
	}
	all.Wait()
	require.Zero(t, napping.Load())
	require.NoError(t, sleepUntil(t.Context(), at), "it is over")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, d := range []time.Duration{-time.Hour, napFor / 2, time.Hour} {
		require.ErrorIs(t, sleepUntil(ended, time.Now().Add(d)), context.Canceled)
	}
}

// BenchmarkSleepUntil tells how late a sleeper is, by a timer and as requests wait, in ms.
func BenchmarkSleepUntil(b *testing.B) {
	for name, sleep := range map[string]func(context.Context, time.Time) error{"timer": wait, "request": sleepUntil} {
		b.Run(name, func(b *testing.B) {
			var late []float64
			for b.Loop() {
				at := time.Now().Add(3*time.Millisecond + time.Duration(len(late)%10)*100*time.Microsecond)
				if err := sleep(b.Context(), at); err != nil {
					b.Fatal(err)
				}
				late = append(late, 1e3*time.Since(at).Seconds())
			}
			slices.Sort(late)
			b.ReportMetric(late[len(late)/2], "ms-late-p50")
			b.ReportMetric(late[len(late)*99/100], "ms-late-p99")
		})
	}
}
