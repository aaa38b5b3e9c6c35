package nats

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/proxy/shared/storetest"
)

// launch starts a real server in this process, on a free port.
func launch(t *testing.T, dir string, port int) (*server.Server, *nats.Conn) {
	t.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: port, JetStream: true, StoreDir: dir, NoLog: true, NoSigs: true})
	require.NoError(t, err)
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	require.True(t, s.ReadyForConnections(time.Minute))
	conn, err := nats.Connect(s.ClientURL(), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond), nats.Timeout(10*time.Second))
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	return s, conn
}

func TestStore(t *testing.T) {
	_, conn := launch(t, t.TempDir(), -1)
	s, err := Open(t.Context(), conn, "sessions", time.Second, 0)
	require.NoError(t, err)
	storetest.Basics(t, s, time.Second)
	_, err = Open(t.Context(), conn, "sessions", time.Millisecond, 0)
	require.ErrorContains(t, err, "at least a second")
	_, err = Open(t.Context(), conn, "not a name", time.Second, 0)
	require.ErrorContains(t, err, "bucket not a name")
}

// A server that is gone is an error within the caller's time; one that comes
// back still holds what it held.
func TestLost(t *testing.T) {
	dir := t.TempDir()
	server, conn := launch(t, dir, -1)
	port := server.Addr().(*net.TCPAddr).Port
	s, err := Open(t.Context(), conn, "sessions", time.Hour, 0)
	require.NoError(t, err)
	require.NoError(t, s.Put(t.Context(), "a", []byte("v")))
	server.Shutdown()
	server.WaitForShutdown()
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		_, _, err := s.Get(ctx, "a")
		cancel()
		require.Error(t, err)
	}
	launch(t, dir, port)
	require.Eventually(t, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		v, ok, err := s.Get(ctx, "a")
		return err == nil && ok && string(v) == "v"
	}, time.Minute, 100*time.Millisecond)
}
