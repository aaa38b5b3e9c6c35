package command

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
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
	options := Options{Stores: map[string]OpenStore{"nats": nil}, Memberships: map[string]OpenMembership{"etcd": nil}}
	text, err := call(t.Context(), options, "--config", path, "--check", "--session-ttl", "10m")
	require.NoError(t, err, "nothing is opened")
	for _, want := range []string{"nats://user:xxxxx@127.0.0.1:4222/s", "store_timeout: 50ms", "etcd://127.0.0.1:2379/i", "ttl: 10m0s", "- history", "append_prefill_miss"} {
		require.Contains(t, text, want)
	}
	require.NotContains(t, text, "secret")
	_, err = call(t.Context(), Options{}, "--config", path, "--check")
	require.ErrorContains(t, err, `session store: this binary cannot open "nats"`)
	require.ErrorContains(t, err, `membership: this binary cannot open "etcd"`)
	require.NotContains(t, err.Error(), "secret")
}

// What a flag does not take is an error that names it and the value, with and
// without --check.
func TestValuesThatFlagsDoNotTake(t *testing.T) {
	dir := t.TempDir()
	broken := filepath.Join(dir, "broken.yaml")
	require.NoError(t, os.WriteFile(broken, []byte("prefill: x"), 0o600))
	bad := map[string]string{
		"--admin-token-file=" + dir + "/none": "the token file " + dir + "/none is of no use without an admin listener",
		"--instances-file=" + dir + "/none":   "instances file: open " + dir + "/none: no such file",
		"--instances-file=" + broken:          "instances file " + broken,
		"--metaserver-url=nosuch":             `metaserver "nosuch"`,
		"--scrape-interval=0s":                "--scrape-interval is 0s, must be",
		"--max-suffix-tokens=-5":              "--max-suffix-tokens is -5, must be -1 for the preset's",
		"--max-append-tokens-in-flight=-2":    "--max-append-tokens-in-flight is -2, must be",
		"--max-local-attempts=-2":             "--max-local-attempts is -2, must be",
		"--max-connections=-1":                "max connections is -1, must not be negative",
		"--tenant-queue=-3":                   "queue per tenant is -3, must not be negative",
		"--tpot-target=-1s":                   "tpot target is -1s, must not be negative",
		"--retry-delay=nan":                   "--retry-delay is NaN, must be above 0",
		"--retry-delay=inf":                   "--retry-delay is +Inf, must be above 0",
		"--waiting-retry-interval=1e300":      "--waiting-retry-interval is 1e+300, must be above 0",
		"--decoder-dp-size=0":                 `decoder 127.0.0.1:2: "0" ranks`,
	}
	for _, name := range above0 {
		zero := "0"
		if strings.HasSuffix(name, "timeout") || strings.HasSuffix(name, "ttl") {
			zero = "0s"
		}
		bad["--"+name+"="+zero] = "--" + name + " is " + zero + ", must be above 0"
		bad["--"+name+"=-1"+zero[1:]] = "--" + name + " is -1" + zero[1:] + ", must be above 0"
	}
	for flag, want := range bad {
		for _, more := range [][]string{{"--check"}, nil} {
			_, err := call(t.Context(), Options{}, append(append([]string{flag}, more...), instances...)...)
			require.ErrorContains(t, err, want, flag)
		}
	}
}

// Every flag with a number is checked here or with the whole configuration.
func TestNumbersAreChecked(t *testing.T) {
	elsewhere := []string{"port", "scrape-interval", "max-connections", "tenant-concurrency", "tenant-queue", "tpot-target"}
	New(Options{}).Flags().VisitAll(func(f *pflag.Flag) {
		switch f.Value.Type() {
		case "int", "int64", "float64", "duration":
			require.Contains(t, slices.Concat(above0, boundOrPreset, elsewhere), f.Name)
		}
	})
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
