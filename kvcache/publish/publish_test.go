package publish

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/security/null"
	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"
	"go.uber.org/goleak"

	"github.com/sluice-serving/sluice/kvcache"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 30 * time.Second

// cached returns a cache that records events.
func cached(t *testing.T, groups ...kvcache.GroupSpec) *kvcache.Cache {
	c, err := kvcache.New(kvcache.Config{Blocks: 64, BlockSize: 4, Groups: groups, Events: kvcache.Events{Mode: kvcache.EventsOn, Seed: "0"}})
	require.NoError(t, err)
	return c
}

// events returns the events of one cached prompt of 8 tokens that begins with first.
func events(t *testing.T, c *kvcache.Cache, ns kvcache.Namespace, first kvcache.Token) []kvcache.Event {
	s, err := c.Open(ns)
	require.NoError(t, err)
	toks := []kvcache.Token{first, 2, 3, 4, 5, 6, 7, 8, 9}
	g, err := c.Allocate(s, &kvcache.Alloc{Tokens: toks, New: len(toks)})
	require.NoError(t, err)
	require.True(t, g.OK)
	require.NoError(t, c.Free(s))
	return c.TakeEvents(c.EventMark(), nil)
}

func start(t *testing.T, cfg Config) *Publisher {
	if cfg.Endpoint == "" {
		cfg.Endpoint = "tcp://127.0.0.1:0"
	}
	p, err := New(cfg)
	require.NoError(t, err)
	return p
}

func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// decoded is a batch as a subscriber reads it.
type decoded struct {
	ts     float64
	events []map[string]any
	rank   int64
}

func decode(t *testing.T, payload []byte) decoded {
	var raw []any
	d := msgpack.NewDecoder(bytes.NewReader(payload))
	d.UseLooseInterfaceDecoding(true)
	v, err := d.DecodeInterface()
	require.NoError(t, err)
	raw = v.([]any)
	require.Len(t, raw, 3)
	out := decoded{ts: raw[0].(float64), rank: raw[2].(int64)}
	for _, e := range raw[1].([]any) {
		out.events = append(out.events, e.(map[string]any))
	}
	return out
}

func TestEncoding(t *testing.T) {
	c := cached(t, kvcache.GroupSpec{}, kvcache.GroupSpec{Kind: kvcache.SlidingWindow, Window: 20})
	ns := kvcache.Namespace{Salt: "pepper", LoRA: kvcache.LoRA{ID: 7, Name: "sql"}}
	evs := events(t, c, ns, 1)
	require.Len(t, evs, 2)
	h, err := kvcache.NewHasher(kvcache.SHA256CBOR, "0", kvcache.SharedScope)
	require.NoError(t, err)
	hs := h.Chain(nil, &ns, []kvcache.Token{1, 2, 3, 4, 5, 6, 7, 8}, 4)

	b, err := newEncoder(&Config{Rank: 3}).batch(time.Unix(1700000000, 500e6), evs)
	require.NoError(t, err)
	got := decode(t, b)
	require.Equal(t, 1700000000.5, got.ts)
	require.EqualValues(t, 3, got.rank)
	require.Equal(t, map[string]any{
		"type": "BlockStored", "block_hashes": []any{u(hs[0]), u(hs[1])}, "parent_block_hash": nil,
		"token_ids": []any{i64(1), i64(2), i64(3), i64(4), i64(5), i64(6), i64(7), i64(8)}, "block_size": i64(4),
		"lora_id": i64(7), "lora_name": "sql", "medium": "GPU", "group_idx": i64(0), "kv_cache_spec_kind": "full_attention",
		"extra_keys": []any{[]any{"sql", "pepper"}, []any{"sql"}},
	}, got.events[0])
	require.Equal(t, "sliding_window", got.events[1]["kv_cache_spec_kind"])
	require.Equal(t, i64(20), got.events[1]["kv_cache_spec_sliding_window"])
	require.Equal(t, i64(1), got.events[1]["group_idx"])

	plain := events(t, c, kvcache.Namespace{}, 100)
	b, err = newEncoder(&Config{Hashes: WholeHashes}).batch(time.Unix(0, 0), plain[:1])
	require.NoError(t, err)
	e := decode(t, b).events[0]
	require.NotContains(t, e, "extra_keys")
	require.NotContains(t, e, "locality")
	require.Contains(t, e, "lora_id")
	require.Nil(t, e["lora_id"])
	require.Equal(t, string(plain[0].Hashes[0].Bytes()), e["block_hashes"].([]any)[0])

	require.NoError(t, c.Reset())
	b, err = newEncoder(&Config{Events: EventArrays}).batch(time.Unix(0, 0), append(plain[:1:1],
		append(c.TakeEvents(c.EventMark(), nil), kvcache.Event{Kind: kvcache.Removed, Hashes: hs, Medium: "CPU", Group: 2})...))
	require.NoError(t, err)
	var raw []any
	require.NoError(t, msgpack.Unmarshal(b, &raw))
	arrays := raw[1].([]any)
	require.Equal(t, "BlockStored", arrays[0].([]any)[0])
	require.Equal(t, []any{"AllBlocksCleared"}, arrays[1])
	require.Len(t, arrays[2], 5)
	require.Equal(t, "CPU", arrays[2].([]any)[2])
}

