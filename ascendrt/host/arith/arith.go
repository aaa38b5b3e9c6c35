package arith

import "math"

// Panel is the widest column block that MulAcc handles in one pass; packing
// into panels of this many columns keeps a kernel's operand contiguous.
const Panel = 32

// MulAcc computes c[r][j] += Σ_k a[r][k]·b[k][j] for r < rows, j < cols, in
// ascending k; with Start the sums begin at zero instead of c. cs, as and bs
// are row strides in elements. c overlaps neither a nor b.
func MulAcc(c []float32, cs int, a []float32, as int, b []float32, bs int, rows, k, cols int, from Origin) {
	if rows <= 0 || cols <= 0 {
		return
	}
	// The kernels have no bounds checks: these stand for theirs.
	_ = c[(rows-1)*cs+cols-1]
	if k > 0 {
		_ = a[(rows-1)*as+k-1]
		_ = b[(k-1)*bs+cols-1]
	}
	mulAcc(c, cs, a, as, b, bs, rows, k, cols, from)
}

// Origin says where the sums of MulAcc begin.
type Origin uint8

const (
	// Start begins at zero.
	Start Origin = iota
	// Continue begins at the values in c.
	Continue
)

// String names the origin.
func (o Origin) String() string {
	if o == Continue {
		return "continue"
	}
	return "start"
}

//go:norace
func mulAccGo(c []float32, cs int, a []float32, as int, b []float32, bs int, rows, k, cols int, from Origin) {
	for r := range rows {
		cr := c[r*cs : r*cs+cols]
		if from == Start {
			clear(cr)
		}
		for i := range k {
			x := a[r*as+i]
			br := b[i*bs : i*bs+cols][:len(cr)]
			for j := range cr {
				cr[j] += float32(x * br[j])
			}
		}
	}
}

// TransposeInto writes dst[k·ds+i] = src[i·ss+k] for i < rows, k < n: rows of
// src become columns of dst. Strides are in elements.
func TransposeInto(dst []float32, ds int, src []float32, ss, rows, n int) {
	if rows <= 0 || n <= 0 {
		return
	}
	_ = dst[(n-1)*ds+rows-1]
	_ = src[(rows-1)*ss+n-1]
	transpose(dst, ds, src, ss, rows, n)
}

//go:norace
func transposeGo(dst []float32, ds int, src []float32, ss, rows, from, n int) {
	for i := range rows {
		s := src[i*ss : i*ss+n]
		for k := from; k < n; k++ {
			dst[k*ds+i] = s[k]
		}
	}
}

// Constants of exp1, as float32.
const (
	expLog2e = float32(1.44269504088896341)
	expMagic = float32(12582912) // 1.5·2^23: adding it rounds to an integer
	expC1    = float32(0.693359375)
	expC2    = float32(-2.12194440e-4)
	expP0    = float32(1.9875691500e-4)
	expP1    = float32(1.3981999507e-3)
	expP2    = float32(8.3334519073e-3)
	expP3    = float32(4.1665795894e-2)
	expP4    = float32(1.6666665459e-1)
	expP5    = float32(5.0000001201e-1)
	expLo    = float32(-87) // below: 0
	expHi    = float32(88)  // above: +Inf
)

// exp1 is e^x: 0 below -87, +Inf above 88, else within 2 ulp.
func exp1(x float32) float32 {
	if x < expLo {
		return 0
	}
	if x > expHi {
		return float32(math.Inf(1))
	}
	t := float32(x*expLog2e) + expMagic
	n := t - expMagic
	r := x - float32(n*expC1)
	r -= float32(n * expC2)
	p := float32(expP0*r) + expP1
	p = float32(p*r) + expP2
	p = float32(p*r) + expP3
	p = float32(p*r) + expP4
	p = float32(p*r) + expP5
	p = float32(p * float32(r*r))
	p += r
	p++
	scale := math.Float32frombits((math.Float32bits(t) + 0xb4c0007f) << 23)
	return p * scale
}

// Exp is the exponential of the package; see exp1.
func Exp(x float32) float32 { return exp1(x) }

// ExpSub replaces each x by exp(float32(x·scale) − m).
func ExpSub(x []float32, scale, m float32) { expSub(x, scale, m) }

//go:norace
func expSubGo(x []float32, scale, m float32) {
	for i, v := range x {
		x[i] = exp1(float32(v*scale) - m)
	}
}

// SiluMul computes y = g/(1+exp(−g))·u, elementwise; the three have one length.
func SiluMul(y, g, u []float32) {
	g, u = g[:len(y)], u[:len(y)]
	siluMul(y, g, u)
}

//go:norace
func siluMulGo(y, g, u []float32) {
	for i, v := range g {
		y[i] = float32(v/(1+exp1(-v))) * u[i]
	}
}

// Max is the largest element of x, -Inf for none. NaN gives an unspecified
// element.
func Max(x []float32) float32 {
	if len(x) == 0 {
		return float32(math.Inf(-1))
	}
	return maxOf(x)
}

//go:norace
func maxGo(x []float32, m float32) float32 {
	for _, v := range x {
		if v > m {
			m = v
		}
	}
	return m
}

// Sums adds each of rows rows of x (row stride xs, n[r] elements of row r) in
// ascending order and stores the sums. Four rows advance together.
//
//go:norace
func Sums(dst []float32, x []float32, xs int, n []int) {
	r := 0
	for ; r+4 <= len(n); r += 4 {
		least := min(n[r], n[r+1], n[r+2], n[r+3])
		x0, x1, x2, x3 := x[r*xs:][:n[r]], x[(r+1)*xs:][:n[r+1]], x[(r+2)*xs:][:n[r+2]], x[(r+3)*xs:][:n[r+3]]
		var s0, s1, s2, s3 float32
		for i := range least {
			s0 += x0[i]
			s1 += x1[i]
			s2 += x2[i]
			s3 += x3[i]
		}
		dst[r], dst[r+1], dst[r+2], dst[r+3] = sumFrom(s0, x0[least:]), sumFrom(s1, x1[least:]), sumFrom(s2, x2[least:]), sumFrom(s3, x3[least:])
	}
	for ; r < len(n); r++ {
		dst[r] = sumFrom(0, x[r*xs:][:n[r]])
	}
}

//go:norace
func sumFrom(s float32, x []float32) float32 {
	for _, v := range x {
		s += v
	}
	return s
}

// SumSquares is Σ x² in ascending order, each square rounded.
//
//go:norace
func SumSquares(x []float32) float32 {
	var s float32
	for _, v := range x {
		s += float32(v * v)
	}
	return s
}

// Sqrt is the correctly rounded float32 square root.
func Sqrt(x float32) float32 { return float32(math.Sqrt(float64(x))) }

// FromBF16 widens.
func FromBF16(dst []float32, src []uint16) { fromBF16(dst, src[:len(dst)]) }

//go:norace
func fromBF16Go(dst []float32, src []uint16) {
	src = src[:len(dst)]
	for i, v := range src {
		dst[i] = math.Float32frombits(uint32(v) << 16)
	}
}

// ToBF16 rounds to nearest even; NaN stays NaN.
func ToBF16(dst []uint16, src []float32) { toBF16(dst, src[:len(dst)]) }

//go:norace
func toBF16Go(dst []uint16, src []float32) {
	src = src[:len(dst)]
	for i, v := range src {
		dst[i] = BF16(v)
	}
}

// BF16 is v rounded to nearest even; NaN becomes a quiet NaN of its sign.
func BF16(v float32) uint16 {
	b := math.Float32bits(v)
	if b&0x7fffffff > 0x7f800000 {
		return uint16(b>>16) | 0x40
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}
