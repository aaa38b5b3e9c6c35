package ipc

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/cuda"
	"github.com/sluice-serving/sluice/ascendrt/cuda/emulated"
	"github.com/sluice-serving/sluice/ascendrt/host"
	"github.com/sluice-serving/sluice/connector/transport"
	"github.com/sluice-serving/sluice/connector/transport/tcp"
)

// childEnv makes the test binary another process, which shows its card and the
// key of a region, and ends with its input.
const childEnv = "SLUICE_IPC_TEST_CHILD"

// noDriver says why there is neither a driver nor an emulated one.
var noDriver error

func TestMain(m *testing.M) {
	if _, err := os.Stat("/dev/nvidiactl"); err != nil {
		noDriver = emulated.Use()
	}
	if os.Getenv(childEnv) != "" {
		if err := child(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// shown is what the child prints.
type shown struct{ Card, Key []byte }

const regionBytes = 1 << 16

func child() error {
	dev, err := cuda.Backend{}.Open(0, ascendrt.OpenOptions{})
	if err != nil {
		return err
	}
	n, err := New(dev)
	if err != nil {
		return err
	}
	b, err := dev.Alloc(regionBytes, ascendrt.PlaceShareable)
	if err != nil {
		return err
	}
	var c ascendrt.Commands
	c.Fill(b.View(), 0x42)
	p, _, err := n.lanes[0].stream.Submit(&c)
	if err == nil {
		err = p.Wait(context.Background())
	}
	if err != nil {
		return err
	}
	x, err := n.Expose(region{b})
	if err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(shown{n.Card(), x.Key()}); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// region is device memory as a transport is given it.
type region struct{ buf ascendrt.Buffer }

func (r region) DeviceBuffer() ascendrt.Buffer          { return r.buf }
func (r region) Size() int64                            { return int64(r.buf.Len()) }
func (r region) ReadAt(p []byte, _ int64) (int, error)  { return 0, errors.New("not by the CPU") }
func (r region) WriteAt(p []byte, _ int64) (int, error) { return 0, errors.New("not by the CPU") }

// hidden is memory behind another one.
type hidden struct{ transport.Memory }

func (h hidden) Unwrap() any { return h.Memory }

func openDevice(t *testing.T) ascendrt.Device {
	t.Helper()
	if noDriver != nil {
		t.Skip(noDriver)
	}
	dev, err := cuda.Backend{}.Open(0, ascendrt.OpenOptions{})
	if errors.Is(err, ascendrt.ErrUnavailable) {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close(context.Background())) })
	return dev
}

// other starts the child and returns what it shows, and what kills it.
func other(t *testing.T) (shown, func()) {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	c := exec.Command(exe)
	c.Env = append(os.Environ(), childEnv+"=1")
	c.Stderr = os.Stderr
	in, err := c.StdinPipe()
	require.NoError(t, err)
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	kill := func() { in.Close(); _ = c.Process.Kill(); _ = c.Wait() }
	t.Cleanup(kill)
	line, err := bufio.NewReader(out).ReadBytes('\n')
	require.NoError(t, err)
	var s shown
	require.NoError(t, json.Unmarshal(line, &s))
	return s, kill
}

func TestWithoutSharedMemory(t *testing.T) {
	dev, err := host.Backend{}.Open(0, ascendrt.OpenOptions{})
	require.NoError(t, err)
	defer dev.Close(context.Background())
	_, err = New(dev)
	var lacks *transport.UnavailableError
	require.ErrorAs(t, err, &lacks)
	require.ErrorContains(t, err, "the host backend shares no memory between processes")
}

// Whoever is not near is told from whoever is, with the reason; a handle that does
// not lead to the memory of the card's process is never used.
func TestMeet(t *testing.T) {
	dev := openDevice(t)
	n, err := New(dev)
	require.NoError(t, err)
	buffers := dev.Live().Buffers
	s, kill := other(t)
	good, err := decodeCard(s.Card)
	require.NoError(t, err)
	for name, c := range map[string]struct {
		change func(*card)
		want   string
	}{
		"another version":  {func(c *card) { c.Version++ }, "version"},
		"another host":     {func(c *card) { c.Host = "elsewhere" }, "another host"},
		"another backend":  {func(c *card) { c.Backend = "abacus" }, "abacus"},
		"this device":      {func(c *card) { c.Process = n.self.Process }, "this very device"},
		"another's memory": {func(c *card) { c.Process[3]++ }, "leads to other memory"},
		"no handle":        {func(c *card) { c.Beacon = nil }, "cannot be imported"},
		"a strange handle": {func(c *card) { c.Beacon = append(c.Beacon[:len(c.Beacon)-8:len(c.Beacon)-8], 1, 2, 3, 4, 5, 6, 7, 8) }, ""},
		"of other length":  {func(c *card) { c.Beacon = s.Key[len(c.Process):] }, "bytes, want"},
	} {
		bad := good
		bad.Beacon = append(ascendrt.ShareHandle(nil), good.Beacon...)
		c.change(&bad)
		raw, err := bad.encode()
		require.NoError(t, err)
		x, err := n.Meet(raw)
		if name == "a strange handle" && err == nil { // bytes that this driver does not look at
			x.Close()
			continue
		}
		require.ErrorContains(t, err, c.want, name)
	}
	for _, raw := range []string{"", "{", "null", `{"v":1,"process":"x"}`} {
		_, err := n.Meet([]byte(raw))
		require.Error(t, err, raw)
	}
	require.Equal(t, buffers, dev.Live().Buffers, "what did not fit was closed again")
	x, err := n.Meet(s.Card)
	require.NoError(t, err)
	kill()
	y, err := n.Meet(s.Card)
	require.NoError(t, err, "known from before; its connection tells that it is gone")
	x.Close()
	y.Close()
	_, err = n.Meet(s.Card)
	require.Error(t, err, "it is gone")
	require.NoError(t, n.Close())
	_, err = n.Meet(s.Card)
	require.ErrorIs(t, err, transport.ErrClosed)
}

func TestExposeAndFetch(t *testing.T) {
	dev := openDevice(t)
	n, err := New(dev)
	require.NoError(t, err)
	buf, err := dev.Alloc(regionBytes, ascendrt.PlaceShareable)
	require.NoError(t, err)
	x, err := n.Expose(transport.Host(make([]byte, 8)))
	require.NoError(t, err)
	require.Nil(t, x, "memory of the host is not for this")
	private, err := dev.Alloc(64, ascendrt.PlaceDefault)
	require.NoError(t, err)
	_, err = n.Expose(region{private})
	require.ErrorIs(t, err, ascendrt.ErrUnsupported)
	mine, err := n.Expose(hidden{region{buf}})
	require.NoError(t, err)
	require.LessOrEqual(t, len(mine.Key()), tcp.MaxKey)

	s, kill := other(t)
	before := dev.Live().Buffers
	peer, err := n.Meet(s.Card)
	require.NoError(t, err)
	one := func(r tcp.NearRange) error { return peer.Fetch([]tcp.NearRange{r}) }
	zero := make([]byte, regionBytes)
	require.NoError(t, ascendrt.Upload(context.Background(), dev, n.lanes[0].stream, buf.View(), zero))
	good := tcp.NearRange{Memory: hidden{region{buf}}, Offset: 4096, Key: s.Key, From: 512, Length: 8192}
	require.NoError(t, one(good))
	got := make([]byte, regionBytes)
	require.NoError(t, ascendrt.Download(context.Background(), dev, n.lanes[0].stream, got, buf.View()))
	require.Equal(t, byte(0x42), got[4096])
	require.Equal(t, byte(0x42), got[4096+8191])
	require.Equal(t, zero[:4096], got[:4096], "nothing before it")
	require.Equal(t, zero[4096+8192:], got[4096+8192:], "nor behind")

	far := good
	far.Key = append([]byte(nil), s.Key...)
	far.Key[0]++
	require.ErrorIs(t, one(far), tcp.ErrFar, "a key of a third process")
	far.Key = s.Key[:10]
	require.ErrorIs(t, one(far), tcp.ErrFar, "a short key")
	far = good
	far.Memory = transport.Host(make([]byte, 8))
	require.ErrorIs(t, one(far), tcp.ErrFar, "no device memory")
	for _, change := range []func(*tcp.NearRange){
		func(r *tcp.NearRange) { r.From = -1 }, func(r *tcp.NearRange) { r.From = regionBytes - 1 },
		func(r *tcp.NearRange) { r.Offset = -1 }, func(r *tcp.NearRange) { r.Offset = 1 << 62 },
		func(r *tcp.NearRange) { r.Length = 1 << 62 }, func(r *tcp.NearRange) { r.Length = -1 },
	} {
		bad := good
		change(&bad)
		err := one(bad)
		require.ErrorIs(t, err, ascendrt.ErrInvalid, "%+v", bad)
	}
	kill()
	require.NoError(t, one(good), "what was imported stays")
	require.NoError(t, dev.Health())
	peer.Close()
	peer.Close()
	require.ErrorIs(t, one(good), transport.ErrClosed)
	require.Equal(t, before, dev.Live().Buffers, "the import is closed")
	require.NoError(t, n.Close())
	require.NoError(t, n.Close())
}
