package proxy

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/proxy/backendtest"
	"github.com/sluice-serving/sluice/proxy/route"
)

// A rank whose live streams are slower than the target gets no attempts until
// they are faster again.
func TestPaceTarget(t *testing.T) {
	b, err := Preset("sluice")
	require.NoError(t, err)
	b.Guard = route.Guard{PaceTarget: 8 * time.Millisecond}
	c := start(t, setup{change: func(c *Config) { c.Backend = b }})
	c.post(chatPath, turnBody(1, ""), "X-Session-ID", "s")
	var pace atomic.Int64
	pace.Store(int64(30 * time.Millisecond))
	c.d[0].Set(func(b *backendtest.Backend) {
		b.Hook = func(w http.ResponseWriter, r *http.Request, rec backendtest.Record) bool {
			if !strings.Contains(string(rec.Body), "live stream") {
				return false
			}
			w.Header().Set("Content-Type", "text/event-stream")
			for range 1000 {
				fmt.Fprintf(w, "data: %s\n\n", tokenEvent)
				_ = http.NewResponseController(w).Flush()
				select {
				case <-r.Context().Done():
					return true
				case <-time.After(time.Duration(pace.Load())):
				}
			}
			return true
		}
	})
	stop := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() { c.postThen(stop, turnBody(1, streamTurn+`,"x":"live stream"`)) })
	slow := func() bool { return c.proxy.Snapshot().Decoders[0].Ranks[0].Pace > 8*time.Millisecond }
	require.Eventually(t, slow, 5*time.Second, time.Millisecond)
	c.forget()
	c.post(chatPath, turnBody(2, ""), "X-Session-ID", "s")
	require.Equal(t, "busy", c.traces(2)[1].Reason)
	pace.Store(int64(500 * time.Microsecond))
	require.Eventually(t, func() bool { return !slow() }, 5*time.Second, time.Millisecond)
	c.post(chatPath, turnBody(2, ""), "X-Session-ID", "s")
	require.Equal(t, "hit", c.traces(3)[2].Reason)
	stop <- struct{}{}
	all.Wait()
}
