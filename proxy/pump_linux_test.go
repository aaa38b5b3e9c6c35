package proxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/internal/openai"
	"github.com/sluice-serving/sluice/proxy/backendtest"
	"github.com/sluice-serving/sluice/proxy/route"
	"github.com/sluice-serving/sluice/proxy/socket"
)

// talk is a stream with a test at both of its ends.
type talk struct {
	t       testing.TB
	c       *cluster
	decoder *net.TCPConn // what the test writes here is the Decoder's
	client  net.Conn
	r       *bufio.Reader // of the client
	lines   *bufio.Scanner
	n       int // events so far
}

// handing gives the connections of the decode legs, after an event stream's header.
func handing(t testing.TB) (func(http.ResponseWriter, *http.Request, backendtest.Record) bool, chan *net.TCPConn) {
	conns := make(chan *net.TCPConn, 16)
	return on("d", func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		t.Cleanup(func() { conn.Close() })
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
		conns <- conn.(*net.TCPConn)
	}), conns
}

// begin begins a stream and brings it into a pump.
func begin(t *testing.T, c *cluster) *talk {
	t.Helper()
	hook, conns := handing(t)
	c.d[0].Set(func(b *backendtest.Backend) { b.Hook = hook })
	k := &talk{t: t, c: c}
	k.client, k.r = c.dial(turnBody(1, streamTurn))
	select {
	case k.decoder = <-conns:
	case <-time.After(time.Minute):
		t.Fatal("no leg")
	}
	k.event()
	resp, err := http.ReadResponse(k.r, nil)
	require.NoError(t, err)
	k.lines = bufio.NewScanner(resp.Body)
	k.lines.Buffer(nil, 1<<20)
	k.came()
	k.inPump()
	return k
}

// chunk is a chunk of the Decoder's.
func chunk(data string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(data), data) }

func eventOf(n int) string {
	return "data: " + strings.Replace(tokenEvent, "w0 ", fmt.Sprintf("w%d ", n), 1) + "\n\n"
}

// event sends the next event of the pattern.
func (k *talk) event() {
	send(k.t, k.decoder, chunk(eventOf(k.n)))
	k.n++
}

func send(t testing.TB, c io.Writer, text string) {
	t.Helper()
	_, err := io.WriteString(c, text)
	require.NoError(t, err)
}

// line is the client's next line that is not empty.
func (k *talk) line() string {
	k.t.Helper()
	for k.lines.Scan() {
		if text := k.lines.Text(); text != "" {
			return text
		}
	}
	require.NoError(k.t, k.lines.Err())
	return ""
}

// came waits until the client has the last event.
func (k *talk) came() {
	k.t.Helper()
	require.Contains(k.t, k.line(), fmt.Sprintf(`"content":"w%d "`, k.n-1))
}

// inPump sends events until the pump alone has dealt with some.
func (k *talk) inPump() {
	k.t.Helper()
	for from := k.c.proxy.pumps.passed(); k.c.proxy.pumps.passed() < from+2; {
		k.event()
		k.came()
		require.Less(k.t, k.n, 10000)
	}
}

// atRest waits until no turn is left.
func (k *talk) atRest() {
	k.t.Helper()
	require.Eventually(k.t, func() bool { return k.c.proxy.Snapshot().OpenTurns == 0 }, 30*time.Second, time.Millisecond)
}

// done ends the stream as a Decoder does.
func (k *talk) done() {
	k.t.Helper()
	send(k.t, k.decoder, chunk("data: [DONE]\n\n")+"0\r\n\r\n")
	require.Equal(k.t, "data: [DONE]", k.line())
	require.Empty(k.t, k.line())
	k.atRest()
	line := k.c.traces(1)[0]
	require.Equal(k.t, k.n, line.Legs[len(line.Legs)-1].Output)
	require.Equal(k.t, 200, line.Status)
	require.Empty(k.t, line.Legs[len(line.Legs)-1].Reason)
}

