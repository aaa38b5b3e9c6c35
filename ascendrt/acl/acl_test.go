//go:build cgo && linux

package acl

import (
	"context"
	"encoding/hex"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/acl/emulated"
)

// open gives a device and a stream that end with the test.
func open(t *testing.T, o ascendrt.OpenOptions) (ascendrt.Device, ascendrt.Stream) {
	t.Helper()
	d := openDevice(t, o)
	t.Cleanup(func() { require.NoError(t, d.Close(context.Background())) })
	s, err := d.NewStream(ascendrt.StreamOptions{})
	require.NoError(t, err)
	return d, s
}

func needEmulation(t *testing.T) {
	t.Helper()
	if !emulation() {
		t.Skip("needs the emulated libraries")
	}
}

func submit(t *testing.T, s ascendrt.Stream, f func(c *ascendrt.Commands)) ascendrt.Point {
	t.Helper()
	var c ascendrt.Commands
	f(&c)
	p, _, err := s.Submit(&c)
	require.NoError(t, err)
	require.NoError(t, p.Wait(context.Background()))
	return p
}

// vendor gives the vendor's facts of an error.
func vendor(t *testing.T, err error, class error, code int) *ascendrt.Error {
	t.Helper()
	require.ErrorIs(t, err, class)
	var e *ascendrt.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, code, e.Code, "%v", err)
	return e
}

func TestProbeNamesLibrariesAndDevices(t *testing.T) {
	r, err := Backend{}.Probe(context.Background())
	require.NoError(t, err)
	require.Len(t, r.Libraries, int(libraryCount))
	if r.Problem != "" {
		require.Contains(t, r.Problem, "SLUICE_ACL_LIB", "the text says what to do")
		t.Skip(r.Problem)
	}
	require.NotEmpty(t, r.Devices)
	for _, l := range r.Libraries {
		require.Empty(t, l.Problem, l.Name)
		require.FileExists(t, l.Path)
	}
}

func TestOpenRefuses(t *testing.T) {
	needEmulation(t)
	for _, n := range []int{-1, 2, 99} {
		_, err := Backend{}.Open(n, ascendrt.OpenOptions{})
		require.ErrorIs(t, err, ascendrt.ErrUnavailable)
		require.ErrorContains(t, err, "sees 2 devices")
	}
	_, err := Backend{}.Open(0, ascendrt.OpenOptions{Faults: "nonsense"})
	require.ErrorIs(t, err, ascendrt.ErrInvalid)
}

// Everything that a device makes in the runtime is destroyed again, behind
// graphs with updates, failed captures and open handles too.
func TestNothingIsLeftInTheRuntime(t *testing.T) {
	needEmulation(t)
	before := emulatedObjects()
	require.Len(t, before, 5)
	d := openDevice(t, ascendrt.OpenOptions{})
	s, err := d.NewStream(ascendrt.StreamOptions{})
	require.NoError(t, err)
	other, err := d.NewStream(ascendrt.StreamOptions{})
	require.NoError(t, err)
	op, err := d.Plan(ascendrt.OpSpec{Kind: ascendrt.OpAdd, Type: ascendrt.Float32, Attr: ascendrt.AddAttr{Dim: 8}})
	require.NoError(t, err)
	for _, k := range []ascendrt.EventKind{ascendrt.EventOrder, ascendrt.EventTiming, ascendrt.EventExternal} {
		_, err := d.NewEvent(k)
		require.NoError(t, err)
	}
	x, err := d.Alloc(256, ascendrt.PlaceDefault)
	require.NoError(t, err)
	_, err = d.Alloc(1000, ascendrt.PlaceShareable)
	require.NoError(t, err)
	row := ascendrt.NewTensor(x.View(), ascendrt.Float32, 2, 8)
	var c ascendrt.Commands
	c.Fill(x.View(), 0)
	ref := c.Op(op, ascendrt.View{}, row, row, row)
	g, err := d.Capture(s, &c, ascendrt.CaptureOptions{Updatable: []ascendrt.OpRef{ref}})
	require.NoError(t, err)
	require.Equal(t, ascendrt.GraphInfo{Nodes: 2, Streams: 2}, g.Info())
	for range 3 {
		submit(t, s, func(c *ascendrt.Commands) { c.Graph(g) })
		submit(t, other, func(c *ascendrt.Commands) { c.Graph(g); c.Graph(g) })
	}
	c.Reset()
	c.OnStream(other)
	c.Fill(x.View(), 1)
	_, err = d.Capture(s, &c, ascendrt.CaptureOptions{})
	require.ErrorIs(t, err, ascendrt.ErrCapture)
	c.Reset()
	c.Fill(x.View(), 1)
	c.Op(op, ascendrt.View{}, row, row, ascendrt.NewTensor(x.Slice(32, 64), ascendrt.Float32, 2, 8)) // overlaps
	_, err = d.Capture(s, &c, ascendrt.CaptureOptions{})
	vendor(t, err, ascendrt.ErrCapture, 161002)
	require.NoError(t, d.Close(context.Background()))
	require.Equal(t, before, emulatedObjects())
}