func u(h kvcache.Hash) any { return h.Uint64() }

func i64(v int) any { return int64(v) }

// client is a subscriber over the module's own handshake and our frames.
type client struct {
	conn net.Conn
	r    *bufio.Reader
}

func dial(t *testing.T, addr net.Addr, kind zmq4.SocketType) *client {
	conn, err := net.Dial("tcp", addr.String())
	require.NoError(t, err)
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	_, err = zmq4.Open(conn, null.Security(), kind, nil, false, nil)
	require.NoError(t, err)
	return &client{conn, bufio.NewReader(conn)}
}

func (c *client) send(t *testing.T, frames ...[]byte) {
	_, err := c.conn.Write(message(frames...))
	require.NoError(t, err)
}

func (c *client) recv(t *testing.T) [][]byte {
	frames, command, err := readMessage(c.r, 1<<30)
	require.NoError(t, err)
	require.False(t, command)
	return frames
}

func subscribe(t *testing.T, p *Publisher, topic string) *client {
	before := p.Stats().Subscribers
	c := dial(t, p.Addr(), zmq4.Sub)
	c.send(t, append([]byte{1}, topic...))
	await(t, "the subscription", func() bool { return p.Stats().Subscribers > before })
	return c
}

func TestPublish(t *testing.T) {
	p := start(t, Config{Topic: "kv@pod1", Replay: "tcp://127.0.0.1:0", Rank: 0, Buffer: 5})
	c := cached(t)
	sub := subscribe(t, p, "kv@")
	other := dial(t, p.Addr(), zmq4.Sub) // another topic: gets nothing
	other.send(t, []byte("\x01zz"))
	for i := range 8 {
		require.NoError(t, p.Publish(events(t, c, kvcache.Namespace{}, kvcache.Token(100+i))))
	}
	require.NoError(t, p.Publish(nil))
	for i := range 8 {
		m := sub.recv(t)
		require.Len(t, m, 3)
		require.Equal(t, "kv@pod1", string(m[0]))
		require.EqualValues(t, i, binary.BigEndian.Uint64(m[1]))
		require.EqualValues(t, 100+i, decode(t, m[2]).events[0]["token_ids"].([]any)[0])
	}
	// The buffer holds the last five: 3 to 7.
	for _, envelope := range [][][]byte{{{}}, {}} {
		re := dial(t, p.ReplayAddr(), zmq4.Dealer)
		re.send(t, append(envelope, seqBytes(0))...)
		for i := 3; i < 8; i++ {
			m := re.recv(t)[len(envelope):]
			require.Equal(t, "kv@pod1", string(m[0]))
			require.EqualValues(t, i, binary.BigEndian.Uint64(m[1]))
			require.NotEmpty(t, m[2])
		}
		end := re.recv(t)[len(envelope):]
		require.Equal(t, [][]byte{{}, {255, 255, 255, 255, 255, 255, 255, 255}, {}}, end)
		// A malformed request is ignored; the next one is answered.
		re.send(t, []byte("what?"))
		re.send(t, append(envelope, seqBytes(99))...)
		require.Equal(t, end, re.recv(t)[len(envelope):])
		re.conn.Close()
	}
	// Unsubscribing ends it, and subscriptions are counted.
	sub.send(t, []byte("\x01kv@"))
	sub.send(t, []byte("\x00kv@"))
	sub.send(t, []byte("\x00kv@"))
	await(t, "the end of the subscription", func() bool { return p.Stats().Subscribers == 0 })
	require.NoError(t, p.Close())
	require.ErrorIs(t, p.Publish(events(t, c, kvcache.Namespace{}, 500)), ErrClosed)
	require.ErrorIs(t, p.Close(), ErrClosed)
	sub.conn.Close()
	other.conn.Close()
	require.EqualValues(t, 8, p.Stats().Batches)
}

