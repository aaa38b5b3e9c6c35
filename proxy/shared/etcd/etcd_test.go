package etcd

import (
	"context"
	"net"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/sluice-serving/sluice/proxy"
	"github.com/sluice-serving/sluice/proxy/shared/storetest"
)

// server is a real etcd.
type server struct {
	client string
	args   []string
	cmd    *exec.Cmd
}

func (s *server) start(t *testing.T) {
	t.Helper()
	s.cmd = exec.Command(s.args[0], s.args[1:]...)
	require.NoError(t, s.cmd.Start())
}

func (s *server) stop() {
	if s.cmd != nil {
		_ = s.cmd.Process.Kill() // it may have ended
		_ = s.cmd.Wait()
		s.cmd = nil
	}
}

// launch starts an etcd; the test is skipped on a machine without one.
func launch(t *testing.T) (*server, *clientv3.Client) {
	t.Helper()
	path, err := exec.LookPath("etcd")
	if err != nil {
		t.Skip("there is no etcd here: install the Debian package etcd-server")
	}
	free := func() string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer l.Close()
		return "http://" + l.Addr().String()
	}
	s := &server{client: free()}
	peer := free()
	s.args = []string{path, "--data-dir", filepath.Join(t.TempDir(), "etcd"), "--listen-client-urls", s.client, "--advertise-client-urls", s.client,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default=" + peer, "--log-level", "error"}
	s.start(t)
	t.Cleanup(s.stop)
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{s.client}, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	require.Eventually(t, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := client.Get(ctx, "ready")
		return err == nil
	}, time.Minute, 50*time.Millisecond)
	return s, client
}

func TestStore(t *testing.T) {
	_, client := launch(t)
	s, err := NewStore(client, "/sluice/sessions/", time.Second)
	require.NoError(t, err)
	storetest.Basics(t, s, time.Second)
	_, err = NewStore(client, "x", time.Millisecond)
	require.ErrorContains(t, err, "at least a second")
}

// Keys share leases: many sessions take few of them.
func TestFewLeases(t *testing.T) {
	_, client := launch(t)
	s, err := NewStore(client, "/s", time.Hour)
	require.NoError(t, err)
	for i := range 50 {
		require.NoError(t, s.Put(t.Context(), string(rune('a'+i)), nil))
	}
	leases, err := client.Leases(t.Context())
	require.NoError(t, err)
	require.Len(t, leases.Leases, 1)
	// A server that has lost the lease gets a new one.
	_, err = client.Revoke(t.Context(), leases.Leases[0].ID)
	require.NoError(t, err)
	require.Error(t, s.Put(t.Context(), "a", nil))
	require.NoError(t, s.Put(t.Context(), "a", nil))
}

// A server that is gone is an error within the caller's time.
func TestLost(t *testing.T) {
	server, client := launch(t)
	s, err := NewStore(client, "/s", time.Hour)
	require.NoError(t, err)
	require.NoError(t, s.Put(t.Context(), "a", []byte("v")))
	server.stop()
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		_, _, err := s.Get(ctx, "a")
		cancel()
		require.Error(t, err)
	}
	server.start(t)
	require.Eventually(t, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		v, ok, err := s.Get(ctx, "a")
		return err == nil && ok && string(v) == "v"
	}, time.Minute, 100*time.Millisecond, "it comes back with what it held")
}

// Instances come with their leases and go with them.
func TestMembership(t *testing.T) {
	_, client := launch(t)
	m := NewMembership(client, "/sluice/instances")
	var mu sync.Mutex
	var last proxy.Members
	ctx, cancel := context.WithCancel(t.Context())
	watched := make(chan error, 1)
	go func() {
		watched <- m.Watch(ctx, func(set proxy.Members) {
			mu.Lock()
			defer mu.Unlock()
			last = set
		})
	}()
	want := func(prefillers []string, decoders []proxy.MemberNumber) {
		t.Helper()
		require.Eventually(t, func() bool {
			mu.Lock()
			defer mu.Unlock()
			return equal(last.Prefillers, prefillers) && equal(last.Decoders, decoders)
		}, time.Minute, 10*time.Millisecond)
	}
	var group sync.WaitGroup
	register := func(in Instance) context.CancelFunc {
		ctx, stop := context.WithCancel(t.Context())
		group.Go(func() {
			if err := m.Register(ctx, in, 2*time.Second); err != nil {
				t.Error(err)
			}
		})
		return stop
	}
	stopP := register(Instance{Addr: "10.0.0.1:8000"})
	stopD := register(Instance{Addr: "[::1]:8001", Decoder: true, Ranks: 2, Pool: "big"})
	d := []proxy.MemberNumber{{Addr: "[::1]:8001", Ranks: 2, Pool: "big"}}
	want([]string{"10.0.0.1:8000"}, d)
	for _, bad := range []string{"decode/nonsense", "prefill/", "other/10.0.0.1:1"} {
		_, err := client.Put(t.Context(), "/sluice/instances/"+bad, "")
		require.NoError(t, err)
	}
	_, err := client.Put(t.Context(), "/sluice/instances/decode/10.0.0.9:1", "{")
	require.NoError(t, err)
	_, err = client.Put(t.Context(), "/sluice/instances/prefill/10.0.0.2:1", "")
	require.NoError(t, err)
	want([]string{"10.0.0.1:8000", "10.0.0.2:1"}, d)
	stopP()
	want([]string{"10.0.0.2:1"}, d)
	// One that dies without a word is gone when its lease is.
	lease, err := client.Grant(t.Context(), 1)
	require.NoError(t, err)
	_, err = client.Put(t.Context(), "/sluice/instances/prefill/10.0.0.3:1", "", clientv3.WithLease(lease.ID))
	require.NoError(t, err)
	want([]string{"10.0.0.2:1", "10.0.0.3:1"}, d)
	want([]string{"10.0.0.2:1"}, d)
	stopD()
	want([]string{"10.0.0.2:1"}, nil)
	group.Wait()
	cancel()
	require.ErrorIs(t, <-watched, context.Canceled)
}

func equal[T comparable](a, b []T) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}