// The runtime's own limits and errors come back typed, with its code, name and text.
func TestInjectedFaults(t *testing.T) {
	needEmulation(t)
	for _, f := range []struct {
		name, faults string
		class        error
		code         int
		run          func(d ascendrt.Device, s ascendrt.Stream) error
	}{
		{"host memory", "aclrtMallocHost:1=207001,aclrtMallocHost:1=207001", ascendrt.ErrOutOfMemory, 207001, func(d ascendrt.Device, _ ascendrt.Stream) error {
			_, err := d.AllocHost(8)
			return err
		}},
		{"streams", "aclrtCreateStreamWithConfig:2=207008", ascendrt.ErrResourceLimit, 207008, func(d ascendrt.Device, _ ascendrt.Stream) error {
			_, err := d.NewStream(ascendrt.StreamOptions{})
			return err
		}},
		{"events", "aclrtCreateEventExWithFlag:1=207007", ascendrt.ErrResourceLimit, 207007, func(d ascendrt.Device, _ ascendrt.Stream) error {
			_, err := d.NewEvent(ascendrt.EventOrder)
			return err
		}},
		{"a queue that is full", "aclrtMemsetAsync:1=507002", ascendrt.ErrResourceLimit, 507002, fill},
		{"the driver lacks it", "aclmdlRICaptureBegin:1=207000", ascendrt.ErrUnsupported, 207000, capture},
		{"streams of a graph", "aclmdlRICaptureEnd:1=207005", ascendrt.ErrResourceLimit, 207005, capture},
		{"an illegal call in a capture", "aclrtMemsetAsync:1=107030", ascendrt.ErrCapture, 107030, capture},
		{"no kernels for the chip", "aclnnAddGetWorkspaceSize:1=561003", ascendrt.ErrUnsupported, 561003, func(d ascendrt.Device, _ ascendrt.Stream) error {
			_, err := d.Plan(ascendrt.OpSpec{Kind: ascendrt.OpAdd, Type: ascendrt.Float32, Attr: ascendrt.AddAttr{Dim: 4}})
			return err
		}},
	} {
		t.Run(f.name, func(t *testing.T) {
			d, s := open(t, ascendrt.OpenOptions{Faults: f.faults})
			err := f.run(d, s)
			e := vendor(t, err, f.class, f.code)
			require.Equal(t, codeNames[f.code], e.Name)
			require.NotEmpty(t, e.Text)
			require.NotEmpty(t, e.Call)
			require.NoError(t, d.Health(), "the device works on")
			require.NoError(t, f.run(d, s), "the fault came once")
		})
	}
}

