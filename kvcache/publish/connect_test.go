package publish

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os/exec"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/security/null"
	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/kvcache"
)

// taken accepts one publisher and subscribes to everything.
func taken(t *testing.T, l net.Listener) *client {
	conn, err := l.Accept()
	require.NoError(t, err)
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	_, err = zmq4.Open(conn, null.Security(), zmq4.Sub, nil, true, nil)
	require.NoError(t, err)
	c := &client{conn, bufio.NewReader(conn)}
	c.send(t, []byte{1})
	return c
}

// A publisher that connects waits for its subscriber, finds it again after a
// loss, sends what is queued when it closes, and gives a replay as ever.
func TestConnect(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := l.Addr().(*net.TCPAddr)
	require.NoError(t, l.Close())
	p := start(t, Config{Attach: Connect, Endpoint: fmt.Sprintf("tcp://127.0.0.1:%d", addr.Port-2), Rank: 2, Topic: "kv", Replay: "tcp://127.0.0.1:0"})
	require.Nil(t, p.Addr())
	cache := cached(t)
	require.NoError(t, p.Publish(events(t, cache, kvcache.Namespace{}, 100)), "nobody is there yet")
	await(t, "the batch that nobody gets", func() bool { return p.Stats().Batches == 1 })
	l, err = net.Listen("tcp", addr.String())
	require.NoError(t, err)
	defer l.Close()
	for turn := range 2 {
		sub := taken(t, l)
		await(t, "the subscription", func() bool { return p.Stats().Subscribers == 1 })
		require.NoError(t, p.Publish(events(t, cache, kvcache.Namespace{}, kvcache.Token(200+turn))))
		m := sub.recv(t)
		require.Equal(t, "kv", string(m[0]))
		require.EqualValues(t, 1+turn, binary.BigEndian.Uint64(m[1]))
		require.EqualValues(t, 2, decode(t, m[2]).rank)
		require.NoError(t, sub.conn.Close())
		await(t, "the loss", func() bool { return p.Stats().Subscribers == 0 })
	}
	re := dial(t, p.ReplayAddr(), zmq4.Dealer)
	re.send(t, nil, seqBytes(0))
	for seq := range 3 {
		require.EqualValues(t, seq, binary.BigEndian.Uint64(re.recv(t)[2]))
	}
	require.NoError(t, re.conn.Close())
	sub := taken(t, l)
	await(t, "the subscription", func() bool { return p.Stats().Subscribers == 1 })
	require.NoError(t, p.Publish(events(t, cache, kvcache.Namespace{}, 300)))
	require.NoError(t, p.Close())
	require.EqualValues(t, 3, binary.BigEndian.Uint64(sub.recv(t)[1]), "Close lingers")
	require.NoError(t, sub.conn.Close())
}

// Close does not wait for a subscriber that never comes, nor for one that says nothing.
func TestConnectToNobody(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := start(t, Config{Attach: Connect, Endpoint: "tcp://" + l.Addr().String(), Linger: time.Millisecond})
	conn, err := l.Accept()
	require.NoError(t, err)
	require.NoError(t, p.Close())
	require.NoError(t, conn.Close())
	require.NoError(t, l.Close())
	p = start(t, Config{Attach: Connect, Endpoint: "tcp://" + l.Addr().String()})
	require.NoError(t, p.Close())

	for _, c := range []Config{
		{Attach: 9}, {Attach: Connect}, {Attach: Connect, Endpoint: "tcp://*:5557"}, {Attach: Connect, Endpoint: "tcp://127.0.0.1:0"}, {Attach: Connect, Endpoint: "tcp://x"},
	} {
		_, err := New(c)
		require.Error(t, err, "%+v", c)
	}
}

// logged takes what is logged, a line each.
type logged chan string

func (l logged) Write(b []byte) (int, error) {
	select {
	case l <- string(b):
	default: // nobody reads on
	}
	return len(b), nil
}

// Why there is no connection is said once, also where somebody listens who is no
// subscriber, and again when one was lost.
func TestConnectSaysWhyNot(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	log := make(logged, 9)
	p := start(t, Config{Attach: Connect, Endpoint: "tcp://" + l.Addr().String(), Log: slog.New(slog.NewTextHandler(log, nil))})
	for range 2 {
		conn, err := l.Accept()
		require.NoError(t, err)
		_, err = conn.Write(append(greeting(), ready("PUB")...))
		require.NoError(t, err)
		_, _ = io.Copy(io.Discard, conn) // until it hangs up
		require.NoError(t, conn.Close())
	}
	require.Contains(t, <-log, `the peer's socket is \"PUB\", ours PUB`)
	require.NoError(t, taken(t, l).conn.Close())
	require.NotContains(t, <-log, "<nil>")
	require.NoError(t, p.Close())
	require.NoError(t, l.Close())
}

// A SUB socket of libzmq that listens reads what a publisher sends that connects to it.
func TestPythonSubscriberListens(t *testing.T) {
	interpreter := python(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	endpoint := "tcp://" + l.Addr().String()
	require.NoError(t, l.Close())
	p := start(t, Config{Attach: Connect, Endpoint: endpoint, Topic: "kv@pod1"})
	cmd := exec.CommandContext(t.Context(), interpreter, "testdata/subscriber.py", "listen", endpoint, "kv@", "2")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	await(t, "the subscriber", func() bool { return p.Stats().Subscribers == 1 })
	cache := cached(t)
	for i := range 2 {
		require.NoError(t, p.Publish(events(t, cache, kvcache.Namespace{}, kvcache.Token(100+i))))
	}
	lines := bufio.NewScanner(out)
	for seq := range 2 {
		require.True(t, lines.Scan())
		require.Contains(t, lines.Text(), fmt.Sprintf(`"topic": "kv@pod1", "seq": %d,`, seq))
	}
	require.NoError(t, cmd.Wait())
	require.NoError(t, p.Close())
}
