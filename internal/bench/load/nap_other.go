//go:build !linux

package load

import "time"

// nap sleeps, and may end before its time.
func nap(d time.Duration) { time.Sleep(d) }
