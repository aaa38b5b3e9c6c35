package scheduler

import (
	"math"
	"time"
)

// Time is a moment on the caller's clock, in nanoseconds since an epoch that
// the caller chooses. The scheduler has no clock of its own: it learns the
// time from Plan, and a simulated clock serves as well as a real one. Values
// given to one scheduler never decrease.
type Time int64

// Never is later than every other moment.
const Never Time = math.MaxInt64

// At converts a wall-clock reading, as nanoseconds of the Unix epoch.
func At(t time.Time) Time { return Time(t.UnixNano()) }

// Add returns t+d, and Never instead of an overflow.
func (t Time) Add(d time.Duration) Time {
	if d > 0 && t > Never-Time(d) {
		return Never
	}
	return t + Time(d)
}

// Sub returns t-u.
func (t Time) Sub(u Time) time.Duration { return time.Duration(t - u) }