// The pump gives a stream back for what it does not know, at whatever byte it
// is cut, and takes it again.
func TestPumpGivesBack(t *testing.T) {
	c := start(t, setup{change: func(cfg *Config) { cfg.MaxConnections = 100 }})
	k := begin(t, c)
	whole := chunk(eventOf(k.n))
	for at := 1; at < len(whole); at += 7 {
		k.n++
		whole = chunk(eventOf(k.n - 1))
		send(t, k.decoder, whole[:at])
		// What was read so far is given back before the rest comes, or not: both are right.
		if at%2 == 0 {
			time.Sleep(time.Millisecond)
		}
		send(t, k.decoder, whole[at:])
		k.came()
	}
	for _, odd := range []string{
		chunk(": a comment\n\n"), chunk("event: e\n") + chunk("data: {}\n\n"), "3;x=y\r\n: c\r\n" + chunk("\n\n"), chunk("data: {\"a\":1}\n\n: b\n\n"),
		chunk("data: {\"id\":\"x\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\"},\"finish_reason\":null}]}\n\n"), chunk("\n"),
	} {
		k.inPump()
		send(t, k.decoder, odd)
		k.event()
		for want := fmt.Sprintf(`"w%d "`, k.n-1); ; {
			text := k.line()
			require.NotEmpty(t, text)
			if strings.Contains(text, want) {
				break
			}
		}
	}
	// Several at a time, and one that is cut behind them.
	k.inPump()
	next := chunk(eventOf(k.n + 2))
	send(t, k.decoder, chunk(eventOf(k.n))+chunk(eventOf(k.n+1))+next[:30])
	k.n += 2
	require.Contains(t, k.line(), fmt.Sprintf(`"w%d "`, k.n-2))
	k.came()
	send(t, k.decoder, next[30:])
	k.n++
	k.came()
	k.inPump()
	k.done()
}

// A Decoder whose connection ends is noticed in a pump: in an event, after one,
// with its last bytes, and by a reset. The client is told.
func TestDecoderGoneInAPump(t *testing.T) {
	for name, end := range map[string]func(k *talk){
		"in an event":  func(k *talk) { send(k.t, k.decoder, chunk(eventOf(k.n))[:40]); k.decoder.Close() },
		"in a size":    func(k *talk) { send(k.t, k.decoder, "4"); k.decoder.Close() },
		"after one":    func(k *talk) { k.decoder.Close() },
		"with one":     func(k *talk) { k.event(); k.decoder.Close(); k.came() },
		"by half":      func(k *talk) { _ = k.decoder.CloseWrite() },
		"by a reset":   func(k *talk) { _ = k.decoder.SetLinger(0); k.decoder.Close() },
		"no chunks":    func(k *talk) { send(k.t, k.decoder, "nonsense\r\n") },
		"last too few": func(k *talk) { send(k.t, k.decoder, "0\r\n\r\n") },
	} {
		t.Run(name, func(t *testing.T) {
			k := begin(t, start(t, setup{}))
			end(k)
			require.Contains(t, k.line(), `"error":`)
			require.Empty(t, k.line())
			k.atRest()
			line := k.c.traces(1)[0]
			require.Contains(t, line.Legs[len(line.Legs)-1].Reason, "error:")
			require.Equal(t, k.n, line.Legs[len(line.Legs)-1].Output)
		})
	}
}

// A client that goes away ends the leg in the pump: the Decoder is told.
func TestClientGoneInAPump(t *testing.T) {
	for name, end := range map[string]func(k *talk){
		"closed": func(k *talk) { k.client.Close() },
		"reset":  func(k *talk) { _ = k.client.(*net.TCPConn).SetLinger(0); k.client.Close() },
		"while events come": func(k *talk) {
			for range 50 {
				k.event()
			}
			k.client.Close()
			for range 50 {
				if _, err := io.WriteString(k.decoder, chunk(eventOf(k.n))); err != nil {
					return
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			k := begin(t, start(t, setup{}))
			end(k)
			require.NoError(t, k.decoder.SetReadDeadline(time.Now().Add(time.Minute)))
			_, err := io.Copy(io.Discard, k.decoder)
			require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "the decoder was not told")
			k.atRest()
		})
	}
}

// A Decoder that says nothing for too long is given up in a pump too.
func TestIdleInAPump(t *testing.T) {
	k := begin(t, start(t, setup{change: func(cfg *Config) { cfg.IdleTimeout = 2 * time.Second }}))
	require.Contains(t, k.line(), `"error":`)
	k.atRest()
	line := k.c.traces(1)[0]
	require.Equal(t, "error:timeout", line.Legs[len(line.Legs)-1].Reason)
	for _, d := range k.c.proxy.Snapshot().Decoders {
		for _, rank := range d.Ranks {
			require.False(t, rank.Suspect, "the end was ours")
		}
	}
}

