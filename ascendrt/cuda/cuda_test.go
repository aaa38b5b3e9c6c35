//go:build cgo && linux

package cuda

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/conformance"
	"github.com/sluice-serving/sluice/ascendrt/internal/base/basetest"
)

func openDevice(t testing.TB, o ascendrt.OpenOptions) ascendrt.Device {
	t.Helper()
	if b := use(libCUDA); !b.OK {
		t.Skip("no CUDA driver: ", b.Problem)
	}
	if o.CacheDir == "" {
		o.CacheDir = filepath.Join(os.TempDir(), "sluice-cuda-test-cache")
	}
	d, err := Backend{}.Open(0, o)
	require.NoError(t, err)
	return d
}

func TestConformance(t *testing.T) {
	s := conformance.Suite{Open: func(t *testing.T, o ascendrt.OpenOptions) ascendrt.Device { return openDevice(t, o) }}
	if emulated {
		s.Busy = 48
	}
	conformance.Run(t, s)
}

// open gives a device and a stream that end with the test.
func open(t *testing.T, o ascendrt.OpenOptions) (ascendrt.Device, ascendrt.Stream) {
	t.Helper()
	d := openDevice(t, o)
	return d, basetest.Stream(t, d)
}

var submit = basetest.Submit

func TestProbeNamesLibrariesAndDevices(t *testing.T) {
	r, err := Backend{}.Probe(context.Background())
	require.NoError(t, err)
	require.Len(t, r.Libraries, 4)
	if r.Problem != "" {
		require.Empty(t, r.Devices)
		require.Contains(t, r.Problem, "SLUICE_CUDA_LIB", "the text says what to do")
		t.Skip(r.Problem)
	}
	require.NotEmpty(t, r.Devices)
	t.Logf("%+v", r)
}

func TestOpenRefuses(t *testing.T) {
	if !use(libCUDA).OK {
		_, err := Backend{}.Open(0, ascendrt.OpenOptions{})
		require.ErrorIs(t, err, ascendrt.ErrUnavailable)
		t.Skip(err)
	}
	_, err := Backend{}.Open(99, ascendrt.OpenOptions{})
	require.ErrorIs(t, err, ascendrt.ErrUnavailable)
	_, err = Backend{}.Open(-1, ascendrt.OpenOptions{})
	require.ErrorIs(t, err, ascendrt.ErrUnavailable)
	_, err = Backend{}.Open(0, ascendrt.OpenOptions{Faults: "oom@alloc:1"})
	require.ErrorIs(t, err, ascendrt.ErrUnsupported)
}

const addSource = `
extern "C" __global__ void add3(float* y, const float* a, const float* b, long long n) {
	long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
	if (i < n) y[i] = a[i] + b[i];
}`