// Version 3.1 of the protocol subscribes by commands and has heartbeats.
func TestCommands(t *testing.T) {
	p := start(t, Config{})
	c := dial(t, p.Addr(), zmq4.Sub)
	_, err := c.conn.Write(command("SUBSCRIBE", nil))
	require.NoError(t, err)
	await(t, "the subscription", func() bool { return p.Stats().Subscribers == 1 })
	_, err = c.conn.Write(command("PING", []byte("\x00\x64ctx")))
	require.NoError(t, err)
	frames, isCommand, err := readMessage(c.r, 1<<30)
	require.NoError(t, err)
	require.True(t, isCommand)
	require.Equal(t, "\x04PONGctx", string(frames[0]))
	_, err = c.conn.Write(command("CANCEL", nil))
	require.NoError(t, err)
	await(t, "the end of the subscription", func() bool { return p.Stats().Subscribers == 0 })
	require.NoError(t, p.Close())
	c.conn.Close()
}

// Peers that speak something else, or nothing, hold up neither the others nor Close.
func TestStrangers(t *testing.T) {
	p := start(t, Config{Linger: 50 * time.Millisecond})
	silent, err := net.Dial("tcp", p.Addr().String())
	require.NoError(t, err)
	http, err := net.Dial("tcp", p.Addr().String())
	require.NoError(t, err)
	fmt.Fprintf(http, "GET / HTTP/1.1\r\nHost: x\r\n\r\n%s", strings.Repeat("x", 100))
	liar := dial(t, p.Addr(), zmq4.Sub)
	_, err = liar.conn.Write(append([]byte{frameLong}, seqBytes(1<<60)...))
	require.NoError(t, err)
	_, _, err = readMessage(liar.r, 1<<30)
	require.Error(t, err, "a frame of 2^60 bytes ends the connection")
	sub := subscribe(t, p, "")
	require.NoError(t, p.Publish(events(t, cached(t), kvcache.Namespace{}, 1)))
	require.Len(t, sub.recv(t), 3)
	began := time.Now()
	require.NoError(t, p.Close())
	require.Less(t, time.Since(began), handshakeTimeout/2)
	for _, c := range []net.Conn{silent, http, liar.conn, sub.conn} {
		c.Close()
	}
}

// A subscriber that does not read loses messages, sees it by the numbers, and
// holds up nobody; it fills the gap from the replay.
func TestSlowSubscriber(t *testing.T) {
	p := start(t, Config{HighWater: 2, Replay: "tcp://127.0.0.1:0", Linger: 50 * time.Millisecond})
	slow, quick := subscribe(t, p, ""), subscribe(t, p, "")
	big := kvcache.Event{Kind: kvcache.Stored, Tokens: slices.Repeat([]kvcache.Token{1 << 30}, 1<<16), Medium: "GPU"}
	const n = 40
	for i := range n {
		require.NoError(t, p.Publish([]kvcache.Event{big}))
		require.EqualValues(t, i, binary.BigEndian.Uint64(quick.recv(t)[1]))
	}
	require.Positive(t, p.Stats().Dropped)
	slow.conn.Close()
	re := dial(t, p.ReplayAddr(), zmq4.Dealer)
	re.send(t, nil, seqBytes(n-3))
	for i := n - 3; i < n; i++ {
		require.EqualValues(t, i, binary.BigEndian.Uint64(re.recv(t)[2]))
	}
	re.recv(t)
	// A replay that nobody reads does not hold up Close.
	re.send(t, nil, seqBytes(0))
	require.NoError(t, p.Close())
	re.conn.Close()
	quick.conn.Close()
}

