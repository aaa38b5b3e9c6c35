package scheduler_test

import (
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/scheduler"
)

// least is the least processor time of several runs of f.
func least(tb testing.TB, runs int, f func()) time.Duration {
	best := time.Duration(1 << 62)
	for range runs {
		begun := cpu(tb)
		f()
		best = min(best, cpu(tb)-begun)
	}
	return best
}

// TestCostRatios guards how costs grow, not what they are: a step with sixteen
// times the rows costs at most twenty times as much, a step does not depend on
// the number of requests that wait, and admitting a cached prompt costs a small
// multiple of comparing its ids. It measures processor time and runs where
// SLUICE_GUARD is set.
func TestCostRatios(t *testing.T) {
	if os.Getenv("SLUICE_GUARD") == "" {
		t.Skip("measures; set SLUICE_GUARD to run it")
	}
	const steps = 64 // a multiple of the block size: each request takes and fills as many blocks
	cost := func(rows, waiting int) time.Duration {
		st := newSteady(t, rows)
		for i := range waiting {
			_, err := st.s.Add(scheduler.Request{ID: string(rune('A' + i)), Prompt: []scheduler.Token{1, 2, 3}, MaxTokens: 4})
			require.NoError(t, err)
		}
		return least(t, 30, func() {
			for range steps {
				st.step(t)
			}
		})
	}
	// Neighbours on the machine take cache from the larger one: the best of a
	// few tries counts.
	var small, large time.Duration
	for try := 0; try == 0 || try < 6 && large > 20*small; try++ {
		small, large = cost(64, 0), cost(1024, 0)
		t.Logf("64 rows %v, 1,024 rows %v a step", small/steps, large/steps)
	}
	require.LessOrEqual(t, large, 20*small)

	alone, crowded := cost(256, 0), cost(256, 10_000)
	t.Logf("256 rows %v, with 10,000 waiting %v a step", alone/steps, crowded/steps)
	require.LessOrEqual(t, crowded, 2*alone)

	const tokens = 128 << 10
	a := newAdmission(t, tokens)
	admit := time.Duration(1 << 62)
	for range 40 {
		begun := cpu(t)
		a.admit(t)
		p := a.s.Plan(a.now)
		admit = min(admit, cpu(t)-begun)
		a.finish(t, p)
	}
	other := slices.Clone(a.prompt)
	compare := least(t, 40, func() {
		for i := range a.prompt {
			if a.prompt[i] != other[i] {
				t.Fatal("differs")
			}
		}
	})
	t.Logf("admission of %d cached tokens %v, comparing them once %v", tokens, admit, compare)
	require.LessOrEqual(t, admit, 4*compare)
}