func TestRawKernels(t *testing.T) {
	d, s := open(t, ascendrt.OpenOptions{})
	_, err := d.LoadProgram(ascendrt.Program{Kind: "cuda-c", Name: "bad.cu", Data: []byte("#error does not compile\n")})
	require.ErrorIs(t, err, ascendrt.ErrCompile)
	require.ErrorContains(t, err, "bad.cu")
	require.ErrorContains(t, err, "does not compile", "the compiler's log is in the error")
	_, err = d.LoadProgram(ascendrt.Program{Kind: "cubin", Name: "junk", Data: make([]byte, 100)})
	require.ErrorIs(t, err, ascendrt.ErrInvalid)
	_, err = d.LoadProgram(ascendrt.Program{Kind: "ascend-elf", Name: "x", Data: []byte{1}})
	require.ErrorIs(t, err, ascendrt.ErrUnsupported)
	if emulated {
		t.Skip("the emulation has only the kernels of this package")
	}
	m, err := d.LoadProgram(ascendrt.Program{Kind: "cuda-c", Name: "add.cu", Data: []byte(addSource)})
	require.NoError(t, err)
	_, err = m.Kernel("nothing")
	require.Error(t, err)
	k, err := m.Kernel("add3")
	require.NoError(t, err)
	const n = 1000
	x, err := d.Alloc(3*4*n, ascendrt.PlaceDefault)
	require.NoError(t, err)
	h, err := d.AllocHost(3 * 4 * n)
	require.NoError(t, err)
	for i := range n {
		binary.LittleEndian.PutUint32(h.Bytes()[4*(n+i):], math.Float32bits(float32(i)))
		binary.LittleEndian.PutUint32(h.Bytes()[4*(2*n+i):], math.Float32bits(0.5))
	}
	args := func(b int) []byte {
		var a []byte
		for _, v := range []uint64{uint64(x.Addr()), uint64(x.Slice(4*n, 1).Addr), uint64(x.Slice(4*n*b, 1).Addr), n} {
			a = binary.LittleEndian.AppendUint64(a, v)
		}
		return a
	}
	g := ascendrt.Grid{X: 4, Y: 1, Z: 1, BX: 256, BY: 1, BZ: 1}
	check := func(want func(i int) float32) {
		t.Helper()
		for i := range n {
			require.Equal(t, want(i), math.Float32frombits(binary.LittleEndian.Uint32(h.Bytes()[4*i:])))
		}
	}
	submit(t, s, func(c *ascendrt.Commands) {
		c.Copy(x.View(), h.View())
		c.Launch(k, g, args(2))
		c.Copy(h.View(), x.View())
	})
	check(func(i int) float32 { return float32(i) + 0.5 })
	var c ascendrt.Commands
	c.Launch(k, g, args(2)[:24])
	_, _, err = s.Submit(&c)
	require.ErrorIs(t, err, ascendrt.ErrInvalid, "arguments of the wrong size")
	c.Reset()
	c.Launch(k, ascendrt.Grid{X: 4, Y: 1, Z: 1, BX: 4096, BY: 1, BZ: 1}, args(2))
	_, n2, err := s.Submit(&c)
	require.ErrorIs(t, err, ascendrt.ErrInvalid, "a block too large")
	require.Zero(t, n2)

	// A launch of a graph is updated by argument words.
	c.Reset()
	ref := c.Launch(k, g, args(2))
	c.Copy(h.Slice(0, 4*n), x.Slice(0, 4*n))
	gr, err := d.Capture(s, &c, ascendrt.CaptureOptions{Updatable: []ascendrt.OpRef{ref}})
	require.NoError(t, err)
	require.NoError(t, gr.Update([]ascendrt.Slot{{Op: ref, Slot: 2, I64: []int64{int64(x.Slice(4*n, 1).Addr)}}}))
	submit(t, s, func(c *ascendrt.Commands) { c.Graph(gr) })
	check(func(i int) float32 { return float32(2 * i) })
	require.ErrorIs(t, gr.Update([]ascendrt.Slot{{Op: ref, Slot: 4, I64: []int64{0}}}), ascendrt.ErrGraphUpdate)
	require.NoError(t, gr.Close())
	require.NoError(t, m.Close())
	require.NoError(t, m.Close())
	c.Reset()
	c.Launch(k, g, args(2))
	_, _, err = s.Submit(&c)
	require.ErrorIs(t, err, ascendrt.ErrClosed)
	require.NoError(t, x.FreeAfter(ascendrt.Point{}))
	require.NoError(t, h.FreeAfter(ascendrt.Point{}))
}

func TestPoolMemory(t *testing.T) {
	d, s := open(t, ascendrt.OpenOptions{})
	x, err := d.Alloc(1<<20, ascendrt.PlacePool)
	require.NoError(t, err)
	p := submit(t, s, func(c *ascendrt.Commands) { c.Fill(x.View(), 3) })
	got := make([]byte, 1<<20)
	require.NoError(t, ascendrt.Download(context.Background(), d, s, got, x.View()))
	require.Equal(t, byte(3), got[1<<20-1])
	_, err = d.Export(x)
	require.ErrorIs(t, err, ascendrt.ErrUnsupported)
	require.NoError(t, x.FreeAfter(p))
	require.NoError(t, s.Close())
	require.Zero(t, d.Live())
}

