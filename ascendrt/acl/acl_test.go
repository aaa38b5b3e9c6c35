//go:build cgo && linux

package acl

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/internal/base/basetest"
)

// open gives a device and a stream that end with the test.
func open(t *testing.T, o ascendrt.OpenOptions) (ascendrt.Device, ascendrt.Stream) {
	t.Helper()
	d := openDevice(t, o)
	return d, basetest.Stream(t, d)
}

func needEmulation(t *testing.T) {
	t.Helper()
	if !emulation() {
		t.Skip("needs the emulated libraries")
	}
}

var submit = basetest.Submit

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

func TestCloseFindsAStreamBeingOpened(t *testing.T) {
	d := openDevice(t, ascendrt.OpenOptions{})
	basetest.StreamBeingOpened(t, d, &d.(*device).Core, func(s ascendrt.Stream) bool { return s.(*stream).freed })
}