func fill(d ascendrt.Device, s ascendrt.Stream) error {
	x, err := d.Alloc(64, ascendrt.PlaceDefault)
	if err != nil {
		return err
	}
	var c ascendrt.Commands
	c.Fill(x.View(), 1)
	p, n, err := s.Submit(&c)
	if err != nil && n != 0 {
		return errors.New("a refused command was counted")
	}
	return errors.Join(err, p.Wait(context.Background()), x.FreeAfter(p))
}

func capture(d ascendrt.Device, s ascendrt.Stream) error {
	x, err := d.Alloc(64, ascendrt.PlaceDefault)
	if err != nil {
		return err
	}
	var c ascendrt.Commands
	c.Fill(x.View(), 1)
	g, err := d.Capture(s, &c, ascendrt.CaptureOptions{})
	if err == nil {
		err = g.Close()
	}
	return errors.Join(err, x.FreeAfter(ascendrt.Point{}))
}

// An exception of the device in the middle of a step loses it: the step's point
// answers so, and every later call at once, without a call of the runtime.
func TestFaultLosesTheDevice(t *testing.T) {
	needEmulation(t)
	d, s := open(t, ascendrt.OpenOptions{Faults: "run:aclnnAdd:2=507015"})
	op, err := d.Plan(ascendrt.OpSpec{Kind: ascendrt.OpAdd, Type: ascendrt.Float32, Attr: ascendrt.AddAttr{Dim: 8}})
	require.NoError(t, err)
	x, err := d.Alloc(64, ascendrt.PlaceDefault)
	require.NoError(t, err)
	row := ascendrt.NewTensor(x.View(), ascendrt.Float32, 1, 8)
	step := func(c *ascendrt.Commands) { c.Op(op, ascendrt.View{}, row, row, row) }
	submit(t, s, step)
	var c ascendrt.Commands
	step(&c)
	step(&c)
	p, _, err := s.Submit(&c)
	if err == nil {
		err = p.Wait(context.Background())
	}
	e := vendor(t, err, ascendrt.ErrDeviceLost, 507015)
	require.Equal(t, "ACL_ERROR_RT_AICORE_EXCEPTION", e.Name)
	require.Contains(t, e.Text, "aclnnAdd")
	_, err = injectFaults("") // the runtime would work again; the device must not ask it
	require.NoError(t, err)
	_, err = d.Alloc(8, ascendrt.PlaceDefault)
	require.ErrorIs(t, err, ascendrt.ErrDeviceLost)
	require.ErrorIs(t, d.Health(), ascendrt.ErrDeviceLost)
	require.False(t, p.Done())
}

// Index tensors are values of the device: one past the end is its fault.
func TestIndexPastTheEndLosesTheDevice(t *testing.T) {
	needEmulation(t)
	d, s := open(t, ascendrt.OpenOptions{})
	op, err := d.Plan(ascendrt.OpSpec{Kind: ascendrt.OpEmbedding, Type: ascendrt.Float32, Attr: ascendrt.EmbeddingAttr{Vocab: 2, Hidden: 8}})
	require.NoError(t, err)
	x, err := d.Alloc(256, ascendrt.PlaceDefault)
	require.NoError(t, err)
	ws, err := d.Alloc(op.Workspace(), ascendrt.PlaceDefault)
	require.NoError(t, err)
	submit(t, s, func(c *ascendrt.Commands) { c.Fill(x.View(), 5) })
	var c ascendrt.Commands
	c.Op(op, ws.View(), ascendrt.NewTensor(x.Slice(0, 4), ascendrt.Int32, 1), ascendrt.NewTensor(x.Slice(64, 64), ascendrt.Float32, 2, 8), ascendrt.NewTensor(x.Slice(128, 32), ascendrt.Float32, 1, 8))
	p, _, err := s.Submit(&c)
	if err == nil {
		err = p.Wait(context.Background())
	}
	vendor(t, err, ascendrt.ErrDeviceLost, 507015)
}

