package proxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/proxy/backendtest"
)

// on answers the given leg with h and leaves the others to the fake.
func on(leg string, h http.HandlerFunc) func(http.ResponseWriter, *http.Request, backendtest.Record) bool {
	return func(w http.ResponseWriter, r *http.Request, rec backendtest.Record) bool {
		if rec.Leg != leg {
			return false
		}
		h(w, r)
		return true
	}
}

func answering(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// streaming sends the events and then cuts the connection.
func streaming(events ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for _, e := range events {
			_, _ = io.WriteString(w, "data: "+e+"\n\n")
			_ = http.NewResponseController(w).Flush()
		}
		panic(http.ErrAbortHandler)
	}
}

func quiet(b *backendtest.Backend) {}

const (
	roleEvent   = `{"id":"x","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}`
	tokenEvent  = `{"id":"x","choices":[{"index":0,"delta":{"content":"w0 "},"finish_reason":null}]}`
	streamTurn  = `,"stream":true,"stream_options":{"include_usage":true}`
	errorObject = `{"error":{"message":"boom","type":"BadRequestError","param":null,"code":400}}`
)

// Every status of a Decoder or Prefiller reaches the client as a status that it
// can act on, in the OpenAI shape, and never as an empty 200.
func TestBackendErrors(t *testing.T) {
	for _, c := range []struct {
		name   string
		leg    string
		h      http.HandlerFunc
		status int
	}{
		{"decoder 400", "d", answering(400, errorObject), 400},
		{"decoder 404 plain", "d", answering(404, `not here`), 404},
		{"decoder 422 detail", "d", answering(422, `{"detail":"bad thing"}`), 422},
		{"decoder 429", "d", answering(429, `{"object":"error","message":"slow","type":"RateLimit","code":429}`), 429},
		{"decoder 401", "d", answering(401, `{}`), 502},
		{"decoder 500", "d", answering(500, errorObject), 502},
		{"decoder 503", "d", answering(503, errorObject), 503},
		{"decoder 302", "d", answering(302, ``), 502},
		{"decoder empty 200", "d", answering(200, ``), 502},
		{"decoder cut before output", "d", streaming(roleEvent), 502},
		{"decoder error event first", "d", streaming(`{"error":{"message":"boom","type":"BadRequestError","code":400}}`), 400},
		{"decoder server error event first", "d", streaming(`{"error":{"message":"boom","type":"InternalServerError","code":500}}`), 502},
		{"prefiller 400", "p", answering(400, errorObject), 400},
		{"prefiller 500", "p", answering(500, errorObject), 502},
		{"prefiller 503", "p", answering(503, `x`), 503},
		{"prefiller nonsense", "p", answering(200, `<html>`), 502},
		{"prefiller empty", "p", answering(200, ``), 502},
	} {
		t.Run(c.name, func(t *testing.T) {
			cl := start(t, setup{backend: func(b *backendtest.Backend) { b.Hook = on(c.leg, c.h) }})
			r := cl.post(chatPath, turnBody(1, streamTurn), "X-Session-ID", "s")
			require.Equal(t, c.status, r.status, r.body)
			require.Equal(t, "application/json", r.header.Get("Content-Type"))
			e := r.errorOf(t)
			if strings.Contains(c.name, "400") {
				require.Equal(t, "boom", e["message"])
			}
			if c.status == 503 {
				require.NotEmpty(t, r.header.Get("Retry-After"))
			}
			require.NotContains(t, r.body, "127.0.0.1", "addresses stay inside")
			p, local, d := cl.legs()
			require.LessOrEqual(t, p+d, 2)
			require.Zero(t, local)
		})
	}
}

// F-02: a Decoder that refuses connections is a 502; with a second one the
// turn goes there with the same Prefiller's KV.
func TestRefusedConnection(t *testing.T) {
	c := start(t, setup{})
	c.d[0].Stop()
	r := c.post(chatPath, turnBody(1, ""))
	require.Equal(t, 502, r.status)
	r.errorOf(t)

	c = start(t, setup{decoders: 2, prefillers: 2})
	c.d[0].Stop()
	for range 4 {
		require.Equal(t, 200, c.post(chatPath, turnBody(1, "")).status)
	}
	c.wantLegs(4, 0, 4)

	c = start(t, setup{prefillers: 2})
	c.p[1].Stop()
	for range 4 {
		require.Equal(t, 200, c.post(chatPath, turnBody(1, "")).status)
	}

	c = start(t, setup{})
	c.p[0].Stop()
	require.Equal(t, 502, c.post(chatPath, turnBody(1, "")).status)
	c.wantLegs(0, 0, 0)
}

