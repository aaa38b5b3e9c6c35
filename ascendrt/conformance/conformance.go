// Package conformance is the test suite of ascendrt.Device, written once and
// run by every backend's tests. It checks the numbered rules of package
// ascendrt, memory, ordering, events, capture, update, limits, errors and
// leaks, and compares named operations with the host backend.
package conformance

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
)

// Suite is one backend under test.
type Suite struct {
	// Open opens a fresh device; it skips the test if there is none.
	Open func(t *testing.T, o ascendrt.OpenOptions) ascendrt.Device
	// Lose makes the device lost, as a fault would; nil: those tests skip.
	// A real device loses the process with it, so its backend tests that apart.
	Lose func(d ascendrt.Device)
	// Tolerance of named operations where Caps.DeterministicReduce is false:
	// largest ‖got−host‖/‖host‖.
	Tolerance float64
	// Busy is the dimension of the products that keep a stream busy; 0: 384.
	// An emulated device wants a small one.
	Busy int
	// BlockSize is that of KV caches; 0: 16.
	BlockSize int
	// Lacks tells which operations the runtime does not have; nil: it has all.
	// Their plans must answer ErrUnsupported.
	Lacks func(spec ascendrt.OpSpec) bool
}

func (s Suite) blockSize() int {
	if s.BlockSize == 0 {
		return 16
	}
	return s.BlockSize
}

func (s Suite) lacks(spec ascendrt.OpSpec) bool { return s.Lacks != nil && s.Lacks(spec) }

// Run runs the whole suite.
func Run(t *testing.T, s Suite) {
	for _, c := range []struct {
		name string
		run  func(*testing.T, Suite)
	}{
		{"memory", testMemory},
		{"copies", testCopies},
		{"range errors", testRangeErrors},
		{"out of memory", testOutOfMemory},
		{"free after a point", testFreeAfter},
		{"submissions do not interleave", testAtomicSubmit},
		{"points", testPoints},
		{"waits", testWaits},
		{"events order streams", testEventOrder},
		{"event timing", testEventTiming},
		{"branches on other streams", testBranches},
		{"capture and replay", testCapture},
		{"capture rules", testCaptureRules},
		{"external events", testExternalEvents},
		{"graph update", testUpdate},
		{"graph launches do not overlap", testNoOverlap},
		{"graph pins its buffers", testGraphPins},
		{"limits", testLimits},
		{"handles after close", testClosedHandles},
		{"wrong operations", testWrongOps},
		{"partial acceptance", testPartialAcceptance},
		{"nothing to do", testNothingToDo},
		{"named operations", testOps},
		{"a decoder layer, eager and captured", testLayer},
		{"many goroutines", testManyGoroutines},
		{"lost device", testLost},
		{"close", testClose},
		{"open while closing", testOpenWhileClosing},
		{"dropped handles are reported", testDropped},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(t, s) })
	}
}

// bench is a device with a stream, and helpers that fail the test.
type bench struct {
	t    *testing.T
	d    ascendrt.Device
	s    ascendrt.Stream
	busy int
}

func (s Suite) bench(t *testing.T, o ascendrt.OpenOptions) *bench {
	t.Helper()
	d := s.Open(t, o)
	b := &bench{t: t, d: d, busy: s.Busy}
	t.Cleanup(func() { require.NoError(t, d.Close(context.Background())) })
	b.s = b.stream()
	return b
}

// closed asserts that every handle made through the bench has been closed.
func (b *bench) closed() {
	b.t.Helper()
	require.NoError(b.t, b.s.Close())
	l := b.d.Live()
	require.Zero(b.t, l, "handles left")
}

func (b *bench) stream() ascendrt.Stream {
	b.t.Helper()
	s, err := b.d.NewStream(ascendrt.StreamOptions{})
	require.NoError(b.t, err)
	return s
}

func (b *bench) event(k ascendrt.EventKind) ascendrt.Event {
	b.t.Helper()
	e, err := b.d.NewEvent(k)
	require.NoError(b.t, err)
	return e
}

func (b *bench) alloc(n int) ascendrt.Buffer {
	b.t.Helper()
	x, err := b.d.Alloc(n, ascendrt.PlaceDefault)
	require.NoError(b.t, err)
	return x
}

func (b *bench) pinned(n int) ascendrt.HostBuffer {
	b.t.Helper()
	x, err := b.d.AllocHost(n)
	require.NoError(b.t, err)
	return x
}

func (b *bench) free(xs ...interface {
	FreeAfter(ascendrt.Point) error
}) {
	b.t.Helper()
	for _, x := range xs {
		require.NoError(b.t, x.FreeAfter(ascendrt.Point{}))
	}
}

func (b *bench) submit(s ascendrt.Stream, c *ascendrt.Commands) ascendrt.Point {
	b.t.Helper()
	p, n, err := s.Submit(c)
	require.NoError(b.t, err)
	require.Equal(b.t, c.Len(), n)
	return p
}

func (b *bench) wait(p ascendrt.Point) {
	b.t.Helper()
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	require.NoError(b.t, p.Wait(ctx))
	require.True(b.t, p.Done())
}

// do submits to the bench's stream and waits.
func (b *bench) do(f func(c *ascendrt.Commands)) {
	b.t.Helper()
	var c ascendrt.Commands
	f(&c)
	b.wait(b.submit(b.s, &c))
}

func (b *bench) write(v ascendrt.View, data []byte) {
	b.t.Helper()
	require.NoError(b.t, ascendrt.Upload(context.Background(), b.d, b.s, v, data))
}

func (b *bench) read(v ascendrt.View) []byte {
	b.t.Helper()
	data := make([]byte, v.Len)
	require.NoError(b.t, ascendrt.Download(context.Background(), b.d, b.s, data, v))
	return data
}

// slow gives commands that keep a stream busy for at least the duration, by
// large products; the returned release frees what they use.
func (b *bench) slow(least time.Duration) (c *ascendrt.Commands, release func()) {
	b.t.Helper()
	n := b.busy
	if n == 0 {
		n = 384
	}
	op, err := b.d.Plan(ascendrt.OpSpec{Kind: ascendrt.OpMatmul, Type: ascendrt.Float32, Attr: ascendrt.MatmulAttr{In: n, Out: n}})
	require.NoError(b.t, err)
	buf := b.alloc(3 * n * n * 4)
	m := func(i int) ascendrt.Tensor {
		return ascendrt.NewTensor(buf.Slice(i*n*n*4, n*n*4), ascendrt.Float32, n, n)
	}
	ws := b.alloc(max(1, op.Workspace()))
	c = &ascendrt.Commands{}
	c.Fill(buf.View(), 0)
	add := func(k int) {
		for range k {
			c.Op(op, ws.View(), m(0), m(1), m(2))
		}
	}
	add(4)
	b.wait(b.submit(b.s, c)) // first use compiles and loads
	took := time.Hour
	for range 3 { // the shortest: others use this machine too
		begin := time.Now()
		b.wait(b.submit(b.s, c))
		took = max(min(took, time.Since(begin)), time.Microsecond)
	}
	add(4 * int(2*least/took+1))
	return c, func() {
		b.free(buf, ws)
		require.NoError(b.t, op.Close())
	}
}

func ramp(n, from int) []byte {
	x := make([]byte, n)
	for i := range x {
		x[i] = byte(i*7 + from)
	}
	return x
}