// Compiled kernels come back from the disk cache; a damaged entry is compiled again.
func TestKernelCache(t *testing.T) {
	dir := t.TempDir()
	plan := func() {
		d, _ := open(t, ascendrt.OpenOptions{CacheDir: dir})
		o, err := d.Plan(ascendrt.OpSpec{Kind: ascendrt.OpAdd, Type: ascendrt.Float32, Attr: ascendrt.AddAttr{Dim: 4}})
		require.NoError(t, err)
		require.NoError(t, o.Close())
	}
	if !use(libCUDA).OK {
		t.Skip("no CUDA driver")
	}
	plan()
	files, err := filepath.Glob(filepath.Join(dir, "*.cubin"))
	require.NoError(t, err)
	require.Len(t, files, 1)
	before, err := os.Stat(files[0])
	require.NoError(t, err)
	plan()
	after, err := os.Stat(files[0])
	require.NoError(t, err)
	require.Equal(t, before.ModTime(), after.ModTime())
	require.NoError(t, os.WriteFile(files[0], []byte("half a file"), 0o644))
	plan()
	after, err = os.Stat(files[0])
	require.NoError(t, err)
	require.Equal(t, before.Size(), after.Size())
}

// A kernel that traps loses the device, and with it the process: so a child shows it.
func TestFaultLosesTheDevice(t *testing.T) {
	if !use(libCUDA).OK {
		t.Skip("no CUDA driver")
	}
	basetest.Child(t, "TestChildFault")
}

func TestChildFault(t *testing.T) {
	basetest.IsChild(t)
	d := openDevice(t, ascendrt.OpenOptions{})
	s, err := d.NewStream(ascendrt.StreamOptions{})
	require.NoError(t, err)
	x, err := d.Alloc(64, ascendrt.PlaceDefault)
	require.NoError(t, err)
	e, err := d.NewEvent(ascendrt.EventTiming)
	require.NoError(t, err)
	o, err := d.Plan(ascendrt.OpSpec{Kind: ascendrt.OpEmbedding, Type: ascendrt.Float32, Attr: ascendrt.EmbeddingAttr{Vocab: 2, Hidden: 4}})
	require.NoError(t, err)
	submit(t, s, func(c *ascendrt.Commands) { c.Fill(x.View(), 5) }) // ids far past the end
	var c ascendrt.Commands
	c.Op(o, ascendrt.View{}, ascendrt.NewTensor(x.Slice(0, 4), ascendrt.Int32, 1), ascendrt.NewTensor(x.Slice(16, 32), ascendrt.Float32, 2, 4), ascendrt.NewTensor(x.Slice(48, 16), ascendrt.Float32, 1, 4))
	p, _, err := s.Submit(&c)
	if err == nil {
		err = p.Wait(context.Background())
	}
	require.ErrorIs(t, err, ascendrt.ErrDeviceLost)
	var de *ascendrt.Error
	require.ErrorAs(t, err, &de)
	require.NotZero(t, de.Code)
	t.Log(err)
	begin := time.Now()
	lost := func(err error) { t.Helper(); require.ErrorIs(t, err, ascendrt.ErrDeviceLost) }
	_, err = d.Alloc(8, ascendrt.PlaceDefault)
	lost(err)
	_, err = d.AllocHost(8)
	lost(err)
	_, err = d.NewStream(ascendrt.StreamOptions{})
	lost(err)
	_, err = d.NewEvent(ascendrt.EventOrder)
	lost(err)
	_, err = d.Plan(o.Spec())
	lost(err)
	_, _, err = s.Submit(&c)
	lost(err)
	_, err = d.Capture(s, &c, ascendrt.CaptureOptions{})
	lost(err)
	_, err = e.Done()
	lost(err)
	_, _, err = d.MemInfo()
	lost(err)
	lost(x.FreeAfter(ascendrt.Point{}))
	lost(p.Wait(context.Background()))
	lost(d.Health())
	require.False(t, p.Done())
	ctx, stop := context.WithTimeout(context.Background(), 10*time.Second)
	defer stop()
	_ = d.Close(ctx)
	require.NoError(t, ctx.Err())
	require.Less(t, time.Since(begin), 5*time.Second)
}

