//go:build !amd64

package arith

// Level names the kernels in use.
func Level() string { return "go" }

func mulAcc(c []float32, cs int, a []float32, as int, b []float32, bs int, rows, k, cols int, from Origin) {
	mulAccGo(c, cs, a, as, b, bs, rows, k, cols, from)
}

func transpose(dst []float32, ds int, src []float32, ss, rows, n int) {
	transposeGo(dst, ds, src, ss, rows, 0, n)
}

func expSub(x []float32, scale, m float32) { expSubGo(x, scale, m) }

func siluMul(y, g, u []float32) { siluMulGo(y, g, u) }

func maxOf(x []float32) float32 { return maxGo(x[1:], x[0]) }

func fromBF16(dst []float32, src []uint16) { fromBF16Go(dst, src) }

func toBF16(dst []uint16, src []float32) { toBF16Go(dst, src) }