// long is an event that fills buffers soon.
func long(n int) string {
	return "data: " + strings.Replace(tokenEvent, "w0 ", fmt.Sprintf("w%d %s", n, strings.Repeat("x", 8<<10)), 1) + "\n\n"
}

// What a slow client does not take at once its stream's goroutine writes: all
// of it comes, in order.
func TestSlowClientInAPump(t *testing.T) {
	k := begin(t, start(t, setup{}))
	require.NoError(t, k.client.(*net.TCPConn).SetReadBuffer(64<<10))
	const more = 4000
	var sent atomic.Int64
	var writing sync.WaitGroup
	writing.Go(func() {
		for i := range more {
			if _, err := io.WriteString(k.decoder, chunk(long(k.n+i))); err != nil {
				t.Error(err)
				return
			}
			sent.Add(1)
		}
		_, _ = io.WriteString(k.decoder, chunk("data: [DONE]\n\n")+"0\r\n\r\n")
	})
	for last := int64(-1); last != sent.Load(); time.Sleep(50 * time.Millisecond) { // nothing moves
		last = sent.Load()
	}
	for i := range more {
		require.Contains(t, k.line(), fmt.Sprintf(`"content":"w%d xxx`, k.n+i))
	}
	writing.Wait()
	require.Equal(t, "data: [DONE]", k.line())
	require.Empty(t, k.line())
	k.atRest()
}

// What the socket does not take of a chunk is written next, before anything else.
func TestRestOfAChunk(t *testing.T) {
	p := idleProxy(t)
	r := relayOf(t, p, &sink{header: http.Header{}})
	defer p.router.Finish(time.Now(), r.x.turn, route.Outcome{Result: route.Cancelled})
	for n := range 3 {
		ev, err := openai.NewReader(strings.NewReader(eventOf(n)), 0).Next()
		require.NoError(t, err)
		_, over := r.event(ev, false)
		require.False(t, over)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	defer client.Close()
	conn, err := socket.Listen(l).Accept()
	require.NoError(t, err)
	defer conn.Close()
	r.x.out.direct.conn = shapedConn{conn}
	k := pumping{r: r, watch: &watch{}}
	require.True(t, k.begin())
	defer k.end()
	var work socket.Work
	sent := 0
	for stay := true; stay; sent++ {
		var took bool
		took, stay = k.events([]byte(long(sent)), &work)
		require.True(t, took)
	}
	require.NotEmpty(t, k.left)
	require.Equal(t, 3+sent, r.outputs)
	require.EqualValues(t, sent, k.watch.reads.Load())
	var reading sync.WaitGroup
	reading.Go(func() {
		body := bufio.NewScanner(httputil.NewChunkedReader(client))
		body.Buffer(nil, 1<<20)
		for n := range sent {
			require.True(t, body.Scan())
			require.Contains(t, body.Text(), fmt.Sprintf(`"content":"w%d xxx`, n))
			require.True(t, body.Scan())
		}
		require.False(t, body.Scan())
		require.NoError(t, body.Err())
	})
	require.True(t, k.rest())
	require.Empty(t, k.left)
	require.True(t, k.rest())
	_, err = io.WriteString(conn, "0\r\n\r\n")
	require.NoError(t, err)
	reading.Wait()
	// What is no event of the pattern is left whole.
	for _, body := range []string{"", "data: ", "data: {}\n\n", eventOf(1)[1:], eventOf(1)[:30], strings.TrimSuffix(eventOf(1), "\n"), eventOf(1) + "data: [DONE]\n\n", eventOf(1) + "x"} {
		took, _ := k.events([]byte(body), &work)
		require.False(t, took, body)
	}
	require.Equal(t, 3+sent, r.outputs)
	// A client that is gone is found by the write of the rest.
	require.NoError(t, client.Close())
	stay := true
	for stay {
		_, stay = k.events([]byte(long(0)), &work)
	}
	require.False(t, k.rest())
	require.Error(t, r.x.out.direct.err)
}

// An event that passes the pump allocates nothing.
func TestPumpedEventsAllocateNothing(t *testing.T) {
	k := begin(t, start(t, setup{}))
	from := k.c.proxy.pumps.passed()
	buf, frame := make([]byte, 4096), []byte(chunk(eventOf(k.n)))
	k.n += 501
	conn := k.client
	require.Zero(t, int(testing.AllocsPerRun(500, func() {
		_, err := k.decoder.Write(frame)
		require.NoError(t, err)
		_, err = conn.Read(buf)
		require.NoError(t, err)
	})))
	require.Greater(t, k.c.proxy.pumps.passed(), from+400)
}

// A client that does not read is given up after its time.
func TestClientThatDoesNotReadInAPump(t *testing.T) {
	k := begin(t, start(t, setup{change: func(cfg *Config) { cfg.ClientTimeout = 200 * time.Millisecond }}))
	sent := 0
	for sent < 1<<30 {
		n, err := io.WriteString(k.decoder, chunk(long(k.n)))
		if sent += n; err != nil {
			break
		}
	}
	require.Less(t, sent, 256<<20)
	k.atRest()
}

// serving is a proxy of its own, with a stream in a pump.
func serving(t *testing.T, grace time.Duration) (k *talk, cancel context.CancelFunc, done chan error) {
	b := backendtest.New()
	require.NoError(t, b.Start(""))
	t.Cleanup(b.Stop)
	p, err := New(Config{Prefillers: []string{b.Addr}, Decoders: []Decoder{{Addr: b.Addr}}})
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done = make(chan error, 1)
	go func() { done <- p.Serve(ctx, l, grace) }()
	k = begin(t, &cluster{t: t, d: []*backendtest.Backend{b}, proxy: p, url: "http://" + l.Addr().String()})
	cancel()
	require.Eventually(t, func() bool {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err == nil {
			conn.Close()
		}
		return err != nil
	}, 10*time.Second, time.Millisecond, "the listener closes")
	return k, cancel, done
}

// At shutdown streams in pumps go on to their end, and are cut when their time is up.
func TestShutdownWithStreamsInAPump(t *testing.T) {
	k, _, done := serving(t, time.Minute)
	k.inPump()
	send(t, k.decoder, chunk("data: [DONE]\n\n")+"0\r\n\r\n")
	require.Equal(t, "data: [DONE]", k.line())
	require.NoError(t, <-done)

	k, _, done = serving(t, 50*time.Millisecond)
	require.NoError(t, <-done)
	require.NoError(t, k.client.SetReadDeadline(time.Now().Add(time.Minute)))
	_, err := io.Copy(io.Discard, k.client)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, k.decoder.SetReadDeadline(time.Now().Add(time.Minute)))
	_, err = io.Copy(io.Discard, k.decoder)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
}