// A tensor that the operators cannot address is refused before it gets there.
func TestUnalignedTensor(t *testing.T) {
	d, s := open(t, ascendrt.OpenOptions{})
	op, err := d.Plan(ascendrt.OpSpec{Kind: ascendrt.OpAdd, Type: ascendrt.Float32, Attr: ascendrt.AddAttr{Dim: 4}})
	require.NoError(t, err)
	x, err := d.Alloc(256, ascendrt.PlaceDefault)
	require.NoError(t, err)
	row := ascendrt.NewTensor(x.Slice(16, 16), ascendrt.Float32, 1, 4)
	var c ascendrt.Commands
	c.Op(op, ascendrt.View{}, row, row, row)
	_, _, err = s.Submit(&c)
	require.ErrorIs(t, err, ascendrt.ErrInvalid)
	require.ErrorContains(t, err, "32 bytes")
}

// An external event is a flag: its record is consumed by one wait.
func TestExternalEventIsConsumed(t *testing.T) {
	d, s := open(t, ascendrt.OpenOptions{})
	e, err := d.NewEvent(ascendrt.EventExternal)
	require.NoError(t, err)
	submit(t, s, func(c *ascendrt.Commands) { c.WaitEvent(e) }) // never recorded
	submit(t, s, func(c *ascendrt.Commands) { c.Record(e) })
	done, err := e.Done()
	require.NoError(t, err)
	require.True(t, done)
	var c ascendrt.Commands
	c.Record(e)
	_, _, err = s.Submit(&c)
	require.ErrorIs(t, err, ascendrt.ErrInvalid, "recorded twice")
	submit(t, s, func(c *ascendrt.Commands) { c.WaitEvent(e) })
	submit(t, s, func(c *ascendrt.Commands) { c.WaitEvent(e); c.Record(e); c.WaitEvent(e); c.Record(e); c.WaitEvent(e) })
	_, err = d.NewEvent(ascendrt.EventIPC)
	require.ErrorIs(t, err, ascendrt.ErrUnsupported)

	// A record never overtakes the wait before it, on whatever streams they are.
	other, err := d.NewStream(ascendrt.StreamOptions{})
	require.NoError(t, err)
	x, err := d.Alloc(1<<20, ascendrt.PlaceDefault)
	require.NoError(t, err)
	var last ascendrt.Point
	for range 50 {
		c.Reset()
		c.Record(e)
		_, _, err = s.Submit(&c)
		require.NoError(t, err)
		c.Reset()
		c.Fill(x.View(), 1)
		c.WaitEvent(e)
		last, _, err = other.Submit(&c)
		require.NoError(t, err)
	}
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	require.NoError(t, last.Wait(ctx))
}

// Events may be closed while work and graphs still name them: the runtime's
// event ends behind them.
func TestEventsOutliveTheirClose(t *testing.T) {
	needEmulation(t)
	before := emulatedObjects()
	d := openDevice(t, ascendrt.OpenOptions{Faults: "delay=3000"})
	s, err := d.NewStream(ascendrt.StreamOptions{})
	require.NoError(t, err)
	other, err := d.NewStream(ascendrt.StreamOptions{})
	require.NoError(t, err)
	x, err := d.Alloc(64, ascendrt.PlaceDefault)
	require.NoError(t, err)
	e, err := d.NewEvent(ascendrt.EventOrder)
	require.NoError(t, err)
	flag, err := d.NewEvent(ascendrt.EventExternal)
	require.NoError(t, err)
	var c ascendrt.Commands
	c.WaitEvent(flag)
	c.Fill(x.View(), 9)
	g, err := d.Capture(s, &c, ascendrt.CaptureOptions{})
	require.NoError(t, err)
	c.Reset()
	c.Fill(x.View(), 1)
	c.Record(e)
	c.OnStream(other)
	c.WaitEvent(e)
	c.Record(flag)
	c.OnStream(s)
	c.Graph(g)
	p, _, err := s.Submit(&c)
	require.NoError(t, err)
	require.NoError(t, e.Close())
	require.NoError(t, flag.Close())
	require.NoError(t, p.Wait(context.Background()))
	submit(t, s, func(c *ascendrt.Commands) { c.Fill(x.View(), 2) })
	require.NoError(t, g.Close())
	require.NoError(t, d.Close(context.Background()))
	require.Equal(t, before, emulatedObjects())
}

