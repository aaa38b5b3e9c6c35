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
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// O-16: a proxy that is killed in the middle of its streams and started again
// sends the next turn of every session to its owner, without a store: what it
// has forgotten the hash knows, and that there were turns before the body says.
func TestProxyKilledInTraffic(t *testing.T) {
	const sessions = 40
	c := start(t, setup{decoders: 3, ranks: 2, change: hashPlacement})
	for i := range sessions {
		require.Equal(t, 200, c.post(chatPath, turnBody(1, ""), "X-Session-ID", fmt.Sprint("s", i)).status)
	}
	before := c.owners()
	require.Len(t, before, sessions)

	cfg := c.proxy.cfg
	cfg.TraceFile = ""
	serve := func(addr string) (kill func(), at string) {
		p, err := New(cfg)
		require.NoError(t, err)
		l, err := net.Listen("tcp", addr)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- p.Serve(ctx, l, 0) }() // no grace: what is under way is cut
		return func() { cancel(); require.NoError(t, <-done) }, l.Addr().String()
	}
	kill, addr := serve("127.0.0.1:0")
	h := newHang()
	c.d[0].Hook, c.d[1].Hook, c.d[2].Hook = on("local", h.serve(tokenEvent)), on("local", h.serve(tokenEvent)), on("local", h.serve(tokenEvent))
	var cut atomic.Int64
	var clients sync.WaitGroup
	for i := range 8 {
		clients.Go(func() {
			req, err := http.NewRequest(http.MethodPost, "http://"+addr+chatPath, strings.NewReader(turnBody(2, streamTurn)))
			if err != nil {
				t.Error(err)
				return
			}
			req.Header.Set("X-Session-ID", fmt.Sprint("s", i))
			resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
			if err != nil {
				cut.Add(1)
				return
			}
			raw, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if err != nil || !strings.Contains(string(raw), "[DONE]") {
				cut.Add(1)
			}
		})
	}
	for range 8 {
		wait(t, h.came)
	}
	kill()
	clients.Wait()
	for range 8 {
		wait(t, h.left) // every Decoder is told
	}
	require.EqualValues(t, 8, cut.Load(), "no client takes a part for the whole")

	for _, d := range c.d {
		d.Hook = nil
	}
	c.forget()
	kill, _ = serve(addr)
	defer kill()
	restarted := c.on("http://" + addr)
	for i := range sessions {
		require.Equal(t, 200, restarted.post(chatPath, turnBody(2, ""), "X-Session-ID", fmt.Sprint("s", i)).status)
	}
	c.wantLegs(0, sessions, 0)
	require.Equal(t, before, c.owners())
}

// No more connections are served than are allowed; one that waits is served
// when another ends.
func TestConnectionsAreBounded(t *testing.T) {
	c := start(t, setup{change: func(cfg *Config) { cfg.MaxConnections = 2 }})
	h := newHang()
	c.d[0].Hook = on("d", h.serve(tokenEvent))
	dial := func() net.Conn {
		conn, err := net.Dial("tcp", strings.TrimPrefix(c.url, "http://"))
		require.NoError(t, err)
		t.Cleanup(func() { conn.Close() })
		body := turnBody(1, streamTurn)
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", chatPath, len(body), body)
		return conn
	}
	first := dial()
	wait(t, h.came)
	dial()
	wait(t, h.came)
	third := dial()
	require.NoError(t, third.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
	_, err := third.Read(make([]byte, 1))
	require.ErrorContains(t, err, "timeout")
	require.Equal(t, 2, c.proxy.Snapshot().OpenTurns)
	require.NoError(t, first.Close())
	wait(t, h.left)
	wait(t, h.came)
	require.NoError(t, third.SetReadDeadline(time.Now().Add(10*time.Second)))
	status, err := bufio.NewReader(third).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "HTTP/1.1 200 OK\r\n", status)
}

// The first turn of a sub-agent goes where its parent's history is, and stays there.
func TestSubAgentsFollowTheirParent(t *testing.T) {
	c := start(t, setup{decoders: 4, ranks: 2, backend: resident})
	c.post(chatPath, turnBody(1, ""), "X-Session-ID", "parent")
	at, rank := c.serving()
	for i := range 5 {
		child := fmt.Sprint("child", i)
		for turn := range 2 {
			c.forget()
			require.Equal(t, 200, c.post(chatPath, turnBody(turn+1, ""), "X-Session-ID", child, "X-Parent-Session-ID", "parent").status)
			c.wantLegs(0, 1, 0)
			a, k := c.serving()
			require.Equal(t, [2]int{at, rank}, [2]int{a, k})
		}
	}
	// A parent that nobody knows, or another tenant's, is none.
	for _, headers := range [][]string{{"X-Parent-Session-ID", "nobody"}, {"X-Parent-Session-ID", "parent", "Authorization", "Bearer other"}} {
		c.forget()
		require.Equal(t, 200, c.post(chatPath, turnBody(1, ""), append(headers, "X-Session-ID", fmt.Sprint(headers))...).status)
		c.wantLegs(1, 0, 1)
	}
}
