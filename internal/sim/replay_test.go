package sim

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/internal/sim/trace"
	"github.com/sluice-serving/sluice/kvcache"
)

func agentTrace(t *testing.T, rows ...string) *trace.Trace {
	t.Helper()
	tr, err := trace.Read(strings.NewReader(strings.Join(rows, "\n")), trace.Strict)
	require.NoError(t, err)
	return tr
}

func row(session, agent string, turn, at, in, out int, runs string) string {
	return fmt.Sprintf(`{"session":%q,"agent":%q,"turn":%d,"timestamp":%d,"input_length":%d,"output_length":%d,"api_ms":500,"think_ms":2000,"nblocks":%d,"hash_runs":%s}`,
		session, agent, turn, at, in, out, in/64, runs)
}

func shared(a, b []kvcache.Token) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

func TestReplaySharesWhatTheTraceSays(t *testing.T) {
	tr := agentTrace(t,
		row("a", "", 0, 0, 200, 30, "[1,3]"),       // 3 full blocks and 8 tokens
		row("a", "", 1, 3000, 330, 5, "[1,5]"),     // continues: blocks 4 and 5 hold the tail and the answer
		row("a", "", 2, 6000, 260, 5, "[1,2,9,2]"), // cuts its history after block 2
		row("b", "", 0, 0, 200, 30, "[1,3]"),
	)
	r, err := NewReplay(tr, trace.FileIDs, ReplayOptions{})
	require.NoError(t, err)
	require.Equal(t, 2, r.Sessions())
	p0, p1, p2 := r.Prompt(0, 0, nil), r.Prompt(0, 1, nil), r.Prompt(0, 2, nil)
	require.Len(t, p0, 200)
	require.Len(t, p1, 330)
	require.Equal(t, 200, shared(p0, p1), "the tail too, since turn 1 continues turn 0")
	for k := range 30 {
		require.Equal(t, p1[200+k], r.Answer(0, 0, k), "the answer is what the next prompt has there")
	}
	require.Equal(t, 128, shared(p1, p2))
	require.Equal(t, 192, shared(p0, r.Prompt(1, 0, nil)), "equal ids, but nobody shares a tail")
	require.Equal(t, Seconds(2), r.Think(0, 0))
	require.Equal(t, Seconds(60), r.Start(1))

	local, err := NewReplay(tr, trace.SessionIDs, ReplayOptions{})
	require.NoError(t, err)
	require.Zero(t, shared(local.Prompt(0, 0, nil), local.Prompt(1, 0, nil)))
}

func TestReplayScales(t *testing.T) {
	tr := agentTrace(t, row("a", "", 0, 0, 640, 64, "[1,10]"), row("a", "", 1, 3000, 704, 64, "[1,11]"))
	r, err := NewReplay(tr, trace.FileIDs, ReplayOptions{ScaleToken: 0.25, ScaleTime: 0.5, MaxTurns: 2})
	require.NoError(t, err)
	require.Len(t, r.Prompt(0, 0, nil), 160)
	require.Equal(t, 160, shared(r.Prompt(0, 0, nil), r.Prompt(0, 1, nil)))
	require.Equal(t, 16, r.Output(0, 0))
	require.Equal(t, Seconds(1), r.Think(0, 0))
	_, err = NewReplay(tr, trace.FileIDs, ReplayOptions{ScaleTime: -1})
	require.ErrorContains(t, err, "time scale is -1")
}

func TestReplaySubAgents(t *testing.T) {
	tr := agentTrace(t,
		row("a", "", 0, 0, 640, 64, "[1,10]"),
		row("a", "agent_001", 0, 4000, 640, 64, "[100,10]"),
		row("a", "", 1, 9000, 704, 64, "[1,11]"))
	r, err := NewReplay(tr, trace.SessionIDs, ReplayOptions{})
	require.NoError(t, err)
	require.Equal(t, 2, r.Sessions())
	require.Equal(t, 2, r.Turns(0))
	require.Equal(t, 0, r.Parent(1))
	require.Equal(t, Seconds(4), r.Start(1))
}

// A replayed trace runs to its end, and what the pool holds is found again.
func TestReplayRuns(t *testing.T) {
	rows := []string{}
	for s := range 6 {
		for turn := range 5 {
			n := 20 + 3*turn
			rows = append(rows, row(fmt.Sprint("s", s), "", turn, turn*3000, n*64+17, 40, fmt.Sprintf("[1,%d]", n)))
		}
	}
	r, err := NewReplay(agentTrace(t, rows...), trace.SessionIDs, ReplayOptions{Gap: 1})
	require.NoError(t, err)
	res := run(t, withAppend(PublishedCluster(4000)), r)
	require.Len(t, res.Records, 30)
	require.Equal(t, 24, res.Hits)
	for _, rec := range res.Records {
		if rec.Route == Hit {
			// All but the last three blocks of 64 were in the prompt before,
			// and the answer and tail are found too, in whole blocks of 128.
			require.GreaterOrEqual(t, rec.Cached, rec.Prompt-3*64-128)
		}
	}
}
