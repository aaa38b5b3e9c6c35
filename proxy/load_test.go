package proxy

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/internal/openai"
	"github.com/sluice-serving/sluice/proxy/backendtest"
	"github.com/sluice-serving/sluice/proxy/route"
)

// dial opens a connection to the proxy and sends a request on it.
func (c *cluster) dial(body string, header ...string) (net.Conn, *bufio.Reader) {
	c.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(c.url, "http://"))
	require.NoError(c.t, err)
	c.t.Cleanup(func() { conn.Close() })
	_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n%s\r\n%s", chatPath, len(body), strings.Join(header, ""), body)
	require.NoError(c.t, err)
	return conn, bufio.NewReader(conn)
}

// A client that does not read is given up after its time; the Decoder is told,
// and what was reserved is given back. Meanwhile the proxy holds little of what
// the Decoder sends: the Decoder has to wait.
func TestClientThatDoesNotRead(t *testing.T) {
	c := start(t, setup{change: func(cfg *Config) { cfg.ClientTimeout = 200 * time.Millisecond }})
	left := make(chan int, 1)
	c.d[0].Hook = on("d", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		event := []byte(`data: {"id":"x","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"` + strings.Repeat("a", 64<<10) + `"},"finish_reason":null}]}` + "\n\n")
		sent := 0
		for r.Context().Err() == nil && sent < 1<<30 {
			n, err := w.Write(event)
			if sent += n; err != nil {
				break
			}
		}
		left <- sent
	})
	c.dial(turnBody(1, streamTurn))
	select {
	case sent := <-left:
		require.Less(t, sent, 256<<20)
	case <-time.After(time.Minute):
		t.Fatal("the decoder was never told")
	}
	require.Eventually(t, func() bool { return c.proxy.Snapshot().OpenTurns == 0 }, 10*time.Second, time.Millisecond)
}

// At shutdown no new request is taken and streams go on to their end.
func TestShutdownFinishesStreams(t *testing.T) {
	b := backendtest.New()
	require.NoError(t, b.Start(""))
	defer b.Stop()
	more, came := make(chan struct{}), make(chan struct{})
	b.Hook = on("d", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, "data: %s\n\n", tokenEvent)
		_ = http.NewResponseController(w).Flush()
		close(came)
		<-more
		fmt.Fprintf(w, "data: %s\n\ndata: [DONE]\n\n", tokenEvent)
	})
	p, err := New(Config{Prefillers: []string{b.Addr}, Decoders: []Decoder{{Addr: b.Addr}}})
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Serve(ctx, l, time.Minute) }()
	c := &cluster{t: t, url: "http://" + l.Addr().String()}
	_, r := c.dial(turnBody(1, streamTurn), "Connection: close\r\n")
	<-came
	cancel()
	require.Eventually(t, func() bool {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err == nil {
			conn.Close()
		}
		return err != nil
	}, 10*time.Second, time.Millisecond, "the listener closes")
	close(more)
	answer, err := io.ReadAll(r)
	require.NoError(t, err)
	require.Contains(t, string(answer), "[DONE]")
	require.NoError(t, <-done)
}

// Decoders and Prefillers are killed and come back while turns, streams and
// cancellations go on. Every answer is whole, or says that it is not; nothing
// stays reserved and no goroutine is left.
func TestInstancesDieUnderLoad(t *testing.T) {
	c := start(t, setup{prefillers: 2, decoders: 3, ranks: 2, backend: func(b *backendtest.Backend) { b.Tokens, b.PerToken = 8, time.Millisecond },
		change: func(cfg *Config) { cfg.Breaker.Cooldown = 10 * time.Millisecond }})
	stop := make(chan struct{})
	var killer sync.WaitGroup
	killer.Go(func() {
		r := rand.New(rand.NewPCG(1, 2))
		all := append(append([]*backendtest.Backend{}, c.p...), c.d...)
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
			}
			b := all[r.IntN(len(all))]
			addr := b.Addr
			b.Stop()
			time.Sleep(5 * time.Millisecond)
			b.Set(func(b *backendtest.Backend) { b.Engine = fmt.Sprint("life-", n) })
			for b.Start(addr) != nil { // the port may still be held by a closing connection
				time.Sleep(time.Millisecond)
			}
		}
	})
	counts := make([]map[string]int, 16)
	var clients sync.WaitGroup
	for i := range counts {
		counts[i] = map[string]int{}
		clients.Go(func() {
			r := rand.New(rand.NewPCG(3, uint64(i)))
			for n := range 40 {
				body := turnBody(1+n%4, "")
				if stream := r.IntN(3) > 0; stream {
					body = turnBody(1+n%4, streamTurn)
				}
				ctx, cancel := context.WithCancel(context.Background())
				if r.IntN(5) == 0 {
					time.AfterFunc(time.Duration(r.IntN(15))*time.Millisecond, cancel)
				}
				req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+chatPath, strings.NewReader(body))
				if err != nil {
					t.Error(err)
				}
				req.Header.Set("X-Session-ID", fmt.Sprint("s", i, "-", n/4))
				counts[i][c.outcome(req)]++
				cancel()
			}
		})
	}
	clients.Wait()
	close(stop)
	killer.Wait()
	sum := map[string]int{}
	for _, m := range counts {
		for k, n := range m {
			sum[k] += n
		}
	}
	require.Zero(t, sum["broken"], "%v", sum)
	require.Positive(t, sum["whole"], "%v", sum)
}

