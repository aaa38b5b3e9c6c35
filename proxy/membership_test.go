package proxy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/proxy/backendtest"
)

// scripted is a Membership that tells sets from a channel and fails on nil.
type scripted chan *Members

func (s scripted) Watch(ctx context.Context, changed func(Members)) error {
	for {
		select {
		case m := <-s:
			if m == nil {
				return io.ErrUnexpectedEOF
			}
			changed(*m)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Instances follow the membership; one that fails, or tells nonsense, changes
// nothing and is followed again.
func TestMembership(t *testing.T) {
	sets := scripted(make(chan *Members))
	c := start(t, setup{decoders: 2, change: func(cfg *Config) {
		cfg.Prefillers, cfg.Decoders, cfg.Membership, cfg.WatchEvery = nil, nil, sets, time.Millisecond
		quickJoin(cfg)
	}})
	require.Equal(t, 503, c.post(chatPath, turnBody(1, "")).status)
	decoders := func() (names []string) {
		for _, d := range c.proxy.Snapshot().Decoders {
			names = append(names, d.Name)
		}
		return names
	}
	sets <- &Members{Prefillers: []string{c.p[0].Addr}, Decoders: []MemberNumber{{Addr: c.d[0].Addr, Ranks: 2}}}
	require.Eventually(t, func() bool { return len(decoders()) == 1 && len(c.proxy.Snapshot().Prefillers) == 1 }, 10*time.Second, time.Millisecond)
	require.Equal(t, 200, c.post(chatPath, turnBody(1, "")).status)
	sets <- nil
	sets <- &Members{Prefillers: []string{"nonsense"}}
	sets <- nil
	require.Equal(t, []string{c.d[0].Addr}, decoders())
	sets <- &Members{Prefillers: []string{c.p[0].Addr}, Decoders: []MemberNumber{{Addr: c.d[1].Addr}}}
	require.Eventually(t, func() bool { return slices.Equal(decoders(), []string{c.d[1].Addr}) }, 10*time.Second, time.Millisecond)
	require.Equal(t, 200, c.post(chatPath, turnBody(1, "")).status)
}

// Names are looked up again; when one leads elsewhere the idle connections go,
// so that the next request follows it.
func TestNamesAreFollowed(t *testing.T) {
	c := start(t, setup{change: func(cfg *Config) { cfg.ResolveEvery = time.Hour }})
	_, port, err := net.SplitHostPort(c.d[0].Addr)
	require.NoError(t, err)
	var log bytes.Buffer
	looked := 0
	p, err := New(Config{Prefillers: []string{c.p[0].Addr}, Decoders: []Decoder{{Addr: "localhost:" + port}}, ResolveEvery: time.Hour, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	require.NoError(t, err)
	defer func() { require.NoError(t, p.Close()) }()
	p.lookup = func(_ context.Context, host string) ([]string, error) {
		looked++
		switch looked {
		case 1, 2:
			return []string{"10.0.0.2", "10.0.0.1"}, nil
		case 3:
			return nil, errors.New("no answer")
		case 4:
			return []string{"10.0.0.1", "10.0.0.2"}, nil
		}
		return []string{"10.0.0.3"}, nil
	}
	var from []string // where the Decoder's requests came from
	c.d[0].Hook = func(_ http.ResponseWriter, r *http.Request, _ backendtest.Record) bool {
		from = append(from, r.RemoteAddr)
		return false
	}
	turn := func() {
		t.Helper()
		w := httptest.NewRecorder()
		p.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodPost, chatPath, strings.NewReader(turnBody(1, ""))))
		require.Equal(t, 200, w.Code)
	}
	known := map[string][]string{}
	turn()
	for range 4 {
		p.lookNames(t.Context(), known)
	}
	require.Empty(t, log.String(), "the order, or a failure, is no change")
	turn()
	require.Equal(t, from[0], from[1], "the connection is kept")
	p.lookNames(t.Context(), known)
	turn()
	require.NotEqual(t, from[1], from[2], "a new connection goes where the name leads")
	require.Contains(t, log.String(), "a name leads elsewhere")
	require.Contains(t, log.String(), "10.0.0.3")
}
