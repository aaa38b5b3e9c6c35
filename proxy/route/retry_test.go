package route

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRetryDelayDoubles(t *testing.T) {
	for failed, want := range map[int]time.Duration{1: 1, 2: 2, 3: 4, 11: 1024, 12: 1024, 1000: 1024} {
		require.Equal(t, want*time.Millisecond, RetryDelay(time.Millisecond, failed), "after %d", failed)
	}
}
