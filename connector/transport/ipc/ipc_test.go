package ipc

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
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

// held is what the child's region holds.
func held() []byte {
	b := make([]byte, regionBytes)
	for i := range b {
		b[i] = byte(1 + (i+i>>8*7)%255)
	}
	return b
}

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
	if err := ascendrt.Upload(context.Background(), dev, n.lanes[0].stream, b.View(), held()); err != nil {
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
	require.Equal(t, held()[512:512+8192], got[4096:4096+8192])
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

// Blocks arrive as they are named, whatever copies them, and no byte beside them
// changes; what cannot be copies nothing.
func TestFetchBlocks(t *testing.T) {
	dev := openDevice(t)
	s, _ := other(t)
	buf, err := dev.Alloc(regionBytes, ascendrt.PlaceShareable)
	require.NoError(t, err)
	mine := hidden{region{buf}}
	r := rand.New(rand.NewPCG(1, 2))
	for _, how := range []Options{{}, {By: ascendrt.CopyByUnits, Width: 3}, {By: ascendrt.CopyByEngine}} {
		n, err := NewWith(dev, how)
		require.NoError(t, err)
		met, err := n.Meet(s.Card)
		require.NoError(t, err)
		peer := met.(tcp.BlockNeighbour)
		fetch := func(local, remote []int32, regions ...tcp.NearRegion) error {
			return peer.FetchBlocks(regions, local, remote)
		}
		for _, n.blocks = range []bool{true, false} { // false: as on a device that takes pieces alone
			for _, bytes := range []int64{512, 1024, 2048, 4096, 1000, 13} {
				blocks := int(min(60, regionBytes/bytes))
				for _, count := range []int{1, blocks / 2, blocks} {
					local, remote := r.Perm(blocks)[:count], r.Perm(blocks)[:count]
					if count == blocks {
						slices.Sort(local)
						slices.Sort(remote)
					}
					require.NoError(t, ascendrt.Upload(t.Context(), dev, peer.(*neighbour).lane.stream, buf.View(), make([]byte, regionBytes)))
					var l32, r32 []int32
					want := make([]byte, regionBytes)
					const from = 1024
					for i := range local {
						if at := from + int64(remote[i])*bytes; at+bytes <= regionBytes {
							l32, r32 = append(l32, int32(local[i])), append(r32, int32(remote[i]))
							copy(want[int64(local[i])*bytes:][:bytes], held()[at:])
						}
					}
					require.NoError(t, fetch(l32, r32, tcp.NearRegion{Memory: mine, Key: s.Key, From: from, Bytes: bytes}))
					got := make([]byte, regionBytes)
					require.NoError(t, ascendrt.Download(t.Context(), dev, peer.(*neighbour).lane.stream, got, buf.View()))
					require.Equal(t, want, got, "%+v, %d of %d blocks of %d bytes", how, count, blocks, bytes)
				}
			}
		}
		good := tcp.NearRegion{Memory: mine, Key: s.Key, Bytes: 4096}
		for name, c := range map[string]struct {
			change        func(*tcp.NearRegion)
			local, remote int32
			want          error
		}{
			"a key of a third process": {change: func(x *tcp.NearRegion) { x.Key = append([]byte{s.Key[0] + 1}, s.Key[1:]...) }, want: tcp.ErrFar},
			"no device memory":         {change: func(x *tcp.NearRegion) { x.Memory = transport.Host(make([]byte, 8)) }, want: tcp.ErrFar},
			"from before it":           {change: func(x *tcp.NearRegion) { x.From = -1 }, want: ascendrt.ErrInvalid},
			"from behind it":           {change: func(x *tcp.NearRegion) { x.From = 1 << 62 }, want: ascendrt.ErrInvalid},
			"more than there is":       {change: func(x *tcp.NearRegion) { x.From = regionBytes - 4095 }, want: ascendrt.ErrInvalid},
			"no bytes":                 {change: func(x *tcp.NearRegion) { x.Bytes = 0 }},
			"bytes that overflow":      {change: func(x *tcp.NearRegion) { x.Bytes = 1 << 62 }},
			"a block that is not here": {local: 16, want: ascendrt.ErrInvalid},
			"nor there":                {remote: 16, want: ascendrt.ErrInvalid},
			"far away":                 {remote: 1<<31 - 1, want: ascendrt.ErrInvalid},
		} {
			bad := good
			if c.change != nil {
				c.change(&bad)
			}
			err := fetch([]int32{c.local, 1}, []int32{c.remote, 1}, good, bad)
			require.Error(t, err, name)
			if c.want != nil {
				require.ErrorIs(t, err, c.want, name)
			}
		}
		n.blocks = true
		require.ErrorIs(t, fetch([]int32{1, 1}, []int32{2, 3}, good), ascendrt.ErrInvalid, "two blocks to one place")
		require.ErrorIs(t, fetch([]int32{1}, []int32{2}, good, good), ascendrt.ErrInvalid, "two regions to one place")
		peer.Close()
		require.ErrorIs(t, fetch([]int32{1}, []int32{2}, good), transport.ErrClosed)
		require.NoError(t, n.Close())
	}
}

// halfway is a stream whose driver fails in the middle of a submission.
type halfway struct {
	ascendrt.Stream
	last *ascendrt.Point
}

var errHalfway = errors.New("the driver fails")

func (s halfway) Submit(c *ascendrt.Commands) (ascendrt.Point, int, error) {
	p, _, err := s.Stream.Submit(c)
	*s.last = p
	return p, 0, errors.Join(err, errHalfway)
}

// A copy that fails when part of it was handed over has ended when its caller learns of it.
func TestFailedCopiesHaveEnded(t *testing.T) {
	dev := openDevice(t)
	n, err := New(dev)
	require.NoError(t, err)
	s, _ := other(t)
	met, err := n.Meet(s.Card)
	require.NoError(t, err)
	peer := met.(*neighbour)
	buf, err := dev.Alloc(regionBytes, ascendrt.PlaceShareable)
	require.NoError(t, err)
	large, err := dev.Alloc(16<<20, ascendrt.PlaceDefault)
	require.NoError(t, err)
	var last ascendrt.Point
	real := peer.lane.stream
	peer.lane.stream = halfway{real, &last}
	for name, fetch := range map[string]func() error{
		"ranges": func() error {
			return peer.Fetch([]tcp.NearRange{{Memory: region{buf}, Key: s.Key, Length: regionBytes}})
		},
		"blocks": func() error {
			return peer.FetchBlocks([]tcp.NearRegion{{Memory: region{buf}, Key: s.Key, Bytes: 4096}}, []int32{1, 2}, []int32{3, 4})
		},
		"blocks ahead": func() error {
			_, err := peer.StartBlocks([]tcp.NearRegion{{Memory: region{buf}, Key: s.Key, Bytes: 4096}}, []int32{1, 2}, []int32{3, 4})
			return err
		},
	} {
		var busy ascendrt.Commands
		for range 20 {
			busy.Fill(large.View(), 1)
		}
		_, _, err := real.Submit(&busy)
		require.NoError(t, err)
		require.ErrorIs(t, fetch(), errHalfway, name)
		require.NotZero(t, last.Seq, name)
		require.True(t, last.Done(), name)
	}
	peer.lane.stream = real
	peer.Close()
	require.NoError(t, n.Close())
}

// Copies from one process go on while memory of another one is imported.
func TestImportsHoldUpTheirProcessAlone(t *testing.T) {
	dev := openDevice(t)
	n, err := New(dev)
	require.NoError(t, err)
	s, _ := other(t)
	x, err := n.enter("another process")
	require.NoError(t, err)
	x.p.mu.Lock()
	peer, err := n.Meet(s.Card)
	require.NoError(t, err)
	buf, err := dev.Alloc(regionBytes, ascendrt.PlaceShareable)
	require.NoError(t, err)
	require.NoError(t, peer.Fetch([]tcp.NearRange{{Memory: region{buf}, Key: s.Key, Length: regionBytes}}))
	x.p.mu.Unlock()
	peer.Close()
	x.Close()
	require.Empty(t, n.processes)
	require.NoError(t, n.Close())
}
