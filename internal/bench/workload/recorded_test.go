package workload

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// made is a recording of two conversations, one of them forked from the other.
type made struct {
	prompts [][][]int32
	block   int
}

func (m *made) Sessions() int       { return len(m.prompts) }
func (m *made) Turns(s int) int     { return len(m.prompts[s]) }
func (m *made) Name(s int) string   { return []string{"main", "a name that no header takes\n"}[s] }
func (m *made) Parent(s int) int    { return s - 1 }
func (m *made) Output(s, t int) int { return 10*s + t + 1 }
func (m *made) Block() int          { return m.block }

func (m *made) Start(s int) time.Duration { return time.Duration(s) * time.Second }

func (m *made) Think(s, t int) time.Duration { return time.Duration(t+1) * time.Millisecond }

func (m *made) Prompt(s, t int, dst []int32) []int32 { return append(dst, m.prompts[s][t]...) }

// prompts are the whole prompts of a session whose turns all have Keep.
func prompts(s *Session) (out [][]int32) {
	var last []int32
	for i := range s.Turns {
		last = append(append([]int32(nil), last[:*s.Turns[i].Keep]...), s.Turns[i].Tokens...)
		out = append(out, last)
	}
	return out
}

func TestRecorded(t *testing.T) {
	m := &made{block: 8, prompts: [][][]int32{
		{{1, 2, 3, 4}, {1, 2, 3, 4, 5, 6}, {1, 2}, {1, 2, 9, 9, 9}}, // grows, shrinks, is rewritten
		{{1, 2, 3, 4, 7}, {8}},
	}}
	w, err := Recorded("made", m, Range{100, 199})
	require.NoError(t, err)
	require.Equal(t, 6, w.Requests())
	for s := range m.prompts {
		for turn, p := range prompts(&w.Sessions[s]) {
			want := make([]int32, len(m.prompts[s][turn]))
			for i, id := range m.prompts[s][turn] {
				want[i] = 100 + id
			}
			require.Equal(t, want, p)
		}
	}
	main, fork := &w.Sessions[0], &w.Sessions[1]
	require.Equal(t, "c00000-main", main.ID)
	require.Equal(t, "c00001", fork.ID)
	require.Equal(t, main.ID, fork.Parent)
	require.Empty(t, main.Turns[2].Tokens, "all of it stood in the prompt before")
	require.Equal(t, time.Second, fork.Arrival)
	require.Equal(t, []time.Duration{0, time.Millisecond, 2 * time.Millisecond}, []time.Duration{main.Turns[0].Think, main.Turns[1].Think, main.Turns[2].Think})
	require.Equal(t, 12, fork.Turns[1].MaxTokens)

	var file bytes.Buffer
	require.NoError(t, w.Write(&file))
	read, err := Read(&file)
	require.NoError(t, err)
	require.Equal(t, w.Hash(), read.Hash())
}

func TestRecordedNeedsIDsEnough(t *testing.T) {
	m := &made{block: 7, prompts: [][][]int32{{{1}}}}
	_, err := Recorded("made", m, Range{100, 199})
	require.ErrorContains(t, err, "blocks of 7 tokens from 100 ids cannot be told apart")
	m.block = 0
	_, err = Recorded("made", m, Range{100, 199})
	require.NoError(t, err, "without blocks nothing is shared")
	_, err = Recorded("made", m, Range{9, 3})
	require.ErrorContains(t, err, "token range")
}

func TestKeepIsChecked(t *testing.T) {
	turn := func(keep int, tokens ...int32) Turn { return Turn{Keep: &keep, Tokens: tokens, MaxTokens: 1} }
	for want, turns := range map[string][]Turn{
		"turn 0: keeps 1 tokens of a prompt of 0": {turn(1, 5)},
		"turn 1: keeps 3 tokens of a prompt of 2": {turn(0, 5, 6), turn(3)},
		"keeps -1 tokens of a prompt of 2":        {turn(0, 5, 6), turn(-1, 4)},
		"at least one":                            {turn(0)},
		"of a prompt that is not known before":    {{Tokens: []int32{5}, MaxTokens: 1}, turn(1, 5)},
		"a whole prompt consists of tokens":       {{Text: "x", Keep: new(int), MaxTokens: 1}},
	} {
		w := &Workload{Version: Version, Sessions: []Session{{ID: "a", Turns: turns}}}
		require.ErrorContains(t, w.Validate(), want)
	}
	w := &Workload{Version: Version, Sessions: []Session{{ID: "a", Turns: []Turn{turn(0, 5, 6), turn(1), turn(1, 7)}}}}
	require.NoError(t, w.Validate())
}