// A local attempt that fails without output is followed by P/D, exactly once;
// a 400 is the client's.
func TestLocalAttemptFails(t *testing.T) {
	for _, c := range []struct {
		name   string
		h      http.HandlerFunc
		status int
		reason string
		route  string
	}{
		{"500", answering(500, errorObject), 200, "error:status_500", "fallback"},
		{"503", answering(503, errorObject), 200, "error:status_503", "fallback"},
		{"cut", streaming(), 200, "error:connection", "fallback"},
		{"cut after role", streaming(roleEvent), 200, "error:connection", "fallback"},
		{"error event", streaming(`{"error":{"message":"x","type":"InternalServerError","code":500}}`), 200, "error:event", "fallback"},
		{"empty", answering(200, ""), 200, "error:empty", "fallback"},
		{"cache threshold", streaming(`{"id":"x","choices":[{"index":0,"delta":{"content":""},"finish_reason":"cache_threshold"}]}`, "[DONE]"), 200, "refused:cache_threshold", "fallback"},
		{"busy", answering(412, `{"error":{"type":"append_prefill_miss","code":"busy","message":"m"}}`), 200, "refused:busy", "fallback"},
		{"odd reason", answering(412, `{"error":{"type":"append_prefill_miss","code":"zzz","message":"m"}}`), 200, "refused:other", "fallback"},
		{"400", answering(400, errorObject), 400, "owner", "local"},
		{"404", answering(404, errorObject), 404, "owner", "local"},
		{"412 of another kind", answering(412, errorObject), 502, "owner", "local"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cl := start(t, setup{})
			cl.post(chatPath, turnBody(1, streamTurn), "X-Session-ID", "s")
			cl.forget()
			cl.d[0].Set(func(b *backendtest.Backend) { b.Hook = on("local", c.h) })
			r := cl.post(chatPath, turnBody(2, streamTurn), "X-Session-ID", "s")
			require.Equal(t, c.status, r.status, r.body)
			line := cl.traces(2)[1]
			require.Equal(t, c.route, line.Route)
			require.Equal(t, c.reason, line.Reason)
			if c.route == "fallback" {
				cl.wantLegs(1, 1, 1)
				require.Equal(t, backendtest.Text(4), textOf(t, r.body))
			} else {
				cl.wantLegs(0, 1, 0)
			}
		})
	}
}

// textOf joins the contents of a chat stream.
func textOf(t *testing.T, stream string) string {
	t.Helper()
	var text strings.Builder
	for part := range strings.SplitSeq(stream, "\"content\":\"") {
		if before, _, ok := strings.Cut(part, "\""); ok && strings.HasPrefix(before, "w") {
			text.WriteString(before)
		}
	}
	return text.String()
}

// R21: after output nothing is tried again; the client keeps what it got and
// is told by an error event, without the end marker.
func TestNoReplayAfterOutput(t *testing.T) {
	for _, leg := range []string{"local", "d"} {
		for name, h := range map[string]http.HandlerFunc{
			"cut":         streaming(roleEvent, tokenEvent),
			"error event": streaming(tokenEvent, `{"error":{"message":"boom","type":"InternalServerError","code":500}}`),
			"recomputed":  streaming(tokenEvent, `{"id":"x","choices":[{"index":0,"delta":{"content":""},"finish_reason":"stop","stop_reason":"recomputed"}]}`, "[DONE]"),
		} {
			t.Run(leg+" "+name, func(t *testing.T) {
				c := start(t, setup{decoders: 2, prefillers: 2})
				if leg == "local" {
					c.post(chatPath, turnBody(1, ""), "X-Session-ID", "s")
				}
				for _, b := range c.d {
					b.Set(func(b *backendtest.Backend) { b.Hook = on(leg, h) })
				}
				c.forget()
				r := c.post(chatPath, turnBody(2, streamTurn), "X-Session-ID", "s")
				require.Equal(t, 200, r.status)
				require.Equal(t, 1, strings.Count(r.body, "w0 "))
				require.Contains(t, r.body, `data: {"error":`)
				require.NotContains(t, r.body, "[DONE]")
				if leg == "local" {
					c.wantLegs(0, 1, 0)
				} else {
					c.wantLegs(1, 0, 1)
				}
			})
		}
	}
}

// Without output a recomputed answer is only a round that did not work.
func TestRecomputedWithoutOutput(t *testing.T) {
	c := start(t, setup{decoders: 2})
	var once sync.Once
	for _, b := range c.d {
		b.Hook = func(w http.ResponseWriter, r *http.Request, rec backendtest.Record) (mine bool) {
			if rec.Leg == "d" {
				once.Do(func() {
					mine = true
					answering(200, `{"id":"x","choices":[{"index":0,"message":{"content":""},"finish_reason":"stop","stop_reason":"recomputed"}]}`)(w, r)
				})
			}
			return mine
		}
	}
	require.Equal(t, 200, c.post(chatPath, turnBody(1, "")).status)
	c.wantLegs(2, 0, 2)
	require.Equal(t, "error:recomputed", c.traces(1)[0].Legs[1].Reason)
}

