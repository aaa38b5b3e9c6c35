package route

import "time"

// What a front door does about a request whose legs fail, unless it is told
// otherwise.
const (
	DefaultRounds     = 3                // P/D rounds of one request
	DefaultRetryDelay = time.Millisecond // before the second one
)

// RetryDelay is the wait before the next P/D round of a request of which that
// many have failed, at least one: the delay after the first, doubled for each
// later one up to the eleventh.
func RetryDelay(delay time.Duration, failed int) time.Duration {
	return delay << min(failed-1, 10)
}
