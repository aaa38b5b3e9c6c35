package arith

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func randoms(rng *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(rng.NormFloat64())
		if rng.IntN(50) == 0 {
			x[i] = 0
		}
	}
	return x
}

func requireBits(t *testing.T, want, got []float32, msg string) {
	t.Helper()
	for i := range want {
		if math.Float32bits(want[i]) != math.Float32bits(got[i]) {
			t.Fatalf("%s: element %d is %v (%#x), not %v (%#x)", msg, i, got[i], math.Float32bits(got[i]), want[i], math.Float32bits(want[i]))
		}
	}
}

func levels(t *testing.T, f func(t *testing.T)) {
	best := level
	defer func() { level = best }()
	for l := avx2; l <= best; l++ {
		level = l
		t.Run(Level(), f)
	}
}

// Every kernel set gives the bits of the portable code, for all tile shapes.
func TestKernelsGiveThePortableBits(t *testing.T) {
	levels(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(1, 2))
		for rows := 1; rows <= 19; rows += 1 + rows/9 {
			for _, cols := range []int{1, 3, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 48, 63, 64, 100} {
				for _, k := range []int{0, 1, 2, 5, 32, 130} {
					cs, as, bs := cols+3, k+1, cols+5
					a, b, c := randoms(rng, rows*as), randoms(rng, max(1, k)*bs), randoms(rng, rows*cs)
					for _, from := range []Origin{Start, Continue} {
						want := append([]float32(nil), c...)
						mulAccGo(want, cs, a, as, b, bs, rows, k, cols, from)
						got := append([]float32(nil), c...)
						MulAcc(got, cs, a, as, b, bs, rows, k, cols, from)
						requireBits(t, want, got, fmt.Sprint(rows, cols, k, from))
					}
				}
			}
		}
		for _, n := range []int{1, 7, 8, 16, 17, 33, 100, 1000} {
			x := randoms(rng, n)
			for i := range x {
				x[i] *= 40
			}
			x[rng.IntN(n)] = float32(math.Inf(-1))
			x[rng.IntN(n)] = 1e9
			want, got := append([]float32(nil), x...), append([]float32(nil), x...)
			expSubGo(want, 0.3, 1.5)
			ExpSub(got, 0.3, 1.5)
			requireBits(t, want, got, "exp")
			u := randoms(rng, n)
			siluMulGo(want, x, u)
			SiluMul(got, x, u)
			for i := range want {
				if want[i] != want[i] {
					require.True(t, got[i] != got[i])
					want[i], got[i] = 0, 0
				}
			}
			requireBits(t, want, got, "silu")
			bits := []uint32{0x3f808000, 0x3f818000, 0x3f808001, 0x7f7fffff, 0x7f800001, 0x80000000, 0xff800000, 0xffc00001}
			for i := range x {
				if i%3 == 0 {
					x[i] = math.Float32frombits(bits[rng.IntN(len(bits))])
				}
			}
			wantHalf, half := make([]uint16, n), make([]uint16, n)
			toBF16Go(wantHalf, x)
			ToBF16(half, x)
			require.Equal(t, wantHalf, half)
			fromBF16Go(want, half)
			FromBF16(got, half)
			for i := range want {
				require.Equal(t, math.Float32bits(want[i]), math.Float32bits(got[i]))
			}
			x = randoms(rng, n)
			require.Equal(t, maxGo(x[1:], x[0]), Max(x))
		}
		for rows := 1; rows <= 34; rows += 3 {
			for _, n := range []int{1, 5, 8, 9, 16, 31, 64} {
				ds, ss := rows+2, n+3
				src := randoms(rng, rows*ss)
				want, got := make([]float32, n*ds), make([]float32, n*ds)
				transposeGo(want, ds, src, ss, rows, 0, n)
				TransposeInto(got, ds, src, ss, rows, n)
				requireBits(t, want, got, "transpose")
			}
		}
	})
}