// With DebugSync an asynchronous fault names its command.
func TestDebugSyncNamesTheCommand(t *testing.T) {
	needEmulation(t)
	d, s := open(t, ascendrt.OpenOptions{Debug: ascendrt.DebugSync, Faults: "run:aclnnAdd:2=507015"})
	op, err := d.Plan(ascendrt.OpSpec{Kind: ascendrt.OpAdd, Type: ascendrt.Float32, Attr: ascendrt.AddAttr{Dim: 8}})
	require.NoError(t, err)
	x, err := d.Alloc(64, ascendrt.PlaceDefault)
	require.NoError(t, err)
	row := ascendrt.NewTensor(x.View(), ascendrt.Float32, 1, 8)
	var c ascendrt.Commands
	for range 3 {
		c.Op(op, ascendrt.View{}, row, row, row)
	}
	_, _, err = s.Submit(&c)
	require.Equal(t, 1, vendor(t, err, ascendrt.ErrDeviceLost, 507015).Command)
}

// A submission in steady state allocates nothing in Go.
func TestSubmitAllocatesNothing(t *testing.T) {
	d, s := open(t, ascendrt.OpenOptions{})
	x, err := d.Alloc(64, ascendrt.PlaceDefault)
	require.NoError(t, err)
	h, err := d.AllocHost(64)
	require.NoError(t, err)
	var c ascendrt.Commands
	c.Fill(x.View(), 1)
	c.Copy(h.View(), x.View())
	for range 100 {
		p, _, err := s.Submit(&c)
		require.NoError(t, err)
		require.NoError(t, p.Wait(context.Background()))
	}
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		p, _, _ := s.Submit(&c)
		_ = p.Wait(context.Background())
	}))
}

// child runs one test of this binary in a process of its own.
func child(t *testing.T, test string, env ...string) {
	t.Helper()
	ctx, stop := context.WithTimeout(context.Background(), 2*time.Minute)
	defer stop()
	c := exec.CommandContext(ctx, os.Args[0], "-test.run=^"+test+"$", "-test.v")
	c.Env = append(os.Environ(), append(env, "SLUICE_ACL_CHILD="+test)...)
	out, err := c.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "--- PASS: "+test)
}

func isChild(t *testing.T) {
	t.Helper()
	if os.Getenv("SLUICE_ACL_CHILD") != t.Name() {
		t.Skip("run by another test in a process of its own")
	}
}

// What is missing is said with the way to get it.
func TestLibraryProblems(t *testing.T) {
	needEmulation(t)
	dir := t.TempDir()
	broken := filepath.Join(dir, "libascendcl.so")
	require.NoError(t, os.WriteFile(broken, []byte("no library"), 0o644))
	child(t, "TestChildUnavailable", "SLUICE_ACL_LIB="+broken, "SLUICE_ACL_WANT=libascendcl.so: ")
	child(t, "TestChildUnavailable", "SLUICE_ACL_LIB="+filepath.Join(dir, "nowhere.so"), "SLUICE_ACL_WANT=cannot open shared object file")
	foreign := make([]byte, 64) // the head of an ELF file of a machine that nobody has
	copy(foreign, "\x7fELF\x02\x01\x01")
	foreign[16], foreign[18], foreign[19] = 3, 0xff, 0x7f
	require.NoError(t, os.WriteFile(broken, foreign, 0o644))
	child(t, "TestChildUnavailable", "SLUICE_ACL_LIB="+broken, "SLUICE_ACL_WANT=libascendcl.so: ")
	child(t, "TestChildUnavailable", "SLUICE_EMU_DEVICES=0", "SLUICE_ACL_WANT=sees 0 devices")
	child(t, "TestChildUnavailable", "SLUICE_EMU_FAULTS=aclrtGetDeviceCount:1=507899,aclrtGetDeviceCount:1=507899", "SLUICE_ACL_WANT=507899", "SLUICE_ACL_CLASS=lost")
	child(t, "TestChildUnavailable", "SLUICE_EMU_FAULTS=aclInit:1=507033", "SLUICE_ACL_WANT=aclInit: 507033")
}

