package arith

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// The exponential stays within 2 ulp of the exact value over its range.
func TestExpIsAccurate(t *testing.T) {
	worst := 0.0
	for x := float32(-87); x <= 88; x += 0.0137 {
		want := math.Exp(float64(x))
		ulp := float64(math.Nextafter32(float32(want), float32(math.Inf(1)))) - float64(float32(want))
		worst = max(worst, math.Abs(float64(exp1(x))-want)/ulp)
	}
	require.Less(t, worst, 2.0)
	require.Equal(t, float32(1), exp1(0))
	require.Zero(t, exp1(-88))
	require.True(t, math.IsInf(float64(exp1(89)), 1))
	nan := exp1(float32(math.NaN()))
	require.True(t, nan != nan)
}

// A sum does not depend on the rows beside it.
func TestSumsAreThoseOfEachRowAlone(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	x := make([]float32, 11*40)
	for i := range x {
		x[i] = rng.Float32()
	}
	n := []int{40, 0, 3, 17, 40, 39, 1, 2, 30, 12, 9}
	got := make([]float32, len(n))
	Sums(got, x, 40, n)
	for r := range n {
		require.Equal(t, sumFrom(0, x[r*40:][:n[r]]), got[r])
	}
}

// Rounding to bfloat16 is to nearest even.
func TestBF16RoundsToNearestEven(t *testing.T) {
	for _, c := range []struct{ in, want uint32 }{
		{0x3f800000, 0x3f80}, {0x3f808000, 0x3f80}, {0x3f818000, 0x3f82}, {0x3f808001, 0x3f81},
		{0x7f7fffff, 0x7f80}, {0x7f800001, 0x7fc0}, {0x80000000, 0x8000},
	} {
		require.Equal(t, uint16(c.want), BF16(math.Float32frombits(c.in)), "%#x", c.in)
	}
}

func BenchmarkMulAcc(b *testing.B) {
	const rows, k, cols = 512, 128, 32
	a, w, c := make([]float32, rows*k), make([]float32, k*cols), make([]float32, rows*cols)
	for b.Loop() {
		MulAcc(c, cols, a, k, w, cols, rows, k, cols, Start)
	}
	b.ReportMetric(float64(rows*k*cols)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GMAC/s")
}

func BenchmarkMulAccOneRow(b *testing.B) {
	const k, cols = 128, 512
	a, w, c := make([]float32, k), make([]float32, k*cols), make([]float32, cols)
	for b.Loop() {
		MulAcc(c, cols, a, k, w, cols, 1, k, cols, Start)
	}
	b.ReportMetric(float64(k*cols)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GMAC/s")
}

func BenchmarkExp(b *testing.B) {
	x := make([]float32, 512)
	for b.Loop() {
		ExpSub(x, 0.1, 1)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/512, "ns/elem")
}
