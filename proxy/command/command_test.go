package command

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sluice-serving/sluice/proxy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var instances = []string{"--prefiller-hosts", "127.0.0.1", "--prefiller-ports", "1", "--decoder-hosts", "127.0.0.1", "--decoder-ports", "2"}

// call runs the command until it ends or the context does.
func call(ctx context.Context, options Options, args ...string) (string, error) {
	cmd := New(options)
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(io.Discard)
	cmd.SetArgs(append([]string{"--port", "0"}, args...))
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	err := cmd.ExecuteContext(ctx)
	return out.String(), err
}

func TestCheck(t *testing.T) {
	path := filepath.Join(t.TempDir(), "proxy.yaml")
	require.NoError(t, os.WriteFile(path, []byte(`
append_prefill: true
prefillers: ["127.0.0.1:1"]
decoders: [{backend: vllm-ascend, instances: ["127.0.0.1:2"]}]
sessions: {store: "nats://user:secret@127.0.0.1:4222/s", store_timeout: 50ms, sources: [previous_response_id, history]}
membership: etcd://127.0.0.1:2379/i
`), 0o600))
	text, err := call(t.Context(), Options{}, "--config", path, "--check", "--session-ttl", "10m")
	require.NoError(t, err)
	for _, want := range []string{"nats://user:xxxxx@127.0.0.1:4222/s", "store_timeout: 50ms", "etcd://127.0.0.1:2379/i", "ttl: 10m0s", "- history", "append_prefill_miss"} {
		require.Contains(t, text, want)
	}
	require.NotContains(t, text, "secret")
}

type members struct{}

func (members) Watch(ctx context.Context, changed func(proxy.Members)) error {
	changed(proxy.Members{Prefillers: []string{"127.0.0.1:1"}, Decoders: []proxy.MemberNumber{{Addr: "127.0.0.1:2"}}})
	<-ctx.Done()
	return ctx.Err()
}

type closing struct{ closed *int }

func (c closing) Close() error { *c.closed++; return nil }

func TestStoresAndMemberships(t *testing.T) {
	for _, c := range []struct{ flag, value, want string }{
		{"--session-store", "nats://h:1/s", `session store: this binary cannot open "nats" (none in this binary`},
		{"--membership", "etcd://h:1/s", `membership: this binary cannot open "etcd"`},
		{"--session-store", "://secret", "session store: the URL cannot be read"},
		{"--session-store", "", ""},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		_, err := call(ctx, Options{}, append([]string{c.flag, c.value}, instances...)...)
		cancel()
		if c.want == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, c.want)
		require.NotContains(t, err.Error(), "secret")
	}
	closed := 0
	var ttl time.Duration
	options := Options{
		Stores: map[string]OpenStore{
			"bad": func(context.Context, *url.URL, time.Duration) (proxy.Store, io.Closer, error) {
				return nil, nil, errors.New("no such server")
			},
			"good": func(_ context.Context, _ *url.URL, d time.Duration) (proxy.Store, io.Closer, error) {
				ttl = d
				return nothing{}, closing{&closed}, nil
			},
		},
		Memberships: map[string]OpenMembership{"good": func(context.Context, *url.URL) (proxy.Membership, io.Closer, error) {
			return members{}, closing{&closed}, nil
		}},
	}
	_, err := call(t.Context(), options, append([]string{"--session-store", "bad://u:secret@h/s"}, instances...)...)
	require.ErrorContains(t, err, "session store bad://u:xxxxx@h/s: no such server")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	out, err := call(ctx, options, "--session-store", "good://h/s", "--membership", "good://h/m", "--session-ttl", "7m")
	require.NoError(t, err, "instances may come from the membership alone")
	require.Contains(t, out, "listening on http://")
	require.Equal(t, 2, closed)
	require.Equal(t, 7*time.Minute, ttl)
}

type nothing struct{}

func (nothing) Get(context.Context, string) ([]byte, bool, error)            { return nil, false, nil }
func (nothing) Create(context.Context, string, []byte) ([]byte, bool, error) { return nil, true, nil }
func (nothing) Put(context.Context, string, []byte) error                    { return nil }
func (nothing) Delete(context.Context, string) error                         { return nil }
