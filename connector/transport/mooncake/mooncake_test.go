//go:build cgo && linux

package mooncake

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sluice-serving/sluice/connector/transport"
	"github.com/sluice-serving/sluice/connector/transport/conformance"
	"github.com/sluice-serving/sluice/connector/transport/mooncake/emulated"
	"github.com/sluice-serving/sluice/connector/transport/tcp"
)

// absent is why there is no library to test with.
var absent error

// TestMain builds the emulated library. A library is loaded once per process,
// so this stands before all tests.
func TestMain(m *testing.M) {
	path, err := emulated.Build()
	if err != nil {
		absent = err
		fmt.Fprintln(os.Stderr, "no emulated library, tests that need one skip:", err)
	}
	os.Setenv(emulated.Variable, path)
	os.Exit(m.Run())
}

func needsLibrary(t *testing.T) {
	t.Helper()
	if absent != nil {
		t.Skip(absent)
	}
}

func TestConformance(t *testing.T) {
	needsLibrary(t)
	conformance.Run(t, func(t *testing.T, notified transport.Notified) transport.Transport {
		made, err := New(tcp.Config{Notified: notified, ChunkBytes: 1 << 20})
		require.NoError(t, err)
		require.Equal(t, "mooncake", made.Name())
		require.False(t, made.Guarded())
		return made
	})
}

// two gives two transports and what to read from the second into the first.
func two(t *testing.T, cfg tcp.Config) (x, y *tcp.Transport, c transport.Capability, segs []transport.Segment, into, from transport.Host) {
	t.Helper()
	needsLibrary(t)
	const n, unit = 256, 16 << 10
	open := func() (*tcp.Transport, transport.Host, transport.RegionID) {
		made, err := New(cfg)
		require.NoError(t, err)
		t.Cleanup(func() { _ = made.Close() })
		mem := make(transport.Host, n*unit)
		d, err := made.Register(mem, unit)
		require.NoError(t, err)
		return made.(*tcp.Transport), mem, d.Region
	}
	x, into, local := open()
	y, from, remote := open()
	units := make([]int32, n)
	for i := range n {
		units[i] = int32(i)
		segs = append(segs, transport.Segment{Local: local, Remote: remote, LocalOffset: int64(n-1-i) * unit, RemoteOffset: int64(i) * unit, Length: unit})
	}
	for i := range from {
		from[i] = byte(i * 31 >> 5)
	}
	c, err := y.Grant(transport.PeerReads, []transport.RegionID{remote}, units)
	require.NoError(t, err)
	return x, y, c, segs, into, from
}

func requireEqual(t *testing.T, into, from transport.Host, segs []transport.Segment) {
	t.Helper()
	for _, s := range segs {
		require.Equal(t, []byte(from[s.RemoteOffset:s.RemoteOffset+s.Length]), []byte(into[s.LocalOffset:s.LocalOffset+s.Length]))
	}
}

// The bytes go through the engine, not over the connections.
func TestBytesGoThroughTheEngine(t *testing.T) {
	x, y, c, segs, into, from := two(t, tcp.Config{})
	p, err := x.Connect(t.Context(), y.Address())
	require.NoError(t, err)
	require.NoError(t, p.Read(t.Context(), c, segs))
	requireEqual(t, into, from, segs)
	require.EqualValues(t, len(from), x.Stats().Fetched)

	// Memory that is registered later is found as well.
	more := make(transport.Host, 4096)
	more[5] = 77
	d, err := y.Register(more, 4096)
	require.NoError(t, err)
	c2, err := y.Grant(transport.PeerReads, []transport.RegionID{d.Region}, []int32{0})
	require.NoError(t, err)
	require.NoError(t, p.Read(t.Context(), c2, []transport.Segment{{Local: segs[0].Local, Remote: d.Region, Length: 4096}}))
	require.EqualValues(t, 77, into[5])
}

