package basetest

import (
	"context"
	"encoding/hex"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
)

// Stream gives a stream of a device that ends with the test.
func Stream(t *testing.T, d ascendrt.Device) ascendrt.Stream {
	t.Helper()
	t.Cleanup(func() { require.NoError(t, d.Close(context.Background())) })
	s, err := d.NewStream(ascendrt.StreamOptions{})
	require.NoError(t, err)
	return s
}

// Submit submits what f records and waits for it.
func Submit(t *testing.T, s ascendrt.Stream, f func(c *ascendrt.Commands)) ascendrt.Point {
	t.Helper()
	var c ascendrt.Commands
	f(&c)
	p, _, err := s.Submit(&c)
	require.NoError(t, err)
	require.NoError(t, p.Wait(context.Background()))
	return p
}

// The variables of a child's environment: its test, and a handle of shared memory.
const (
	ChildVariable  = "SLUICE_TEST_CHILD"
	handleVariable = "SLUICE_TEST_HANDLE"
)

// Child runs one test of this binary in a process of its own.
func Child(t *testing.T, test string, env ...string) {
	t.Helper()
	ctx, stop := context.WithTimeout(context.Background(), 2*time.Minute)
	defer stop()
	c := exec.CommandContext(ctx, os.Args[0], "-test.run=^"+test+"$", "-test.v")
	c.Env = append(os.Environ(), append(env, ChildVariable+"="+test)...)
	out, err := c.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "--- PASS: "+test)
}

// IsChild skips a test that only Child runs.
func IsChild(t *testing.T) {
	t.Helper()
	if os.Getenv(ChildVariable) != t.Name() {
		t.Skip("run by another test in a process of its own")
	}
}

// ShareMemory shows that a buffer is written in one process and read and written
// in another, where the test child calls SharedMemory.
func ShareMemory(t *testing.T, d ascendrt.Device, s ascendrt.Stream, child string) {
	t.Helper()
	pad, err := d.Alloc(4096, ascendrt.PlaceShareable)
	require.NoError(t, err)
	x, err := d.Alloc(1<<16, ascendrt.PlaceShareable)
	require.NoError(t, err)
	Submit(t, s, func(c *ascendrt.Commands) { c.Fill(x.View(), 0x42) })
	h, err := d.Export(x)
	require.NoError(t, err)
	_, err = d.Import(h)
	require.ErrorIs(t, err, ascendrt.ErrUnsupported, "within one process")
	_, err = d.Import([]byte("nonsense"))
	require.ErrorIs(t, err, ascendrt.ErrInvalid)
	own, err := d.Alloc(64, ascendrt.PlaceDefault)
	require.NoError(t, err)
	_, err = d.Export(own)
	require.ErrorIs(t, err, ascendrt.ErrUnsupported)
	Child(t, child, handleVariable+"="+hex.EncodeToString(h))
	got := make([]byte, 1<<16)
	require.NoError(t, ascendrt.Download(context.Background(), d, s, got, x.View()))
	require.Equal(t, byte(0x43), got[0], "what the other process wrote")
	for _, b := range []ascendrt.Buffer{x, pad, own} {
		require.NoError(t, b.FreeAfter(ascendrt.Point{}))
	}
}

// SharedMemory is the other process's side of ShareMemory.
func SharedMemory(t *testing.T, d ascendrt.Device, s ascendrt.Stream) {
	t.Helper()
	h, err := hex.DecodeString(os.Getenv(handleVariable))
	require.NoError(t, err)
	x, err := d.Import(h)
	require.NoError(t, err)
	again, err := d.Import(h)
	require.NoError(t, err, "one allocation, two buffers")
	got := make([]byte, x.Len())
	require.NoError(t, ascendrt.Download(context.Background(), d, s, got, x.View()))
	require.Equal(t, byte(0x42), got[len(got)-1])
	Submit(t, s, func(c *ascendrt.Commands) { c.Fill(again.View(), 0x43) })
	require.NoError(t, x.FreeAfter(ascendrt.Point{}))
	require.NoError(t, again.FreeAfter(ascendrt.Point{}))
}
