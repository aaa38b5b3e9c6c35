package publish

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/go-zeromq/zmq4"
	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/kvcache"
)

// greets is a greeting with some of it changed.
func greets(change func(g []byte)) []byte {
	g := greeting()
	change(g)
	return g
}

// ready is what a peer with that socket says behind its greeting.
func ready(kind string) []byte {
	return command("READY", property(property(nil, "Identity", "x"), "socket-type", kind))
}

func TestHandshake(t *testing.T) {
	for _, c := range []struct {
		name string
		ours socket
		says []byte
		want string // empty: it is taken
	}{
		{"a subscriber", pubSocket, append(greeting(), ready("SUB")...), ""},
		{"one of a later version", pubSocket, append(greets(func(g []byte) { g[11] = 1 }), ready("XSUB")...), ""},
		{"one that calls itself a server", pubSocket, append(greets(func(g []byte) { g[32] = 1 }), ready("SUB")...), ""},
		{"a client of replays", routerSocket, append(greeting(), ready("REQ")...), ""},
		{"nothing", pubSocket, nil, "EOF"},
		{"half a greeting", pubSocket, greeting()[:40], "unexpected EOF"},
		{"another protocol", pubSocket, bytes.Repeat([]byte("GET / "), 20), "does not begin as ZMTP does"},
		{"an old version", pubSocket, greets(func(g []byte) { g[10] = 2 }), "speaks ZMTP 2"},
		{"another mechanism", pubSocket, greets(func(g []byte) { copy(g[12:], "CURVE") }), `wants the mechanism "CURVE"`},
		{"an error", pubSocket, append(greeting(), command("ERROR", []byte("\x02no"))...), `says "ERROR"`},
		{"a message", pubSocket, append(greeting(), message([]byte("hello"))...), "a message in place of READY"},
		{"another publisher", pubSocket, append(greeting(), ready("PUB")...), `socket is "PUB", ours PUB`},
		{"a subscriber at the replay", routerSocket, append(greeting(), ready("SUB")...), `socket is "SUB", ours ROUTER`},
		{"no socket", pubSocket, append(greeting(), command("READY", nil)...), `socket is "", ours PUB`},
		{"a name without an end", pubSocket, append(greeting(), command("READY", []byte{200, 'x'})...), "a property of 2 bytes"},
		{"a value without an end", pubSocket, append(greeting(), command("READY", append([]byte("\x01x"), 255, 255, 255, 255))...), `property "x" has 4294967295 bytes, 0 are there`},
		{"an empty command", pubSocket, append(greeting(), frameCommand, 0), "malformed frame"},
		{"a command of 2^62 bytes", pubSocket, append(greeting(), binary.BigEndian.AppendUint64([]byte{frameCommand | frameLong}, 1<<62)...), "malformed frame"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var said bytes.Buffer
			err := handshake(bufio.NewReader(bytes.NewReader(c.says)), &said, c.ours)
			if c.want != "" {
				require.ErrorContains(t, err, c.want)
				return
			}
			require.NoError(t, err)
			require.Equal(t, greeting(), said.Next(greetingSize))
			require.Equal(t, command("READY", property(property(nil, "Socket-Type", string(c.ours)), "Identity", "")), said.Bytes())
		})
	}
}

func FuzzHandshake(f *testing.F) {
	f.Add(append(greeting(), ready("SUB")...))
	f.Add(append(greeting(), command("READY", []byte("\x0bSocket-Type\x00\x00\x00\x06DEALER"))...))
	f.Add(greets(func(g []byte) { copy(g[12:], "PLAIN") }))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, ours := range []socket{pubSocket, routerSocket} {
			if err := handshake(bufio.NewReader(bytes.NewReader(b)), io.Discard, ours); err != nil {
				continue
			}
			if len(b) <= greetingSize || b[0] != 0xff || b[10] < 3 {
				t.Fatalf("%q was taken", b)
			}
		}
	})
}

// Peers that mean ill cost the publisher little, whatever they claim, and the
// others nothing.
func TestHostilePeers(t *testing.T) {
	p := start(t, Config{})
	sub := subscribe(t, p, "")
	for name, says := range map[string][]byte{
		"a command of 2^62 bytes": append(greeting(), binary.BigEndian.AppendUint64([]byte{frameCommand | frameLong}, 1<<62)...),
		"a command of 2^40 bytes": append(greeting(), binary.BigEndian.AppendUint64([]byte{frameCommand | frameLong}, 1<<40)...),
		"a message without end":   append(append(greeting(), ready("SUB")...), bytes.Repeat([]byte{frameMore, 0}, 100)...),
		"topics without end": append(append(greeting(), ready("SUB")...), func() (all []byte) {
			for i := range maxTopics + 1 {
				all = append(all, message([]byte(fmt.Sprintf("\x01%d", i)))...)
			}
			return all
		}()...),
		"a topic of a megabyte": append(append(greeting(), ready("SUB")...), message([]byte("\x01"+strings.Repeat("x", 1<<20)))...),
	} {
		conn, err := net.Dial("tcp", p.Addr().String())
		require.NoError(t, err)
		_, _ = conn.Write(says) // it may be cut off before
		_, err = io.Copy(io.Discard, conn)
		t.Log(name, err)
		require.NoError(t, conn.Close())
	}
	await(t, "their end", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.live) == 1
	})
	require.NoError(t, p.Publish(events(t, cached(t), kvcache.Namespace{}, 1)))
	require.Len(t, sub.recv(t), 3)
	require.NoError(t, p.Close())
	require.NoError(t, sub.conn.Close())
}

// A stranger who asks for signs of life and reads none has little kept for it: of
// what a PING carries the 16 bytes come back that the protocol allows.
func TestPingsCostLittle(t *testing.T) {
	p := start(t, Config{})
	c := dial(t, p.Addr(), zmq4.Sub)
	context := strings.Repeat("x", 16)
	for _, more := range []string{"", "y", strings.Repeat("y", maxFrame/2)} {
		_, err := c.conn.Write(command("PING", []byte("\x00\x64"+context+more)))
		require.NoError(t, err)
		frames, isCommand, err := readMessage(c.r, 1<<30)
		require.NoError(t, err)
		require.True(t, isCommand)
		require.Equal(t, "\x04PONG"+context, string(frames[0]))
	}
	require.NoError(t, c.conn.Close())
	require.NoError(t, p.Close())
}

// Without a replay no batch is kept for one.
func TestNothingIsKeptWithoutReplay(t *testing.T) {
	for _, replay := range []string{"", "tcp://127.0.0.1:0"} {
		p := start(t, Config{Replay: replay})
		require.NoError(t, p.Publish(events(t, cached(t), kvcache.Namespace{}, 1)))
		require.NoError(t, p.Close())
		require.EqualValues(t, 1, p.Stats().Batches)
		require.Equal(t, replay != "", len(p.buffer) > 0)
	}
}
