package sim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestParseSLO(t *testing.T) {
	slo, err := ParseSLO("ttft=2s,tpot=30ms")
	require.NoError(t, err)
	require.Equal(t, SLO{2 * time.Second, 30 * time.Millisecond}, slo)
	for _, s := range []string{"", "ttft=2s", "ttft=0s,tpot=1ms", "ttft=2,tpot=1ms", "p99=2s,tpot=1ms"} {
		_, err := ParseSLO(s)
		require.Error(t, err, s)
	}
}

// The answer is a point of its curve, nothing with fewer instances meets the
// targets, and half its pool does not.
func TestPlanFindsTheSmallest(t *testing.T) {
	load := agents(t, 0.5)
	s := DefaultStudy()
	lim := Limits{Instances: 4, Blocks: 8000, Least: 500, Host: hostTokens, Save: hostCopy, Restore: hostCopy}
	rep, err := s.Plan("agents", ProfileGuarded, load, SLO{3 * time.Second, 13 * time.Millisecond}, lim)
	require.NoError(t, err)
	require.NotNil(t, rep.Best)
	require.Contains(t, rep.Curve, *rep.Best)
	for _, c := range rep.Curve {
		if c.Meets {
			require.GreaterOrEqual(t, c.Prefillers+c.Decoders, rep.Best.Prefillers+rep.Best.Decoders)
			require.GreaterOrEqual(t, c.Blocks, rep.Best.Blocks)
		}
	}
	require.Len(t, rep.Page().Table.Rows, len(rep.Curve))

	none, err := s.Plan("agents", ProfileGuarded, load, SLO{time.Millisecond, time.Millisecond}, Limits{Instances: 2, Blocks: 8000, Least: 500})
	require.NoError(t, err)
	require.Nil(t, none.Best)
	require.Len(t, none.Curve, 1)
	_, err = s.Plan("agents", ProfileGuarded, load, SLO{}, Limits{Instances: 1})
	require.Error(t, err)
}
