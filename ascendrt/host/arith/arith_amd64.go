package arith

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

// level is the widest kernel set in use; tests lower it.
var level = detect()

type isaLevel uint8

const (
	portable isaLevel = iota
	avx2
	avx512
)

func detect() isaLevel {
	switch {
	case cpu.X86.HasAVX512F && cpu.X86.HasAVX512DQ && cpu.X86.HasAVX512BW && cpu.X86.HasAVX2:
		return avx512
	case cpu.X86.HasAVX2:
		return avx2
	}
	return portable
}

// Level names the kernels in use: "avx512", "avx2" or "go".
func Level() string { return [...]string{"go", "avx2", "avx512"}[level] }

//go:noescape
func mulAcc2xAVX512(c *float32, cs uintptr, a *float32, as uintptr, b *float32, bs uintptr, k, rows, init uintptr, mask *uint32)

//go:noescape
func mulAcc1xAVX512(c *float32, cs uintptr, a *float32, as uintptr, b *float32, bs uintptr, k, rows, init uintptr, mask *uint32)

//go:noescape
func mulAcc2xAVX2(c *float32, cs uintptr, a *float32, as uintptr, b *float32, bs uintptr, k, rows, init uintptr, mask *uint32)

//go:noescape
func mulAcc1xAVX2(c *float32, cs uintptr, a *float32, as uintptr, b *float32, bs uintptr, k, rows, init uintptr, mask *uint32)

//go:noescape
func expSubAVX512(x *float32, blocks uintptr, scale, m float32)

//go:noescape
func expSubAVX2(x *float32, blocks uintptr, scale, m float32)

//go:noescape
func siluMulAVX512(y, x, u *float32, blocks uintptr)

//go:noescape
func siluMulAVX2(y, x, u *float32, blocks uintptr)

//go:noescape
func maxAVX2(x *float32, blocks uintptr, lanes *[8]float32)

//go:noescape
func transpose8AVX2(dst *float32, ds uintptr, src *float32, ss, blocks uintptr)

//go:noescape
func fromBF16AVX2(dst *float32, src *uint16, blocks uintptr)

//go:noescape
func toBF16AVX2(dst *uint16, src *float32, blocks uintptr)

// masks512[n] selects the first n of 16 lanes; masks2[8-n:] those of 8.
var masks512 = func() (m [17]uint32) {
	for i := range m {
		m[i] = 1<<i - 1
	}
	return m
}()

var masks2 = [16]uint32{0: ^uint32(0), 1: ^uint32(0), 2: ^uint32(0), 3: ^uint32(0), 4: ^uint32(0), 5: ^uint32(0), 6: ^uint32(0), 7: ^uint32(0)}

func mulAcc(c []float32, cs int, a []float32, as int, b []float32, bs int, rows, k, cols int, from Origin) {
	if level == portable {
		mulAccGo(c, cs, a, as, b, bs, rows, k, cols, from)
		return
	}
	if k == 0 {
		if from == Start {
			for r := range rows {
				clear(c[r*cs : r*cs+cols])
			}
		}
		return
	}
	lanes, tile := 8, 4
	if level == avx512 {
		lanes, tile = 16, 8
	}
	ap, bp, cp := unsafe.Pointer(&a[0]), unsafe.Pointer(&b[0]), unsafe.Pointer(&c[0])
	for j := 0; j < cols; {
		n := cols - j
		wide := n >= 2*lanes
		if wide {
			n = 2 * lanes
		} else {
			n = min(n, lanes)
		}
		bj := (*float32)(unsafe.Add(bp, 4*j))
		for r := 0; r < rows; r += tile {
			cr := (*float32)(unsafe.Add(cp, 4*(r*cs+j)))
			ar := (*float32)(unsafe.Add(ap, 4*r*as))
			m := uintptr(min(tile, rows-r))
			switch {
			case lanes == 16 && wide:
				mulAcc2xAVX512(cr, uintptr(4*cs), ar, uintptr(4*as), bj, uintptr(4*bs), uintptr(k), m, uintptr(from), &masks512[16])
			case lanes == 16:
				mulAcc1xAVX512(cr, uintptr(4*cs), ar, uintptr(4*as), bj, uintptr(4*bs), uintptr(k), m, uintptr(from), &masks512[n])
			case wide:
				mulAcc2xAVX2(cr, uintptr(4*cs), ar, uintptr(4*as), bj, uintptr(4*bs), uintptr(k), m, uintptr(from), &masks2[0])
			default:
				mulAcc1xAVX2(cr, uintptr(4*cs), ar, uintptr(4*as), bj, uintptr(4*bs), uintptr(k), m, uintptr(from), &masks2[8-n])
			}
		}
		j += n
	}
}

func transpose(dst []float32, ds int, src []float32, ss, rows, n int) {
	i, whole := 0, n&^7
	if level != portable && whole > 0 {
		for ; i+8 <= rows; i += 8 {
			transpose8AVX2(&dst[i], uintptr(4*ds), &src[i*ss], uintptr(4*ss), uintptr(whole/8))
		}
		if whole < n && i > 0 {
			transposeGo(dst, ds, src, ss, i, whole, n)
		}
	}
	if i < rows {
		transposeGo(dst[i:], ds, src[i*ss:], ss, rows-i, 0, n)
	}
}

func expSub(x []float32, scale, m float32) {
	n := 0
	switch {
	case level == avx512 && len(x) >= 16:
		n = len(x) &^ 15
		expSubAVX512(&x[0], uintptr(n/16), scale, m)
	case level >= avx2 && len(x) >= 8:
		n = len(x) &^ 7
		expSubAVX2(&x[0], uintptr(n/8), scale, m)
	}
	expSubGo(x[n:], scale, m)
}

func siluMul(y, g, u []float32) {
	n := 0
	switch {
	case level == avx512 && len(y) >= 16:
		n = len(y) &^ 15
		siluMulAVX512(&y[0], &g[0], &u[0], uintptr(n/16))
	case level >= avx2 && len(y) >= 8:
		n = len(y) &^ 7
		siluMulAVX2(&y[0], &g[0], &u[0], uintptr(n/8))
	}
	siluMulGo(y[n:], g[n:], u[n:])
}

func maxOf(x []float32) float32 {
	if level == portable || len(x) < 16 {
		return maxGo(x[1:], x[0])
	}
	var lanes [8]float32
	n := len(x) &^ 7
	maxAVX2(&x[0], uintptr(n/8), &lanes)
	return maxGo(x[n:], maxGo(lanes[1:], lanes[0]))
}

func fromBF16(dst []float32, src []uint16) {
	n := 0
	if level >= avx2 && len(dst) >= 8 {
		n = len(dst) &^ 7
		fromBF16AVX2(&dst[0], &src[0], uintptr(n/8))
	}
	fromBF16Go(dst[n:], src[n:])
}

func toBF16(dst []uint16, src []float32) {
	n := 0
	if level >= avx2 && len(dst) >= 8 {
		n = len(dst) &^ 7
		toBF16AVX2(&dst[0], &src[0], uintptr(n/8))
	}
	toBF16Go(dst[n:], src[n:])
}
