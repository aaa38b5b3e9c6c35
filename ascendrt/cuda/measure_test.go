//go:build cgo && linux

package cuda

import (
	"fmt"
	"os"
	"sort"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
)

// TestMeasure prints what testdata/plain.c prints, through the Device: medians
// of the time to enqueue and of the time until done, in microseconds. It runs
// where SLUICE_CUDA_MEASURE names the file for the cubin that plain.c loads.
func TestMeasure(t *testing.T) {
	cubin := os.Getenv("SLUICE_CUDA_MEASURE")
	if cubin == "" {
		t.Skip("SLUICE_CUDA_MEASURE is not set")
	}
	const launches, big, small = 280, 256 << 20, 64 << 10
	d, st := open(t, ascendrt.OpenOptions{})
	p := ascendrt.Program{Kind: "cuda-c", Name: "empty.cu", Data: []byte(`extern "C" __global__ void empty(long long a) {}`)}
	image, err := d.(*device).compile(p)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(cubin, image, 0o644))
	m, err := d.LoadProgram(p)
	require.NoError(t, err)
	k, err := m.Kernel("empty")
	require.NoError(t, err)
	grid, arg := ascendrt.Grid{X: 1, Y: 1, Z: 1, BX: 32, BY: 1, BZ: 1}, []byte{1, 0, 0, 0, 0, 0, 0, 0}
	host, err := d.AllocHost(big)
	require.NoError(t, err)
	dev, err := d.Alloc(2*big, ascendrt.PlaceDefault)
	require.NoError(t, err)
	for i := range host.Bytes() {
		host.Bytes()[i] = 1
	}
	s := st.(*stream)
	measure := func(what string, n int, f func(c *ascendrt.Commands)) {
		var c ascendrt.Commands
		f(&c)
		enq, all := make([]float64, 0, n), make([]float64, 0, n)
		for i := -20; i < n; i++ {
			t0 := time.Now()
			p, _, err := st.Submit(&c)
			t1 := time.Now()
			if err != nil {
				t.Fatal(err)
			}
			for atomic.LoadUint64(s.done) < p.Seq {
			}
			t2 := time.Now()
			if i >= 0 {
				enq, all = append(enq, float64(t1.Sub(t0).Nanoseconds())/1e3), append(all, float64(t2.Sub(t0).Nanoseconds())/1e3)
			}
		}
		sort.Float64s(enq)
		sort.Float64s(all)
		fmt.Printf("go %s %.2f %.2f\n", what, enq[n/2], all[n/2])
	}
	batch := func(c *ascendrt.Commands) {
		for range launches {
			c.Launch(k, grid, arg)
		}
	}
	var c ascendrt.Commands
	batch(&c)
	g, err := d.Capture(st, &c, ascendrt.CaptureOptions{})
	require.NoError(t, err)
	measure("nothing", 2000, func(*ascendrt.Commands) {})
	measure("launch", 2000, func(c *ascendrt.Commands) { c.Launch(k, grid, arg) })
	measure("batch", 300, batch)
	measure("graph", 1000, func(c *ascendrt.Commands) { c.Graph(g) })
	measure("step", 1000, func(c *ascendrt.Commands) {
		c.Copy(dev.View(), host.Slice(0, small))
		c.Graph(g)
		c.Copy(host.Slice(0, 4096), dev.Slice(0, 4096))
	})
	measure("h2d_64K", 1000, func(c *ascendrt.Commands) { c.Copy(dev.View(), host.Slice(0, small)) })
	measure("h2d_256M", 12, func(c *ascendrt.Commands) { c.Copy(dev.View(), host.View()) })
	measure("d2h_256M", 12, func(c *ascendrt.Commands) { c.Copy(host.View(), dev.Slice(0, big)) })
	measure("d2d_256M", 30, func(c *ascendrt.Commands) { c.Copy(dev.Slice(big, big), dev.Slice(0, big)) })
	require.NoError(t, g.Close())
	require.NoError(t, m.Close())
	require.NoError(t, dev.FreeAfter(ascendrt.Point{}))
	require.NoError(t, host.FreeAfter(ascendrt.Point{}))
}
