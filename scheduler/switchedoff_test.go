package scheduler_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/scheduler"
)

var switchedOn = regexp.MustCompile(`(?m)^new .*\bappend\b`)

// With the switch off nothing of append attempts shows: every history without
// it is the same, word by word and plan by plan, when all guards are configured
// and every request that could be an attempt is marked as one, with a session
// and another route that would be sooner. Where the hash of a history's plans is
// recorded it is that one.
func TestSwitchedOffNothingShows(t *testing.T) {
	recorded, compared := readStreams(t), 0
	files, err := filepath.Glob("testdata/histories/*.txt")
	require.NoError(t, err)
	histories := 0
	for _, path := range files {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		if switchedOn.Match(text) {
			continue
		}
		histories++
		name := strings.TrimSuffix(filepath.Base(path), ".txt")
		t.Run(name, func(t *testing.T) {
			sc := script{disguise: func(c *scheduler.Config, req *scheduler.Request) {
				switch {
				case c != nil:
					c.Append = scheduler.Guarded(16)
					c.Append.Enable = false
					c.Append.MinPrefixTokens, c.Append.MaxWait, c.Append.Tier = 1<<20, time.Nanosecond, scheduler.RestoreFromTier
					c.Append.Governor.Quiet = 100
				case req.Route == scheduler.Local:
					req.Route, req.Session, req.RemoteETA = scheduler.AppendPrefill, "s", 1
				}
			}}
			datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string { return sc.run(t, d) })
			if want, ok := recorded[name]; ok {
				compared++
				require.Equal(t, want, fmt.Sprintf("%016x", sc.r.stream.Sum64()))
			}
			if sc.r != nil {
				st := sc.r.s.Stats()
				require.Zero(t, st.Leases)
				require.Zero(t, st.Refused, "nobody is refused")
			}
		})
	}
	require.Greater(t, histories, 100)
	require.Equal(t, len(recorded), compared, "all that are recorded")
	require.GreaterOrEqual(t, compared, 50)
}