func TestChildUnavailable(t *testing.T) {
	isChild(t)
	_, err := Backend{}.Open(0, ascendrt.OpenOptions{})
	if os.Getenv("SLUICE_ACL_CLASS") == "lost" {
		require.ErrorIs(t, err, ascendrt.ErrDeviceLost)
	} else {
		require.ErrorIs(t, err, ascendrt.ErrUnavailable)
	}
	require.ErrorContains(t, err, os.Getenv("SLUICE_ACL_WANT"))
	r, err := Backend{}.Probe(context.Background())
	require.NoError(t, err)
	require.Empty(t, r.Devices)
	require.NotEmpty(t, r.Problem)
}

// since85 are calls that CANN 8.1 does not have.
var since85 = []string{"aclFinalizeReference", "aclsysGetVersionStr", "aclrtGetDeviceInfo", "aclrtDeviceGetUuid", "aclrtSetStreamAttribute",
	"aclrtGetStreamAvailableNum", "aclrtGetEventAvailNum", "aclrtMemcpyBatchAsync", "aclrtPointerGetAttributes", "aclrtIpcMemGetExportKey",
	"aclrtIpcMemImportByKey", "aclrtIpcMemClose", "aclnnRopeWithSinCosCache", "aclnnRopeWithSinCosCacheGetWorkspaceSize",
	"aclnnScatterPaKvCache", "aclnnScatterPaKvCacheGetWorkspaceSize"}

// An older release works without what it lacks; one that lacks what nothing
// works without is refused, with the symbol and the release that has it.
func TestOlderLibraries(t *testing.T) {
	needEmulation(t)
	build := func(hide ...string) string {
		dir, err := emulated.Build(emulated.Options{Hide: hide})
		require.NoError(t, err)
		return "SLUICE_ACL_LIB=" + emulated.Library(dir)
	}
	child(t, "TestChild81", build(since85...))
	child(t, "TestChildUnavailable", build("aclrtSynchronizeEventWithTimeout"), "SLUICE_ACL_WANT=is too old: aclrtSynchronizeEventWithTimeout (CANN 8.1) and 0 more required calls are absent")
}

func TestChild81(t *testing.T) {
	isChild(t)
	r, err := Backend{}.Probe(context.Background())
	require.NoError(t, err)
	require.Empty(t, r.Problem)
	require.Contains(t, strings.Join(r.Missing, "\n"), "aclrtMemcpyBatchAsync (CANN 8.5) is absent")
	d, s := open(t, ascendrt.OpenOptions{})
	c := d.Caps()
	require.False(t, c.BatchCopy || c.IPCMemory || c.RawKernels)
	require.True(t, c.Graphs)
	require.Equal(t, ascendrt.UpdateTaskGroup, c.GraphUpdate)
	require.Equal(t, -1, d.Limits().StreamsFree, "unknown")
	x, err := d.Alloc(64, ascendrt.PlaceShareable)
	require.NoError(t, err)
	_, err = d.Export(x)
	require.ErrorIs(t, err, ascendrt.ErrUnsupported)
	require.ErrorContains(t, err, "aclrtIpcMemGetExportKey")
	h, err := d.AllocHost(64)
	require.NoError(t, err)
	h.Bytes()[9] = 7
	submit(t, s, func(c *ascendrt.Commands) {
		c.CopyBatch([]ascendrt.View{x.Slice(0, 8), x.Slice(8, 8)}, []ascendrt.View{h.Slice(0, 8), h.Slice(8, 8)})
		c.Copy(h.Slice(32, 16), x.Slice(0, 16))
	})
	require.Equal(t, byte(7), h.Bytes()[41], "one by one instead")
	_, err = d.Plan(ascendrt.OpSpec{Kind: ascendrt.OpKVScatter, Type: ascendrt.BFloat16, Attr: ascendrt.ScatterAttr{KVHeads: 1, HeadDim: 16, BlockSize: 128}})
	require.ErrorIs(t, err, ascendrt.ErrUnsupported)
	require.ErrorContains(t, err, "aclnnScatterPaKvCache")
	require.NoError(t, fill(d, s))
	require.NoError(t, capture(d, s))
}

