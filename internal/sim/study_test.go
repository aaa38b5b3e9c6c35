package sim

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/internal/sim/report"
	"github.com/sluice-serving/sluice/internal/sim/trace"
)

// Twelve agents in fast tool loops on one small cluster.
func agents(t *testing.T, gap float64) *Replay {
	t.Helper()
	var rows []string
	for s := range 12 {
		n, at := 300+20*s, 0
		for turn := range 12 {
			rows = append(rows, row(fmt.Sprint("s", s), "", turn, at, 64*n+11, 60, fmt.Sprintf("[1,%d]", n)))
			n += 5 + (7*s+3*turn)%30
			at += 3000
		}
	}
	tr := agentTrace(t, rows...)
	require.Equal(t, trace.WithSessions, tr.Sessions)
	r, err := NewReplay(tr, trace.SessionIDs, ReplayOptions{Gap: gap})
	require.NoError(t, err)
	return r
}

func TestStudyComparesProfiles(t *testing.T) {
	load := agents(t, 0.5)
	s := DefaultStudy()
	s.DecodeBlocks = 4000
	rows := map[Profile]*StudyRow{}
	for _, p := range Profiles {
		r, err := s.Study(p, load, DefaultGoodput)
		require.NoError(t, err, p)
		require.Equal(t, 144, r.Requests, p)
		again, err := s.Study(p, load, DefaultGoodput)
		require.NoError(t, err)
		require.Equal(t, r, again, p)
		t.Logf("%+v", *r)
		rows[p] = r
	}
	require.Zero(t, rows[ProfilePD].Hits+rows[ProfilePD].Fallbacks)
	require.LessOrEqual(t, rows[ProfileReverse].PrefillMTok, rows[ProfilePD].PrefillMTok)
	require.Less(t, rows[ProfileGuarded].PrefillBusy, rows[ProfilePD].PrefillBusy)
	require.GreaterOrEqual(t, rows[ProfileGuarded].GoodShare, rows[ProfilePD].GoodShare)
	require.NotZero(t, rows[ProfileThreshold].Hits)
	require.Zero(t, rows[ProfileThreshold].Fallbacks, "the front door's prediction stands")
}

func TestParseProfile(t *testing.T) {
	p, err := ParseProfile("guarded")
	require.NoError(t, err)
	require.Equal(t, ProfileGuarded, p)
	_, err = ParseProfile("best")
	require.ErrorContains(t, err, `profile "best" is unknown`)
}

// On a short pool, fast agents need every guard: without any one of them fewer
// requests are served well.
func TestEveryGuardHelpsAgents(t *testing.T) {
	load := agents(t, 2)
	s := DefaultStudy()
	s.DecodeBlocks = 2000
	good := map[Profile]float64{}
	for _, p := range slices.Concat([]Profile{ProfileGuarded}, Ablated) {
		r, err := s.Study(p, load, DefaultGoodput)
		require.NoError(t, err, p)
		good[p] = r.GoodShare
	}
	for _, p := range Ablated {
		require.Less(t, good[p], good[ProfileGuarded], p)
	}
	require.Less(t, good[ProfileNoOverload], 0.75*good[ProfileGuarded])
	require.Less(t, good[ProfileNoGovernor], 0.75*good[ProfileGuarded])
}

func TestPageOfAStudy(t *testing.T) {
	s := DefaultStudy()
	rep := &StudyReport{Workload: "agents"}
	for _, p := range []Profile{ProfilePD, ProfilePlain} {
		row, err := s.Study(p, agents(t, 0.5), DefaultGoodput)
		require.NoError(t, err)
		rep.Rows = append(rep.Rows, row)
	}
	titles := map[string]report.Plot{}
	for _, p := range rep.Page().Plots {
		require.Len(t, p.Series, 2, p.Title)
		for _, s := range p.Series {
			require.NotEmpty(t, s.Values, p.Title)
		}
		titles[p.Title] = p
	}
	hits := titles["Local hits by turn"]
	require.Equal(t, []string{"2", "3–4", "5–8", "9–16"}, hits.Labels)
	require.Equal(t, []float64{0, 0, 0, 0}, hits.Series[0].Values)
	require.Equal(t, []float64{1, 1, 1, 1}, hits.Series[1].Values)
	require.Len(t, titles["Decoder steps on a FULL graph"].Series[1].Values, 1)
	require.Equal(t, []float64{3, 5, 4}, peaks([]int32{1, 3, 5, 0, 4}, 2))
}