func TestShareMemory(t *testing.T) {
	d, s := open(t, ascendrt.OpenOptions{})
	if !d.Caps().IPCMemory {
		t.Skip("no IPC")
	}
	basetest.ShareMemory(t, d, s, "TestChildShare")
}

func TestChildShare(t *testing.T) {
	basetest.IsChild(t)
	d, s := open(t, ascendrt.OpenOptions{})
	basetest.SharedMemory(t, d, s)
}

// A driver without an optional call answers ErrUnsupported from that call alone.
func TestAbsentSymbol(t *testing.T) {
	if !emulated {
		t.Skip("needs the emulated driver")
	}
	basetest.Child(t, "TestChildAbsent", "SLUICE_CUDA_EMU_HIDE=cuGraphExecKernelNodeSetParams")
	basetest.Child(t, "TestChildTooOld", "SLUICE_CUDA_EMU_HIDE=cuGraphInstantiateWithFlags")
}

func TestChildAbsent(t *testing.T) {
	basetest.IsChild(t)
	d, s := open(t, ascendrt.OpenOptions{})
	require.Equal(t, ascendrt.UpdateNone, d.Caps().GraphUpdate)
	o, err := d.Plan(ascendrt.OpSpec{Kind: ascendrt.OpAdd, Type: ascendrt.Float32, Attr: ascendrt.AddAttr{Dim: 4}})
	require.NoError(t, err)
	x, err := d.Alloc(64, ascendrt.PlaceDefault)
	require.NoError(t, err)
	var c ascendrt.Commands
	row := ascendrt.NewTensor(x.View(), ascendrt.Float32, 1, 4)
	ref := c.Op(o, ascendrt.View{}, row, row, row)
	g, err := d.Capture(s, &c, ascendrt.CaptureOptions{Updatable: []ascendrt.OpRef{ref}})
	require.NoError(t, err)
	err = g.Update([]ascendrt.Slot{{Op: ref, Slot: 0, Addr: x.View()}})
	require.ErrorIs(t, err, ascendrt.ErrUnsupported)
	require.ErrorContains(t, err, "cuGraphExecKernelNodeSetParams")
	r, err := Backend{}.Probe(context.Background())
	require.NoError(t, err)
	require.Contains(t, strings.Join(r.Missing, "\n"), "cuGraphExecKernelNodeSetParams")
}

func TestChildTooOld(t *testing.T) {
	basetest.IsChild(t)
	_, err := Backend{}.Open(0, ascendrt.OpenOptions{})
	require.ErrorIs(t, err, ascendrt.ErrUnavailable)
	require.ErrorContains(t, err, "cuGraphInstantiateWithFlags")
	require.ErrorContains(t, err, "newer driver")
}

