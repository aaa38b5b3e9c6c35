package ranks

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/graphs"
)

var vote = graphs.Vote{Tokens: 1, Reqs: 1, Uniform: 1, Bound: 1}

// A rank without work is called in every step that another one begins, and not
// before.
func TestCalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		xs := Local(2)
		busy, idle := xs[0].(Caller), xs[1].(Caller)
		for step := range uint64(5) {
			require.False(t, isClosed(idle.Called()))
			done := make(chan error, 1)
			go func() {
				_, err := busy.Exchange(t.Context(), step, vote)
				done <- err
			}()
			<-idle.Called()
			_, err := idle.Exchange(t.Context(), step, vote)
			require.NoError(t, err)
			require.NoError(t, <-done)
		}
		require.False(t, isClosed(busy.Called()))
		lost := errors.New("its device is gone")
		require.NoError(t, idle.Leave(lost))
		<-busy.Called()
		_, err := busy.Exchange(t.Context(), 5, vote)
		require.ErrorIs(t, err, ErrClosed)
		require.ErrorIs(t, err, lost)
		require.ErrorContains(t, err, "rank 1")
		require.NoError(t, busy.Close())
	})
}

// hooked runs a function when a wait for its end begins.
type hooked struct {
	context.Context
	f func()
}

func (h hooked) Done() <-chan struct{} {
	h.f()
	return h.Context.Done()
}

// A step on which all have voted is one for all, although a rank leaves directly
// behind it: none runs a step that another one does not.
func TestVotesCountBeforeTheEnd(t *testing.T) {
	for range 30 { // one of two ends is seen first, by chance
		xs := Local(2)
		_, err := xs[0].Exchange(hooked{context.Background(), func() {
			_, err := xs[1].Exchange(context.Background(), 1, vote)
			require.NoError(t, err)
			require.NoError(t, xs[1].Close())
		}}, 1, vote)
		require.NoError(t, err)
	}
}
