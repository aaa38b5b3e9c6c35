package proxy

import (
	"context"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestWatch(t *testing.T) {
	never := func() bool { return false }
	for name, run := range map[string]func(t *testing.T, w *watch, ctx context.Context){
		"no header": func(t *testing.T, _ *watch, ctx context.Context) {
			began := time.Now()
			<-ctx.Done()
			require.Equal(t, time.Minute, time.Since(began))
			require.ErrorIs(t, context.Cause(ctx), errTimeout)
		},
		"idle": func(t *testing.T, w *watch, ctx context.Context) {
			w.body = strings.NewReader(strings.Repeat("x", 50))
			w.begin(20*time.Second, never)
			for range 50 {
				time.Sleep(15 * time.Second)
				_, err := w.Read(make([]byte, 1))
				require.NoError(t, err)
			}
			require.NoError(t, ctx.Err())
			began := time.Now()
			<-ctx.Done()
			require.ErrorIs(t, context.Cause(ctx), errTimeout)
			require.GreaterOrEqual(t, time.Since(began), 20*time.Second)
			require.LessOrEqual(t, time.Since(began), 22500*time.Millisecond)
		},
		"ended unnoticed": func(t *testing.T, w *watch, ctx context.Context) {
			var ended atomic.Bool
			w.begin(time.Hour, ended.Load)
			time.Sleep(10 * time.Second)
			require.NoError(t, ctx.Err())
			ended.Store(true)
			began := time.Now()
			<-ctx.Done()
			require.ErrorIs(t, context.Cause(ctx), io.ErrUnexpectedEOF)
			require.LessOrEqual(t, time.Since(began), maxTick)
		},
		"stopped": func(t *testing.T, w *watch, ctx context.Context) {
			w.begin(time.Second, never)
			w.stop()
			time.Sleep(time.Hour)
			require.NoError(t, ctx.Err())
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				w := newWatch(cancel, time.Minute)
				defer w.stop()
				run(t, w, ctx)
			})
		})
	}
}