func TestQueueFull(t *testing.T) {
	p := start(t, Config{Queue: 1})
	sub := subscribe(t, p, "")
	slow := []kvcache.Event{{Kind: kvcache.Stored, Tokens: make([]kvcache.Token, 1<<16)}} // to encode
	var sent []uint64
	dropped := uint64(0)
	for seq := uint64(0); dropped < 3; seq++ {
		switch err := p.Publish(slow); err {
		case nil:
			sent = append(sent, seq)
		default:
			require.ErrorIs(t, err, ErrQueueFull)
			dropped++
		}
	}
	await(t, "an empty queue", func() bool { return p.Stats().Batches == uint64(len(sent)) })
	require.NoError(t, p.Publish(slow), "there is room again")
	sent = append(sent, uint64(len(sent))+dropped)
	for _, seq := range sent {
		require.Equal(t, seq, binary.BigEndian.Uint64(sub.recv(t)[1]))
	}
	require.NoError(t, p.Close())
	require.Equal(t, dropped, p.Stats().Overflow)
	require.EqualValues(t, len(sent), p.Stats().Batches)
	require.Zero(t, p.Stats().Dropped)
	require.NoError(t, sub.conn.Close())
}

func TestConfig(t *testing.T) {
	for _, c := range []Config{
		{Rank: -1}, {Queue: -1}, {HighWater: -1}, {Buffer: -1}, {Linger: -1}, {Hashes: 9}, {Events: 9},
		{Endpoint: "udp://*:1"}, {Endpoint: "tcp://*"}, {Endpoint: "tcp://*:x"}, {Endpoint: "tcp://*:65535", Rank: 1}, {Replay: "nonsense"},
	} {
		_, err := New(c)
		require.Error(t, err, "%+v", c)
	}
	c := Config{}
	c.setDefaults()
	c.Now = nil
	require.Equal(t, Config{Endpoint: "tcp://*:5557", Queue: 100_000, HighWater: 100_000, Buffer: 10_000, Linger: time.Second, Log: c.Log}, c, "where and as vLLM publishes")
	a, err := address("tcp://*:5557", 3)
	require.NoError(t, err)
	require.Equal(t, ":5560", a)
	a, err = address("tcp://[::1]:5557", 0)
	require.NoError(t, err)
	require.Equal(t, "[::1]:5557", a)

	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	_, err = New(Config{Endpoint: "tcp://" + l.Addr().String()})
	require.Error(t, err, "a port in use")
	_, err = New(Config{Endpoint: "tcp://127.0.0.1:0", Replay: "tcp://" + l.Addr().String()})
	require.Error(t, err)
}

func FuzzReadMessage(f *testing.F) {
	f.Add(message([]byte("a"), nil, bytes.Repeat([]byte("x"), 300)))
	f.Add(command("SUBSCRIBE", []byte("t")))
	f.Fuzz(func(t *testing.T, b []byte) {
		frames, isCommand, err := readMessage(bufio.NewReader(bytes.NewReader(b)), maxFrame)
		if err != nil {
			return
		}
		if isCommand {
			_, _, _ = parseCommand(frames[0])
			return
		}
		if m := message(frames...); !bytes.HasPrefix(b, m) && len(m) > len(b) {
			t.Fatalf("read %q from %q", frames, b)
		}
	})
}

// buildSubscriber compiles the subscriber against the system's libzmq.
func buildSubscriber(t *testing.T) string {
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler: install one to test against libzmq")
	}
	bin := filepath.Join(t.TempDir(), "subscriber")
	if out, err := exec.Command(cc, "-O1", "-o", bin, "testdata/subscriber.c", "-lzmq").CombinedOutput(); err != nil {
		if os.Getenv("SLUICE_NEED_LIBZMQ") != "" {
			t.Fatalf("%v: %s", err, out)
		}
		t.Skipf("libzmq is not installed (Debian: libzmq3-dev): %v", err)
	}
	return bin
}

// lines collects what a subscriber process prints.
type lines struct {
	cmd *exec.Cmd
	mu  sync.Mutex
	all []string
	end chan struct{}
}

