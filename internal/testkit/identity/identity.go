// Package identity checks that two ways of serving give the same answers, and
// that the check would notice if they did not: every comparison runs its
// negative control once.
package identity

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// Answer is the tokens of one answer.
type Answer []int32

// MinChanged is the share of answers that wrong KV must change.
const MinChanged = 0.95

// Check requires that got equals want, answer by answer, and then that noise,
// which gives the answers to the same prompts over KV of which one block was
// overwritten, differs from want in at least MinChanged of them.
func Check(t testing.TB, want, got []Answer, noise func() []Answer) {
	t.Helper()
	require.NotEmpty(t, want)
	require.Len(t, got, len(want))
	for i := range want {
		require.Equal(t, want[i], got[i], "answer %d", i)
	}
	Control(t, want, noise())
}

// Control requires that noisy differs from want in at least MinChanged of the
// answers.
func Control(t testing.TB, want, noisy []Answer) {
	t.Helper()
	require.Len(t, noisy, len(want))
	changed := 0
	for i := range want {
		require.NotEmpty(t, noisy[i], "answer %d has no tokens: it does not count as a changed one", i)
		if !slices.Equal(want[i], noisy[i]) {
			changed++
		}
	}
	require.GreaterOrEqual(t, float64(changed), MinChanged*float64(len(want)),
		"only %d of %d answers notice an overwritten KV block: equal answers would prove nothing", changed, len(want))
}

// Distinct is the mean number of different tokens in the answers.
func Distinct(answers []Answer) float64 {
	n := 0
	for _, a := range answers {
		seen := map[int32]bool{}
		for _, tok := range a {
			seen[tok] = true
		}
		n += len(seen)
	}
	return float64(n) / float64(max(1, len(answers)))
}
