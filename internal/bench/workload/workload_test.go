package workload

import (
	"bytes"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func conversations() *Conversations {
	return &Conversations{
		Name: "t", Seed: 7, Sessions: 6, Turns: 3, First: Range{100, 120}, Next: Range{20, 30},
		Arrival: 5 * time.Second, Think: time.Second, MaxTokens: 32, LongPauses: 2, LongPause: 9 * time.Second, LongTurn: 2,
	}
}

func TestAFrozenWorkloadIsTheSameEveryTime(t *testing.T) {
	a, err := conversations().Generate()
	require.NoError(t, err)
	b, err := conversations().Generate()
	require.NoError(t, err)
	require.Equal(t, a.Hash(), b.Hash())
	require.Equal(t, "3929362c", a.Hash()[:8], "the generator's output is frozen: a new value here is a new workload")

	other := conversations()
	other.Seed++
	c, err := other.Generate()
	require.NoError(t, err)
	require.NotEqual(t, a.Hash(), c.Hash())

	var file bytes.Buffer
	require.NoError(t, a.Write(&file))
	read, err := Read(&file)
	require.NoError(t, err)
	require.Equal(t, a, read)
}

func TestShapeOfConversations(t *testing.T) {
	w, err := conversations().Generate()
	require.NoError(t, err)
	require.Equal(t, 18, w.Requests())
	require.Equal(t, 12, w.FollowUps())
	require.Equal(t, 5*time.Second, w.ArrivalWindow())
	require.Equal(t, 12, w.Cut(2).Requests())
	require.Equal(t, 18, w.Cut(9).Requests())
	first := map[string]bool{}
	for i, s := range w.Sessions {
		require.Equal(t, time.Duration(i)*time.Second, s.Arrival)
		require.GreaterOrEqual(t, len(s.Turns[0].Text), 100)
		require.LessOrEqual(t, len(s.Turns[0].Text), 120)
		require.Zero(t, s.Turns[0].Think)
		require.Equal(t, time.Second, s.Turns[1].Think)
		want := time.Second
		if i < 2 {
			want = 9 * time.Second
		}
		require.Equal(t, want, s.Turns[2].Think)
		first[s.Turns[0].Text[:5]] = true
	}
	require.Len(t, first, 6, "sessions differ from their first characters on")
}

func TestTokenContentStaysInItsRange(t *testing.T) {
	c := conversations()
	c.Content = Tokens
	c.Vocab = Range{300, 400}
	w, err := c.Generate()
	require.NoError(t, err)
	for _, s := range w.Sessions {
		for _, turn := range s.Turns {
			require.Empty(t, turn.Text)
			for _, id := range turn.Tokens {
				require.GreaterOrEqual(t, id, int32(300))
				require.LessOrEqual(t, id, int32(400))
			}
		}
	}
}

func TestRandomPromptsArriveAtTheirRate(t *testing.T) {
	p := RandomPrompts{Seed: 1, Content: Tokens, Requests: 2000, InputLen: 10, OutputLen: 5, Rate: 50}
	w, err := p.Generate()
	require.NoError(t, err)
	require.Len(t, w.Sessions, 2000)
	require.Len(t, w.Sessions[7].Turns[0].Tokens, 10)
	rate := 1999 / w.ArrivalWindow().Seconds()
	require.InDelta(t, 50, rate, 4)

	p.Rate = math.Inf(1)
	w, err = p.Generate()
	require.NoError(t, err)
	require.Zero(t, w.ArrivalWindow())
}

func TestBadDescriptionsAreRefused(t *testing.T) {
	c := conversations()
	c.First, c.Sessions, c.LongPauses = Range{5, 1}, 0, 3
	err := c.Validate()
	require.ErrorContains(t, err, "first length")
	require.ErrorContains(t, err, "sessions 0")
	require.ErrorContains(t, err, "long pauses")
	_, err = (&RandomPrompts{Requests: 1, InputLen: 1, OutputLen: 1, Rate: -1}).Generate()
	require.ErrorContains(t, err, "rate -1")

	for name, file := range map[string]string{
		"unknown member": `{"version":1,"sessions":[],"colour":"red"}`,
		"no sessions":    `{"version":1,"sessions":[]}`,
		"version":        `{"version":9,"sessions":[{"id":"a","turns":[{"text":"x","max_tokens":1}]}]}`,
		"two contents":   `{"version":1,"sessions":[{"id":"a","turns":[{"text":"x","tokens":[1],"max_tokens":1}]}]}`,
		"twice":          `{"version":1,"sessions":[{"id":"a","turns":[{"text":"x","max_tokens":1}]},{"id":"a","turns":[{"text":"x","max_tokens":1}]}]}`,
		"cut":            `{"version":1,`,
	} {
		_, err := Read(strings.NewReader(file))
		require.Error(t, err, name)
	}
}

func TestWordsHaveTheirLength(t *testing.T) {
	w, err := (&RandomPrompts{Seed: 3, Requests: 50, InputLen: 77, OutputLen: 1}).Generate()
	require.NoError(t, err)
	for _, s := range w.Sessions {
		require.Len(t, s.Turns[0].Text, 77)
	}
}