// A matmul that may sum in any order goes to the vendor's library.
func TestFreeMatmul(t *testing.T) {
	d, s := open(t, ascendrt.OpenOptions{})
	for _, typ := range []ascendrt.DType{ascendrt.Float32, ascendrt.BFloat16} {
		for _, layout := range []ascendrt.WeightLayout{ascendrt.WeightsMK, ascendrt.WeightsKM} {
			const n, k, m = 24, 64, 48
			spec := ascendrt.OpSpec{Kind: ascendrt.OpMatmul, Type: typ, Attr: ascendrt.MatmulAttr{In: k, Out: m, Weights: layout, OutType: ascendrt.Float32, Order: ascendrt.SumFree}}
			free, err := d.Plan(spec)
			if errors.Is(err, ascendrt.ErrUnavailable) {
				require.ErrorContains(t, err, "SLUICE_CUBLASLT_LIB")
				t.Skip(err)
			}
			require.NoError(t, err)
			a := spec.Attr.(ascendrt.MatmulAttr)
			a.Order = ascendrt.SumFixed
			spec.Attr = a
			fixed, err := d.Plan(spec)
			require.NoError(t, err)
			sz := typ.Size()
			x, err := d.Alloc((n*k+k*m)*sz+2*n*m*4, ascendrt.PlaceDefault)
			require.NoError(t, err)
			ws, err := d.Alloc(free.Workspace(), ascendrt.PlaceDefault)
			require.NoError(t, err)
			data := make([]byte, (n*k+k*m)*sz)
			for i := range n*k + k*m {
				v := float32(i*7%13-6) / 8
				if typ == ascendrt.Float32 {
					binary.LittleEndian.PutUint32(data[4*i:], math.Float32bits(v))
				} else {
					binary.LittleEndian.PutUint16(data[2*i:], uint16(math.Float32bits(v)>>16))
				}
			}
			require.NoError(t, ascendrt.Upload(context.Background(), d, s, x.Slice(0, len(data)), data))
			w := ascendrt.NewTensor(x.Slice(n*k*sz, k*m*sz), typ, m, k)
			if layout == ascendrt.WeightsKM {
				w = ascendrt.NewTensor(x.Slice(n*k*sz, k*m*sz), typ, k, m)
			}
			in := ascendrt.NewTensor(x.Slice(0, n*k*sz), typ, n, k)
			y0 := ascendrt.NewTensor(x.Slice(len(data), n*m*4), ascendrt.Float32, n, m)
			y1 := ascendrt.NewTensor(x.Slice(len(data)+n*m*4, n*m*4), ascendrt.Float32, n, m)
			submit(t, s, func(c *ascendrt.Commands) {
				c.Op(free, ws.View(), in, w, y0)
				c.Op(fixed, ascendrt.View{}, in, w, y1)
			})
			// Captured too.
			var c ascendrt.Commands
			c.Op(free, ws.View(), in, w, y0)
			g, err := d.Capture(s, &c, ascendrt.CaptureOptions{})
			require.NoError(t, err)
			submit(t, s, func(c *ascendrt.Commands) { c.Graph(g) })
			got := make([]byte, 2*n*m*4)
			require.NoError(t, ascendrt.Download(context.Background(), d, s, got, x.Slice(len(data), len(got))))
			for i := range n * m {
				a := math.Float32frombits(binary.LittleEndian.Uint32(got[4*i:]))
				b := math.Float32frombits(binary.LittleEndian.Uint32(got[4*(n*m+i):]))
				require.InDelta(t, b, a, 1e-3)
			}
			require.NoError(t, g.Close())
			require.NoError(t, free.Close())
			require.NoError(t, fixed.Close())
			require.NoError(t, x.FreeAfter(ascendrt.Point{}))
			require.NoError(t, ws.FreeAfter(ascendrt.Point{}))
		}
	}
}

func TestSeveralDevices(t *testing.T) { conformance.Several(t, Backend{}) }

func TestCloseFindsAStreamBeingOpened(t *testing.T) {
	d := openDevice(t, ascendrt.OpenOptions{})
	basetest.StreamBeingOpened(t, d, &d.(*device).Core, func(s ascendrt.Stream) bool { return s.(*stream).freed })
}

func BenchmarkSubmit(b *testing.B) {
	basetest.BenchmarkSubmit(b, openDevice(b, ascendrt.OpenOptions{}))
}
