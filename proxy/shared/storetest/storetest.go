// Package storetest checks what every store of session owners must do.
package storetest

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/proxy"
)

// Basics checks the four calls of a store that is empty, also with many callers
// at once. Its time to live must be ttl; keys must be gone a few times later.
func Basics(t *testing.T, s proxy.Store, ttl time.Duration) {
	t.Helper()
	ctx := t.Context()
	_, ok, err := s.Get(ctx, "0a")
	require.NoError(t, err)
	require.False(t, ok)
	require.NoError(t, s.Delete(ctx, "0a"))

	_, created, err := s.Create(ctx, "0a", []byte("first"))
	require.NoError(t, err)
	require.True(t, created)
	held, created, err := s.Create(ctx, "0a", []byte("second"))
	require.NoError(t, err)
	require.False(t, created)
	require.Equal(t, "first", string(held))

	require.NoError(t, s.Put(ctx, "0a", []byte{0, 1, 255}))
	got, ok, err := s.Get(ctx, "0a")
	require.NoError(t, err)
	require.True(t, ok)
	require.True(t, bytes.Equal([]byte{0, 1, 255}, got))

	require.NoError(t, s.Delete(ctx, "0a"))
	_, ok, err = s.Get(ctx, "0a")
	require.NoError(t, err)
	require.False(t, ok)
	_, created, err = s.Create(ctx, "0a", []byte("again"))
	require.NoError(t, err)
	require.True(t, created)

	// Of many that create a key at once one does, and all see what it holds.
	for key := range 5 {
		var winners atomic.Int64
		seen := make([]string, 8)
		var group sync.WaitGroup
		for i := range seen {
			group.Go(func() {
				mine := fmt.Sprint("value ", i)
				held, created, err := s.Create(ctx, fmt.Sprintf("b%d", key), []byte(mine))
				if err != nil {
					t.Error(err)
				}
				if seen[i] = string(held); created {
					winners.Add(1)
					seen[i] = mine
				}
			})
		}
		group.Wait()
		require.EqualValues(t, 1, winners.Load())
		for _, v := range seen {
			require.Equal(t, seen[0], v)
		}
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	_, _, err = s.Get(ended, "0a")
	require.Error(t, err)

	require.NoError(t, s.Put(ctx, "old", []byte("v")))
	require.Eventually(t, func() bool {
		_, ok, err := s.Get(ctx, "old")
		return err == nil && !ok
	}, 60*ttl, ttl/10, "it is forgotten after its time to live")
}
