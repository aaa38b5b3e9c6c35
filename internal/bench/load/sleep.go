package load

import (
	"context"
	"sync/atomic"
	"time"
)

// Timers of a process that has nothing else to do are up to a millisecond late: the Go
// runtime waits for them in whole ones. A request is due to a tenth of that, so the
// last part is slept in the kernel, which takes a thread.
const (
	napFor  = 2 * time.Millisecond
	maxNaps = 16 // threads; who comes when all are taken is late by a timer
)

var napping atomic.Int32

// sleepUntil waits until that time or ctx's end, whose error it gives.
func sleepUntil(ctx context.Context, at time.Time) error {
	if err := wait(ctx, at.Add(-napFor)); err != nil {
		return err
	}
	sleep := time.Sleep
	if napping.Add(1) <= maxNaps {
		sleep = nap
	}
	defer napping.Add(-1)
	for d := time.Until(at); d > 0; d = time.Until(at) { // a signal may end a nap
		sleep(d)
	}
	return ctx.Err()
}

// wait is sleepUntil by a timer.
func wait(ctx context.Context, at time.Time) error {
	d := time.Until(at)
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