func run(t *testing.T, bin string, args ...string) *lines {
	l := &lines{cmd: exec.Command(bin, args...), end: make(chan struct{})}
	out, err := l.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, l.cmd.Start())
	go func() {
		defer close(l.end)
		sc := bufio.NewScanner(out)
		sc.Buffer(nil, 64<<20)
		for sc.Scan() {
			l.mu.Lock()
			l.all = append(l.all, sc.Text())
			l.mu.Unlock()
		}
	}()
	return l
}

func (l *lines) stop() {
	_ = l.cmd.Process.Kill()
	<-l.end
	_ = l.cmd.Wait()
}

func (l *lines) seqs(t *testing.T, at int) []uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []uint64
	for _, line := range l.all {
		f := strings.Fields(line)
		b, err := hex.DecodeString(f[at])
		require.NoError(t, err)
		out = append(out, binary.BigEndian.Uint64(b))
	}
	return out
}

// A real libzmq subscriber gets every batch, through the loss of its connection
// and a restart of the publisher, and fills the gaps from the replay.
func TestLibzmq(t *testing.T) {
	bin := buildSubscriber(t)
	c := cached(t)
	cfg := Config{Topic: "kv", Replay: "tcp://127.0.0.1:0"}
	p := start(t, cfg)
	sub := run(t, bin, "sub", "tcp://"+p.Addr().String(), "kv")
	defer sub.stop()
	await(t, "the subscriber", func() bool { return p.Stats().Subscribers == 1 })
	first := kvcache.Token(1000)
	publish := func(n int) {
		for range n {
			first++
			require.NoError(t, p.Publish(events(t, c, kvcache.Namespace{}, first)))
		}
	}
	publish(10)
	await(t, "ten batches", func() bool { return len(sub.seqs(t, 1)) == 10 })
	sub.mu.Lock()
	f := strings.Fields(sub.all[9])
	sub.mu.Unlock()
	require.Len(t, f, 3)
	require.Equal(t, hex.EncodeToString([]byte("kv")), f[0])
	payload, err := hex.DecodeString(f[2])
	require.NoError(t, err)
	require.EqualValues(t, 1010, decode(t, payload).events[0]["token_ids"].([]any)[0])

	// The connection breaks; libzmq connects again. What was published meanwhile is a gap.
	p.mu.Lock()
	for q := range p.live {
		q.conn.Close()
	}
	p.mu.Unlock()
	await(t, "the loss", func() bool { return p.Stats().Subscribers == 0 })
	publish(5)
	await(t, "the subscriber's return", func() bool { return p.Stats().Subscribers == 1 })
	publish(5)
	await(t, "the batches behind the gap", func() bool { return sub.seqs(t, 1)[len(sub.seqs(t, 1))-1] == 19 })
	got := map[uint64]bool{}
	for _, s := range sub.seqs(t, 1) {
		got[s] = true
	}
	require.Less(t, len(got), 20, "a gap was wanted")
	for _, mode := range []string{"req", "old"} {
		replay := run(t, bin, mode, "tcp://"+p.ReplayAddr().String(), "10")
		<-replay.end
		require.NoError(t, replay.cmd.Wait())
		at := 2
		if mode == "old" {
			at = 1
		}
		seqs := replay.seqs(t, at)
		require.Equal(t, []uint64{10, 11, 12, 13, 14, 15, 16, 17, 18, 19, endOfReplay}, seqs)
		for _, s := range seqs[:10] {
			got[s] = true
		}
	}
	require.Len(t, got, 20, "live and replayed batches together")

	// A restart on the same port: the numbers begin anew.
	cfg.Endpoint = "tcp://" + p.Addr().String()
	cfg.Replay = ""
	require.NoError(t, p.Close())
	p = start(t, cfg)
	await(t, "the subscriber after the restart", func() bool { return p.Stats().Subscribers == 1 })
	have := len(sub.seqs(t, 1))
	publish(3)
	await(t, "the batches after the restart", func() bool { return len(sub.seqs(t, 1)) == have+3 })
	require.Equal(t, []uint64{0, 1, 2}, sub.seqs(t, 1)[have:])
	require.NoError(t, p.Close())
}