// hang holds a request until its client goes away and reports both.
type hang struct{ came, left chan struct{} }

func newHang() *hang { return &hang{make(chan struct{}, 16), make(chan struct{}, 16)} }

func (h *hang) serve(prelude ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if len(prelude) > 0 {
			w.Header().Set("Content-Type", "text/event-stream")
			for _, e := range prelude {
				_, _ = io.WriteString(w, "data: "+e+"\n\n")
			}
			_ = http.NewResponseController(w).Flush()
		}
		h.came <- struct{}{}
		<-r.Context().Done()
		h.left <- struct{}{}
	}
}

func wait(t *testing.T, ch chan struct{}) {
	t.Helper()
	select {
	case <-ch:
	case <-time.After(10 * time.Second):
		t.Fatal("nothing happened")
	}
}

// postThen sends a request and cancels it when ready is signalled.
func (c *cluster) postThen(ready chan struct{}, body string, headers ...string) {
	c.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+chatPath, strings.NewReader(body))
	require.NoError(c.t, err)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		resp, err := c.http.Do(req)
		if err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
	}()
	wait(c.t, ready)
	cancel()
	<-done
}

// X-1, F-01, O-11: a client that goes away cancels the leg under way, whichever
// it is, and every score is released once.
func TestClientGoesAway(t *testing.T) {
	for _, leg := range []string{"local", "p", "d"} {
		for _, prelude := range [][]string{nil, {roleEvent}, {tokenEvent}} {
			if leg == "p" && prelude != nil {
				continue
			}
			t.Run(fmt.Sprint(leg, len(prelude), prelude != nil && prelude[0] == tokenEvent), func(t *testing.T) {
				c := start(t, setup{})
				c.post(chatPath, turnBody(1, ""), "X-Session-ID", "known")
				h := newHang()
				for _, b := range []*backendtest.Backend{c.p[0], c.d[0]} {
					b.Set(func(b *backendtest.Backend) { b.Hook = on(leg, h.serve(prelude...)) })
				}
				session := "new"
				if leg == "local" {
					session = "known"
				}
				c.postThen(h.came, turnBody(2, streamTurn), "X-Session-ID", session)
				wait(t, h.left)
				require.Eventually(t, func() bool { return c.proxy.Snapshot().OpenTurns == 0 }, 5*time.Second, time.Millisecond)
				line := c.traces(2)[1]
				require.Equal(t, leg, line.Legs[len(line.Legs)-1].Leg)
				// Nothing was tried after the client had gone, and the session's
				// owner is still known.
				c.d[0].Set(func(b *backendtest.Backend) { b.Hook = nil })
				c.p[0].Set(func(b *backendtest.Backend) { b.Hook = nil })
				c.forget()
				require.Equal(t, 200, c.post(chatPath, turnBody(2, ""), "X-Session-ID", "known").status)
				c.wantLegs(0, 1, 0)
			})
		}
	}
}

// F-01: after cancelled streams the load is even again.
func TestLoadAfterCancels(t *testing.T) {
	c := start(t, setup{decoders: 2})
	h := newHang()
	for _, b := range c.d {
		b.Hook = on("d", h.serve(tokenEvent))
	}
	burst := func(n int) {
		together := make(chan struct{})
		var all sync.WaitGroup
		for range n {
			all.Go(func() { c.postThen(together, turnBody(1, streamTurn)) })
		}
		for range n {
			wait(t, h.came)
		}
		for range n {
			together <- struct{}{}
		}
		all.Wait()
		for range n {
			wait(t, h.left)
		}
		require.Eventually(t, func() bool { return c.proxy.Snapshot().OpenTurns == 0 }, 5*time.Second, time.Millisecond)
	}
	burst(5)
	c.forget()
	burst(4)
	require.Len(t, c.d[0].Records(), 2)
	require.Len(t, c.d[1].Records(), 2)
}