// Tasks that fail are repeated; if all do, the error names the engine's call.
func TestFailingTasks(t *testing.T) {
	t.Setenv("SLUICE_MOONCAKE_EMU_FAIL", "200")
	x, y, c, segs, into, from := two(t, tcp.Config{ChunkBytes: 1 << 20})
	p, err := x.Connect(t.Context(), y.Address())
	require.NoError(t, err)
	require.NoError(t, p.Read(t.Context(), c, segs))
	requireEqual(t, into, from, segs)
	require.NotZero(t, x.Stats().Retries)

	t.Setenv("SLUICE_MOONCAKE_EMU_FAIL", "1")
	x, y, c, segs, _, _ = two(t, tcp.Config{})
	p, err = x.Connect(t.Context(), y.Address())
	require.NoError(t, err)
	err = p.Read(t.Context(), c, segs)
	require.ErrorIs(t, err, transport.ErrUnreachable)
	require.ErrorContains(t, err, "mooncake: transfer: code 6")
	require.Len(t, transport.FailedSegments(err, len(segs)), len(segs))
}

// held keeps the batches of engines that are made from here on from beginning,
// until the file of that name is removed.
func held(t *testing.T) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "hold")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	t.Setenv("SLUICE_MOONCAKE_EMU_HOLD", file)
	return file
}

// A transfer that was given up leaves the memory alone however late it ends,
// and its buffer comes back then.
func TestTransferThatIsGivenUp(t *testing.T) {
	hold := held(t)
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	x, y, c, segs, into, _ := two(t, tcp.Config{Grace: time.Millisecond})
	p, err := x.Connect(t.Context(), y.Address())
	require.NoError(t, err)
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		require.ErrorIs(t, p.Read(ctx, c, segs), context.DeadlineExceeded)
		cancel()
	}
	require.NoError(t, os.Remove(hold))
	require.NoError(t, x.Close(), "waits for what was given up")
	require.NoError(t, y.Close())
	require.True(t, bytes.Equal(make([]byte, len(into)), into), "nothing came")
}

func TestSilentEngineIsAStall(t *testing.T) {
	hold := held(t)
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	x, y, c, segs, into, _ := two(t, tcp.Config{StallTimeout: 20 * time.Millisecond, Retries: -1})
	p, err := x.Connect(t.Context(), y.Address())
	require.NoError(t, err)
	require.ErrorIs(t, p.Read(t.Context(), c, segs), transport.ErrStalled)
	require.NoError(t, os.Remove(hold))
	require.NoError(t, x.Close())
	require.NoError(t, y.Close())
	require.True(t, bytes.Equal(make([]byte, len(into)), into), "nothing came")
}

func TestAbsentLibrary(t *testing.T) {
	for name, want := range map[string]string{
		"/nowhere/libtransfer_engine.so": "cannot open shared object file",
		"libm.so.6":                      "lacks createTransferEngine and 10 more",
	} {
		var e *transport.UnavailableError
		err := loadFrom(name)
		require.ErrorAs(t, err, &e)
		require.Equal(t, "mooncake", e.Transport)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, "-DBUILD_SHARED_LIBS=ON")
		require.ErrorContains(t, err, "SLUICE_MOONCAKE_LIB")
	}
	// The table holds what the last attempt found.
	if absent == nil {
		require.NoError(t, loadFrom(os.Getenv(emulated.Variable)))
	}
}

func TestRefused(t *testing.T) {
	needsLibrary(t)
	_, err := New(tcp.Config{ServerTLS: &tls.Config{}, ClientTLS: &tls.Config{}})
	var e *transport.UnavailableError
	require.ErrorAs(t, err, &e)
	_, err = New(tcp.Config{Listen: "192.0.2.1:0"})
	require.ErrorContains(t, err, "mooncake transport")
	for _, bad := range []string{"", "\x01\x00\x00\x00", "\x01\x00\x00\x00a b", "\x01\x00\x00\x00\x00"} {
		_, _, err := parseKey([]byte(bad))
		require.ErrorIs(t, err, transport.ErrProtocol, "%q", bad)
	}
}
