//go:build cgo && linux

package cuda

import (
	"context"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
)

const scaleSource = `
extern "C" __global__ void scale(float* x, float f, long long n) {
	long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
	if (i < n) x[i] *= f;
}`

// scale multiplies n numbers by f, with a kernel that is compiled here.
func scale(ctx context.Context, d ascendrt.Device, s ascendrt.Stream, x ascendrt.View, f float32, n int) error {
	m, err := d.LoadProgram(ascendrt.Program{Kind: "cuda-c", Name: "scale.cu", Data: []byte(scaleSource)})
	if err != nil {
		return err // with the compiler's log
	}
	defer m.Close()
	k, err := m.Kernel("scale")
	if err != nil {
		return err
	}
	args, err := binary.Append(nil, binary.LittleEndian, struct { // the parameters as C lays them out
		X uint64
		F float32
		_ uint32
		N int64
	}{uint64(x.Addr), f, 0, int64(n)})
	if err != nil {
		return err
	}
	var c ascendrt.Commands
	c.Launch(k, ascendrt.Grid{X: uint32(n+255) / 256, Y: 1, Z: 1, BX: 256, BY: 1, BZ: 1}, args)
	p, _, err := s.Submit(&c)
	if err != nil {
		return err
	}
	return p.Wait(ctx)
}

func TestKernelOfOnesOwn(t *testing.T) {
	d, s := open(t, ascendrt.OpenOptions{})
	if emulated {
		t.Skip("the emulation has only the kernels of this package")
	}
	const n = 1000
	numbers := make([]float32, n)
	for i := range numbers {
		numbers[i] = float32(i)
	}
	data, err := binary.Append(nil, binary.LittleEndian, numbers)
	require.NoError(t, err)
	x, err := d.Alloc(len(data), ascendrt.PlaceDefault)
	require.NoError(t, err)
	require.NoError(t, ascendrt.Upload(t.Context(), d, s, x.View(), data))
	require.NoError(t, scale(t.Context(), d, s, x.View(), 0.5, n))
	require.NoError(t, ascendrt.Download(t.Context(), d, s, data, x.View()))
	_, err = binary.Decode(data, binary.LittleEndian, numbers)
	require.NoError(t, err)
	for i, v := range numbers {
		require.Equal(t, float32(i)/2, v)
	}
	require.NoError(t, x.FreeAfter(ascendrt.Point{}))
}
