package faulty

import (
	"context"
	"crypto/rand"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sluice-serving/sluice/connector/transport"
	"github.com/sluice-serving/sluice/connector/transport/conformance"
	"github.com/sluice-serving/sluice/connector/transport/tcp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestParse(t *testing.T) {
	s, err := Parse("read#3 drop; write%10 delay 50ms\nnotify?0.5 error // half\n\n conn flip 9", 1)
	require.NoError(t, err)
	require.Equal(t, []rule{
		{call: callRead, nth: 3, act: actDrop},
		{call: callWrite, every: 10, act: actDelay, wait: 50 * time.Millisecond},
		{call: callNotify, prob: 0.5, act: actError},
		{call: callConn, act: actFlip, bytes: 9},
	}, s.rules)
	for text, want := range map[string]string{
		"jump#1 drop":     `unknown call "jump"`,
		"read#1 explode":  `unknown action "explode"`,
		"read":            "no action",
		"read#0 drop":     "names no call",
		"read#1.5 drop":   "names no call",
		"read?2 drop":     "names no call",
		"read delay":      "delay takes one argument",
		"read delay fast": "delay takes one argument",
		"read drop 3":     "drop takes no argument",
		"read flip 3":     "flip is not for read",
		"conn drop":       "drop is not for conn",
		"connect kill":    "kill is not for connect",
		"notify corrupt":  "corrupt is not for notify",
		"read repeat":     "repeat is not for read",
		"conn cut -1":     "cut takes one argument",
	} {
		_, err := Parse(text, 1)
		require.ErrorContains(t, err, want, text)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("read#3 drop; conn slow 1ms")
	f.Fuzz(func(t *testing.T, text string) {
		if s, err := Parse(text, 1); err == nil {
			for c := range calls {
				s.next(c)
			}
		}
	})
}

func TestWithoutRulesNothingChanges(t *testing.T) {
	conformance.Run(t, func(t *testing.T, n transport.Notified) transport.Transport {
		tr, err := tcp.New(tcp.Config{Notified: n})
		require.NoError(t, err)
		s, err := Parse("", 1)
		require.NoError(t, err)
		return Wrap(tr, s)
	})
}

type pair struct {
	p      transport.Peer
	script *Script
	segs   []transport.Segment
	read   transport.Capability
	write  transport.Capability
	here   transport.Host
	there  transport.Host
	mu     sync.Mutex
	msgs   []string
}

func newPair(t *testing.T, text string, wrap bool) *pair {
	t.Helper()
	x := &pair{here: make(transport.Host, 64<<10), there: make(transport.Host, 64<<10)}
	_, err := rand.Read(x.there)
	require.NoError(t, err)
	x.script, err = Parse(text, 7)
	require.NoError(t, err)
	cfg := tcp.Config{StallTimeout: 200 * time.Millisecond}
	if wrap {
		cfg.WrapConn = x.script.WrapConn
	}
	inner, err := tcp.New(cfg)
	require.NoError(t, err)
	a := Wrap(inner, x.script)
	t.Cleanup(func() { a.Close() })
	b, err := tcp.New(tcp.Config{Notified: func(_ transport.Instance, msg []byte) {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.msgs = append(x.msgs, string(msg))
	}})
	require.NoError(t, err)
	t.Cleanup(func() { b.Close() })
	da, err := a.Register(x.here, 4096)
	require.NoError(t, err)
	db, err := b.Register(x.there, 4096)
	require.NoError(t, err)
	var units []int32
	for i := range int32(16) {
		units = append(units, i)
		x.segs = append(x.segs, transport.Segment{Local: da.Region, Remote: db.Region, LocalOffset: int64(i) * 4096, RemoteOffset: int64(i) * 4096, Length: 4096})
	}
	x.read, err = b.Grant(transport.PeerReads, []transport.RegionID{db.Region}, units)
	require.NoError(t, err)
	x.write, err = b.Grant(transport.PeerWrites, []transport.RegionID{db.Region}, units)
	require.NoError(t, err)
	x.p, err = a.Connect(t.Context(), b.Address())
	require.NoError(t, err)
	return x
}

func TestActions(t *testing.T) {
	t.Run("drop", func(t *testing.T) {
		x := newPair(t, "read#2 drop", false)
		require.NoError(t, x.p.Read(t.Context(), x.read, x.segs))
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, x.p.Read(ctx, x.read, x.segs), context.DeadlineExceeded)
		require.NoError(t, x.p.Read(t.Context(), x.read, x.segs))
		require.Equal(t, []string{"read#2 drop"}, x.script.Done())
	})
	t.Run("delay", func(t *testing.T) {
		x := newPair(t, "any%2 delay 30ms", false)
		begin := time.Now()
		require.NoError(t, x.p.Read(t.Context(), x.read, x.segs))
		require.NoError(t, x.p.Write(t.Context(), x.write, x.segs))
		require.GreaterOrEqual(t, time.Since(begin), 30*time.Millisecond)
	})
	t.Run("error", func(t *testing.T) {
		x := newPair(t, "notify error", false)
		require.ErrorIs(t, x.p.Notify(t.Context(), nil), ErrInjected)
		require.Empty(t, x.msgs)
	})
	t.Run("corrupt", func(t *testing.T) {
		x := newPair(t, "read corrupt", false)
		err := x.p.Read(t.Context(), x.read, x.segs)
		require.ErrorIs(t, err, transport.ErrCorrupt)
		require.Equal(t, []int{8}, transport.FailedSegments(err, len(x.segs)))
		require.Equal(t, x.there[:8*4096], x.here[:8*4096])
		require.NotEqual(t, x.there[8*4096:9*4096], x.here[8*4096:9*4096])
	})
	t.Run("repeat", func(t *testing.T) {
		x := newPair(t, "notify#1 repeat", false)
		require.NoError(t, x.p.Notify(t.Context(), []byte("a")))
		require.NoError(t, x.p.Notify(t.Context(), []byte("b")))
		require.Equal(t, []string{"a", "a", "b"}, x.msgs)
	})
	t.Run("kill", func(t *testing.T) {
		x := newPair(t, "any#2 kill", false)
		require.NoError(t, x.p.Read(t.Context(), x.read, x.segs))
		for range 2 {
			require.ErrorIs(t, x.p.Read(t.Context(), x.read, x.segs), transport.ErrUnreachable)
		}
		require.ErrorIs(t, x.p.Notify(t.Context(), nil), transport.ErrUnreachable)
	})
	t.Run("reorder", func(t *testing.T) {
		x := newPair(t, "read#1 reorder", false)
		order := make(chan int, 1)
		go func() { _ = x.p.Read(t.Context(), x.read, x.segs); order <- 1 }()
		require.Eventually(t, func() bool { return len(x.script.Done()) == 1 }, 5*time.Second, time.Millisecond)
		require.Empty(t, order, "it waits for the next call")
		require.NoError(t, x.p.Notify(t.Context(), nil))
		require.Equal(t, 1, <-order)
	})
	t.Run("connect", func(t *testing.T) {
		s, err := Parse("connect error", 1)
		require.NoError(t, err)
		inner, err := tcp.New(tcp.Config{})
		require.NoError(t, err)
		a := Wrap(inner, s)
		defer a.Close()
		_, err = a.Connect(t.Context(), a.Address())
		require.ErrorIs(t, err, transport.ErrUnreachable)
	})
	for _, act := range []string{"flip 20000", "cut 20000", "stall 20000"} {
		t.Run("connection "+act, func(t *testing.T) {
			x := newPair(t, "conn#1 "+act, true)
			for range 3 {
				require.NoError(t, x.p.Write(t.Context(), x.write, x.segs), "repaired on another connection")
			}
			require.Equal(t, x.here, x.there)
		})
	}
}