// A connection that carried a stream in a pump carries other requests, also
// such as have to wait until they are written.
func TestPumpedConnectionsAreUsedAgain(t *testing.T) {
	const n = 60
	c := start(t, setup{backend: func(b *backendtest.Backend) { b.Tokens, b.PerToken = n, time.Millisecond }, change: func(cfg *Config) { cfg.MaxBody = 64 << 20 }})
	for i := range 3 {
		from := c.proxy.pumps.passed()
		r := c.post(chatPath, turnBody(1, streamTurn))
		require.Equal(t, backendtest.Text(n), textOf(t, r.body))
		require.True(t, strings.HasSuffix(r.body, "data: [DONE]\n\n"))
		require.Greater(t, c.proxy.pumps.passed(), from, i)
		require.Equal(t, 200, c.post(chatPath, turnBody(1, "")).status)
		large := strings.Replace(turnBody(1, ""), "question", strings.Repeat("q", 12<<20), 1)
		require.Equal(t, 200, c.post(chatPath, large).status)
	}
	c.d[0].Stop() // connections that wait in the pump are closed there
	require.Equal(t, 502, c.post(chatPath, turnBody(1, "")).status)
}

// The pace of streams in pumps is told to the router.
func TestPaceInAPump(t *testing.T) {
	c := start(t, setup{})
	k := begin(t, c)
	for range 40 {
		k.inPump()
	}
	found := false
	for _, d := range c.proxy.Snapshot().Decoders {
		for _, rank := range d.Ranks {
			found = found || rank.Pace > 0
		}
	}
	require.True(t, found)
	k.done()
}