// The first bytes are held back: a client sees nothing of an attempt that only
// announced a role.
func TestHeldBack(t *testing.T) {
	c := start(t, setup{})
	c.post(chatPath, turnBody(1, ""), "X-Session-ID", "s")
	release := make(chan struct{})
	c.d[0].Set(func(b *backendtest.Backend) {
		b.Hook = on("local", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, ": comment\n\ndata: "+roleEvent+"\n\n")
			_ = http.NewResponseController(w).Flush()
			<-release
			_, _ = io.WriteString(w, "data: "+tokenEvent+"\n\n")
			_ = http.NewResponseController(w).Flush()
			<-release
			_, _ = io.WriteString(w, "data: [DONE]\n\n")
		})
	})
	host := strings.TrimPrefix(c.url, "http://")
	conn, err := net.Dial("tcp", host)
	require.NoError(t, err)
	defer conn.Close()
	body := turnBody(2, streamTurn)
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nX-Session-ID: s\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", chatPath, len(body), body)
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(200*time.Millisecond)))
	var one [1]byte
	n, err := conn.Read(one[:])
	require.Zero(t, n)
	require.ErrorContains(t, err, "timeout")
	release <- struct{}{}
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(10*time.Second)))
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	defer resp.Body.Close()
	buf := make([]byte, 4096)
	n, err = resp.Body.Read(buf)
	require.NoError(t, err)
	first := string(buf[:n])
	require.Contains(t, first, ": comment\n\n")
	require.Contains(t, first, `"role":"assistant"`)
	release <- struct{}{}
	rest, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Contains(t, first+string(rest), "w0 ")
	require.Contains(t, first+string(rest), "[DONE]")
}

// O-6: after a Decoder's restart at most one of its sessions pays a miss.
func TestDecoderRestart(t *testing.T) {
	c := start(t, setup{})
	for i := range 10 {
		c.post(chatPath, turnBody(1, ""), "X-Session-ID", fmt.Sprint(i))
	}
	addr := c.d[0].Addr
	c.d[0].Stop()
	fresh := backendtest.New()
	fresh.Engine = "engine-2"
	require.NoError(t, fresh.Start(addr))
	t.Cleanup(fresh.Stop)
	c.d[0] = fresh
	c.forget()
	for i := range 10 {
		require.Equal(t, 200, c.post(chatPath, turnBody(2, ""), "X-Session-ID", fmt.Sprint(i)).status)
	}
	_, local, d := c.legs()
	require.LessOrEqual(t, local, 1)
	require.Equal(t, 10, d)
	c.forget()
	c.post(chatPath, turnBody(3, ""), "X-Session-ID", "3")
	c.wantLegs(0, 1, 0)
}

// Failures count for the kind of leg that failed, and 4xx for none.
func TestBreakerOfEachLeg(t *testing.T) {
	c := start(t, setup{decoders: 1, prefillers: 1, change: func(cfg *Config) { cfg.MaxRetries = 1 }})
	c.post(chatPath, turnBody(1, ""), "X-Session-ID", "s")
	states := func() string {
		s := c.proxy.Snapshot()
		return fmt.Sprint(s.Decoders[0].Breakers[0], " ", s.Decoders[0].Breakers[1], " ", s.Prefillers[0].Breaker)
	}
	fail := func(status int, legs ...string) {
		for _, b := range []*backendtest.Backend{c.p[0], c.d[0]} {
			b.Set(func(b *backendtest.Backend) {
				b.Hook = func(w http.ResponseWriter, r *http.Request, rec backendtest.Record) bool {
					for _, leg := range legs {
						if rec.Leg == leg {
							answering(status, errorObject)(w, r)
							return true
						}
					}
					return false
				}
			})
		}
	}
	for _, leg := range []string{"local", "d", "p"} {
		fail(429, leg)
		for range 5 {
			session := "s"
			if leg != "local" {
				session = "other " + leg
			}
			require.Equal(t, 429, c.post(chatPath, turnBody(2, ""), "X-Session-ID", session).status, leg)
		}
	}
	require.Equal(t, "closed closed closed", states())
	fail(500, "local")
	for range 3 {
		require.Equal(t, 200, c.post(chatPath, turnBody(2, ""), "X-Session-ID", "s").status)
	}
	require.Equal(t, "open closed closed", states())
	c.forget()
	require.Equal(t, 200, c.post(chatPath, turnBody(2, ""), "X-Session-ID", "s").status)
	c.wantLegs(1, 0, 1) // the owner answers in P/D, and is not attempted
	fail(500, "local", "d")
	for range 3 {
		require.Equal(t, 502, c.post(chatPath, turnBody(2, "")).status)
	}
	require.Equal(t, "open open closed", states())
	fail(500, "p")
	for range 3 {
		require.Equal(t, 502, c.post(chatPath, turnBody(2, "")).status)
	}
	require.Equal(t, "open open open", states())
}

// R10 to R15, R36, R37: the proxy asks backends nothing at the start and has no
// route beyond the stated ones.
func TestNoProbing(t *testing.T) {
	c := start(t, setup{backend: quiet})
	time.Sleep(20 * time.Millisecond)
	require.Empty(t, c.p[0].Records())
	require.Empty(t, c.d[0].Records())
	for _, path := range []string{"/v1/capabilities", "/capabilities", "/", "/v1/metaserver", "/v1/chat"} {
		r := c.post(path, "{}")
		require.Equal(t, 404, r.status, path)
		r.errorOf(t)
	}
}