// outcome says how a request went: whole, told (an error in OpenAI's shape, as
// status or event), cancelled, or broken: neither an end nor an error.
func (c *cluster) outcome(req *http.Request) string {
	resp, err := c.http.Do(req)
	if err != nil {
		if req.Context().Err() != nil {
			return "cancelled"
		}
		return "broken"
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	switch {
	case req.Context().Err() != nil:
		return "cancelled"
	case bytes.Contains(body, []byte(`"error":`)):
		return "told"
	case err != nil:
		return "broken"
	case strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream"):
		if bytes.HasSuffix(body, []byte("data: [DONE]\n\n")) {
			return "whole"
		}
		return "broken"
	}
	return "whole"
}

// The body that is kept for a fallback is given up at the first output.
func TestBodyIsDroppedAtFirstOutput(t *testing.T) {
	c := start(t, setup{change: func(cfg *Config) { cfg.MaxBody = 64 << 20 }})
	h := newHang()
	hook := h.serve(tokenEvent)
	c.d[0].Hook = on("d", hook)
	heap := func() uint64 {
		for _, b := range []*backendtest.Backend{c.p[0], c.d[0]} {
			b.Forget()
		}
		var m runtime.MemStats
		for range 3 {
			runtime.GC()
		}
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	const size = 24 << 20
	conn, err := net.Dial("tcp", strings.TrimPrefix(c.url, "http://"))
	require.NoError(t, err)
	defer conn.Close()
	head, tail := `{"model":"m","stream":true,"messages":[{"role":"user","content":"`, `"}]}`
	_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", chatPath, len(head)+size+len(tail), head)
	require.NoError(t, err)
	part := bytes.Repeat([]byte("a"), 1<<20)
	for range size >> 20 {
		_, err = conn.Write(part)
		require.NoError(t, err)
	}
	_, err = io.WriteString(conn, tail)
	require.NoError(t, err)
	line := ""
	for r := bufio.NewReader(conn); !strings.Contains(line, "w0 "); {
		line, err = r.ReadString('\n')
		require.NoError(t, err)
	}
	wait(t, h.came)
	// The fakes still hold what they read in variables of their own until their
	// handlers end, so the Decoder's copy may remain; the proxy's must not.
	require.Less(t, heap(), before+size+size/2)
	conn.Close()
	wait(t, h.left)
}

// sink is a client that takes everything.
type sink struct{ header http.Header }

func (d *sink) Header() http.Header              { return d.header }
func (d *sink) Write(p []byte) (int, error)      { return len(p), nil }
func (d *sink) WriteHeader(int)                  {}
func (d *sink) SetWriteDeadline(time.Time) error { return nil }
func (d *sink) FlushError() error                { return nil }

// An event of a stream goes through without an allocation: the first of its
// kind, those that are like it, and those that are written to the connection.
func TestEventsAllocateNothing(t *testing.T) {
	p := idleProxy(t)
	r := relayOf(t, p, &sink{header: http.Header{}})
	events := openai.NewReader(strings.NewReader("data: "+tokenEvent+"\n\n"), 0)
	ev, err := events.Next()
	require.NoError(t, err)
	relayed := func() {
		if _, over := r.event(ev, false); over {
			t.Fatal("the stream ended")
		}
	}
	parsed := func() {
		r.pattern.forget()
		relayed()
	}
	relayed()
	for _, run := range []func(){relayed, parsed} {
		require.Zero(t, testing.AllocsPerRun(1000, run))
	}
	r.x.out.direct.conn = devNull{}
	require.Zero(t, testing.AllocsPerRun(1000, relayed))
	p.router.Finish(time.Now(), r.x.turn, route.Outcome{Result: route.Cancelled})
}

// devNull is a connection that takes everything.
type devNull struct{ net.Conn }

func (devNull) Write(p []byte) (int, error) { return len(p), nil }

// The first event of a chat may repeat a prompt of any length before there is output. Many
// events without output are too much all the same.
func TestLongBeforeAnyOutput(t *testing.T) {
	c := start(t, setup{})
	ids := strings.Repeat("123456,", 3*maxHeld/7) + "7"
	opening := `data: {"id":"x","prompt_token_ids":[` + ids + `],"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}` + "\n\n"
	open := func(times int) {
		c.d[0].Set(func(b *backendtest.Backend) {
			b.Hook = on("d", func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				_, _ = io.WriteString(w, strings.Repeat(opening, times)+"data: "+tokenEvent+"\n\ndata: [DONE]\n\n")
			})
		})
	}
	open(1)
	r := c.post(chatPath, turnBody(1, `,"return_token_ids":true`+streamTurn))
	require.Equal(t, 200, r.status)
	require.Contains(t, r.body, `"prompt_token_ids":[`+ids+`]`)
	require.Contains(t, r.body, "[DONE]")
	open(2)
	r = c.post(chatPath, turnBody(1, streamTurn))
	require.Equal(t, 502, r.status)
	require.Contains(t, r.errorOf(t)["message"], "too much before any output")
}