// The runtime's limits, made small.
func TestRuntimeLimits(t *testing.T) {
	needEmulation(t)
	child(t, "TestChildLimits", "SLUICE_EMU_STREAMS=3", "SLUICE_EMU_EVENTS=2", "SLUICE_EMU_MEMORY=100000000")
}

func TestChildLimits(t *testing.T) {
	isChild(t)
	d, s := open(t, ascendrt.OpenOptions{})
	require.Equal(t, 2, d.Limits().StreamsFree)
	require.Equal(t, 2, d.Limits().EventsFree)
	_, err := d.Alloc(200_000_000, ascendrt.PlaceDefault)
	e := vendor(t, err, ascendrt.ErrOutOfMemory, 207001)
	require.Contains(t, e.Text, "of 100000000 bytes free")
	a, err := d.NewStream(ascendrt.StreamOptions{})
	require.NoError(t, err)
	b, err := d.NewStream(ascendrt.StreamOptions{})
	require.NoError(t, err)
	_, err = d.NewStream(ascendrt.StreamOptions{})
	vendor(t, err, ascendrt.ErrResourceLimit, 207008)
	// A graph takes a stream of its own: the shape runs eagerly then.
	vendor(t, capture(d, s), ascendrt.ErrResourceLimit, 207008)
	require.NoError(t, fill(d, s), "the stream does not capture any more")
	require.NoError(t, a.Close())
	require.NoError(t, capture(d, s))
	for range 2 {
		_, err := d.NewEvent(ascendrt.EventExternal)
		require.NoError(t, err)
	}
	_, err = d.NewEvent(ascendrt.EventExternal)
	vendor(t, err, ascendrt.ErrResourceLimit, 207007)
	require.NoError(t, b.Close())
}

// A buffer is written in one process and read and written in another.
func TestShareMemory(t *testing.T) {
	needEmulation(t)
	d, s := open(t, ascendrt.OpenOptions{})
	x, err := d.Alloc(1<<16, ascendrt.PlaceShareable)
	require.NoError(t, err)
	submit(t, s, func(c *ascendrt.Commands) { c.Fill(x.View(), 0x42) })
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
	child(t, "TestChildShare", "SLUICE_ACL_HANDLE="+hex.EncodeToString(h))
	got := make([]byte, 1<<16)
	require.NoError(t, ascendrt.Download(context.Background(), d, s, got, x.View()))
	require.Equal(t, byte(0x43), got[0], "what the other process wrote")
}

func TestChildShare(t *testing.T) {
	isChild(t)
	d, s := open(t, ascendrt.OpenOptions{})
	h, err := hex.DecodeString(os.Getenv("SLUICE_ACL_HANDLE"))
	require.NoError(t, err)
	x, err := d.Import(h)
	require.NoError(t, err)
	again, err := d.Import(h)
	require.NoError(t, err, "one allocation, two buffers")
	got := make([]byte, x.Len())
	require.NoError(t, ascendrt.Download(context.Background(), d, s, got, x.View()))
	require.Equal(t, byte(0x42), got[len(got)-1])
	submit(t, s, func(c *ascendrt.Commands) { c.Fill(again.View(), 0x43) })
	require.NoError(t, x.FreeAfter(ascendrt.Point{}))
	require.NoError(t, again.FreeAfter(ascendrt.Point{}))
}
