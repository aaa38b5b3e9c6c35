//go:build ignore

// Command gen writes arith_amd64.s: the AVX2 and AVX-512 kernels. Each kernel
// multiplies, then adds, one lane per output; no instruction fuses the two.
package main

import (
	"bytes"
	"fmt"
	"os"
)

var out bytes.Buffer

func p(format string, args ...any) { fmt.Fprintf(&out, format+"\n", args...) }

type isa struct {
	suffix string
	reg    string // register prefix
	bytes  int    // per vector
	rows   int    // most rows of a tile
	b0     int    // first register behind the accumulators
}

var avx2 = isa{"AVX2", "Y", 32, 4, 8}
var avx512 = isa{"AVX512", "Z", 64, 8, 16}

// row gives the address of a[r] with the three row pointers SI (0), R11 (3)
// and R12 (6) and the stride R9.
func row(r int) string {
	return [...]string{"(SI)", "(SI)(R9*1)", "(SI)(R9*2)", "(R11)", "(SI)(R9*4)", "(R11)(R9*2)", "(R12)", "(R11)(R9*4)"}[r]
}

// tile emits a kernel over `vecs` vectors of columns; a single vector is masked.
func tile(x isa, vecs int) {
	name := fmt.Sprintf("mulAcc%dx%s", vecs, x.suffix)
	p("")
	p("// func %s(c *float32, cs uintptr, a *float32, as uintptr, b *float32, bs uintptr, k, rows, init uintptr, mask *uint32)", name)
	p("TEXT ·%s(SB), NOSPLIT, $0-80", name)
	p("\tMOVQ c+0(FP), DI")
	p("\tMOVQ cs+8(FP), R8")
	p("\tMOVQ a+16(FP), SI")
	p("\tMOVQ as+24(FP), R9")
	p("\tMOVQ b+32(FP), BX")
	p("\tMOVQ bs+40(FP), R10")
	p("\tMOVQ k+48(FP), CX")
	p("\tMOVQ rows+56(FP), DX")
	p("\tMOVQ init+64(FP), R13")
	p("\tMOVQ mask+72(FP), AX")
	p("\tLEAQ (SI)(R9*2), R11")
	p("\tADDQ R9, R11")
	p("\tLEAQ (R11)(R9*2), R12")
	p("\tADDQ R9, R12")
	mask := x.b0 + 6
	if vecs == 1 {
		if x.reg == "Z" {
			p("\tMOVL (AX), AX")
			p("\tKMOVW AX, K1")
		} else {
			p("\tVMOVDQU (AX), Y%d", mask)
		}
	}
	load := func(addr, reg string) {
		switch {
		case vecs > 1:
			p("\tVMOVUPS %s, %s", addr, reg)
		case x.reg == "Z":
			p("\tVMOVUPS.Z %s, K1, %s", addr, reg)
		default:
			p("\tVMASKMOVPS %s, Y%d, %s", addr, mask, reg)
		}
	}
	store := func(reg, addr string) {
		switch {
		case vecs > 1:
			p("\tVMOVUPS %s, %s", reg, addr)
		case x.reg == "Z":
			p("\tVMOVUPS %s, K1, %s", reg, addr)
		default:
			p("\tVMASKMOVPS %s, Y%d, %s", reg, mask, addr)
		}
	}
	at := func(base string, v int) string {
		if v == 0 {
			return "(" + base + ")"
		}
		return fmt.Sprintf("%d(%s)", v*x.bytes, base)
	}
	for r := 1; r < x.rows; r++ {
		p("\tCMPQ DX, $%d", r)
		p("\tJEQ r%d", r)
	}
	for r := x.rows; r >= 1; r-- {
		acc := func(i, v int) string { return fmt.Sprintf("%s%d", x.reg, i*vecs+v) }
		p("")
		p("r%d:", r)
		p("\tTESTQ R13, R13")
		p("\tJNZ l%d", r)
		for i := range r {
			for v := range vecs {
				p("\t%s %s, %s, %s", map[string]string{"Y": "VXORPS", "Z": "VPXORD"}[x.reg], acc(i, v), acc(i, v), acc(i, v))
			}
		}
		p("\tJMP s%d", r)
		p("l%d:", r)
		p("\tMOVQ DI, AX")
		for i := range r {
			for v := range vecs {
				load(at("AX", v), acc(i, v))
			}
			if i < r-1 {
				p("\tADDQ R8, AX")
			}
		}
		p("s%d:", r)
		p("\tTESTQ CX, CX")
		p("\tJZ e%d", r)
		p("k%d:", r)
		for v := range vecs {
			load(at("BX", v), fmt.Sprintf("%s%d", x.reg, x.b0+v))
		}
		for i := range r {
			p("\tVBROADCASTSS %s, %s%d", row(i), x.reg, x.b0+2)
			for v := range vecs {
				t := x.b0 + 3 + v
				p("\tVMULPS %s%d, %s%d, %s%d", x.reg, x.b0+v, x.reg, x.b0+2, x.reg, t)
				p("\tVADDPS %s%d, %s, %s", x.reg, t, acc(i, v), acc(i, v))
			}
		}
		p("\tADDQ $4, SI")
		if r > 3 {
			p("\tADDQ $4, R11")
		}
		if r > 6 {
			p("\tADDQ $4, R12")
		}
		p("\tADDQ R10, BX")
		p("\tDECQ CX")
		p("\tJNZ k%d", r)
		p("e%d:", r)
		for i := range r {
			for v := range vecs {
				store(acc(i, v), at("DI", v))
			}
			if i < r-1 {
				p("\tADDQ R8, DI")
			}
		}
		p("\tVZEROUPPER")
		p("\tRET")
	}
}

// expBody replaces x (register 0) by its exponential; registers 16-31 (AVX-512)
// or memory hold the constants. 1..5 are scratch.
func expBody(x isa) {
	r := func(i int) string { return fmt.Sprintf("%s%d", x.reg, i) }
	c := func(name string) string {
		return fmt.Sprintf("·exp%s<>(SB)", name)
	}
	op := func(ins, cst string, a, dst int) {
		if x.reg == "Z" {
			p("\t%s.BCST %s, %s, %s", ins, c(cst), r(a), r(dst))
		} else {
			p("\t%s %s, %s, %s", ins, c(cst), r(a), r(dst))
		}
	}
	op("VMULPS", "Log2e", 0, 1)
	op("VADDPS", "Magic", 1, 1)
	op("VSUBPS", "Magic", 1, 2)
	op("VMULPS", "C1", 2, 3)
	p("\tVSUBPS %s, %s, %s", r(3), r(0), r(4))
	op("VMULPS", "C2", 2, 3)
	p("\tVSUBPS %s, %s, %s", r(3), r(4), r(4))
	op("VMULPS", "P0", 4, 3)
	op("VADDPS", "P1", 3, 3)
	for _, k := range []string{"P2", "P3", "P4", "P5"} {
		p("\tVMULPS %s, %s, %s", r(4), r(3), r(3))
		op("VADDPS", k, 3, 3)
	}
	p("\tVMULPS %s, %s, %s", r(4), r(4), r(5))
	p("\tVMULPS %s, %s, %s", r(5), r(3), r(3))
	p("\tVADDPS %s, %s, %s", r(4), r(3), r(3))
	op("VADDPS", "One", 3, 3)
	op("VPADDD", "Bias", 1, 1)
	p("\tVPSLLD $23, %s, %s", r(1), r(1))
	p("\tVMULPS %s, %s, %s", r(1), r(3), r(3))
	if x.reg == "Z" {
		p("\tVCMPPS.BCST $5, %s, Z0, K1", c("Lo"))
		p("\tVCMPPS.BCST $30, %s, Z0, K2", c("Hi"))
		p("\tVMOVAPS.Z Z3, K1, Z0")
		p("\tVBROADCASTSS %s, K2, Z0", c("Inf"))
	} else {
		p("\tVCMPPS $17, %s, Y0, Y1", c("Lo"))
		p("\tVCMPPS $30, %s, Y0, Y2", c("Hi"))
		p("\tVANDNPS Y3, Y1, Y3")
		p("\tVBLENDVPS Y2, %s, Y3, Y0", c("Inf"))
	}
}

func vectors(x isa) {
	step := x.bytes
	r := func(i int) string { return fmt.Sprintf("%s%d", x.reg, i) }
	p("")
	p("// func expSub%s(x *float32, blocks uintptr, scale, m float32)", x.suffix)
	p("TEXT ·expSub%s(SB), NOSPLIT, $0-24", x.suffix)
	p("\tMOVQ x+0(FP), DI")
	p("\tMOVQ blocks+8(FP), CX")
	p("\tVBROADCASTSS scale+16(FP), %s", r(6))
	p("\tVBROADCASTSS m+20(FP), %s", r(7))
	p("loop:")
	p("\tVMULPS (DI), %s, %s", r(6), r(0))
	p("\tVSUBPS %s, %s, %s", r(7), r(0), r(0))
	expBody(x)
	p("\tVMOVUPS %s, (DI)", r(0))
	p("\tADDQ $%d, DI", step)
	p("\tDECQ CX")
	p("\tJNZ loop")
	p("\tVZEROUPPER")
	p("\tRET")

	p("")
	p("// func siluMul%s(y, x, u *float32, blocks uintptr)", x.suffix)
	p("TEXT ·siluMul%s(SB), NOSPLIT, $0-32", x.suffix)
	p("\tMOVQ y+0(FP), DI")
	p("\tMOVQ x+8(FP), SI")
	p("\tMOVQ u+16(FP), DX")
	p("\tMOVQ blocks+24(FP), CX")
	p("loop:")
	p("\tVMOVUPS (SI), %s", r(6))
	if x.reg == "Z" {
		p("\tVPXORD.BCST ·expSign<>(SB), Z6, Z0")
	} else {
		p("\tVXORPS ·expSign<>(SB), Y6, Y0")
	}
	expBody(x)
	if x.reg == "Z" {
		p("\tVADDPS.BCST ·expOne<>(SB), Z0, Z0")
	} else {
		p("\tVADDPS ·expOne<>(SB), Y0, Y0")
	}
	p("\tVDIVPS %s, %s, %s", r(0), r(6), r(0))
	p("\tVMULPS (DX), %s, %s", r(0), r(0))
	p("\tVMOVUPS %s, (DI)", r(0))
	p("\tADDQ $%d, DI", step)
	p("\tADDQ $%d, SI", step)
	p("\tADDQ $%d, DX", step)
	p("\tDECQ CX")
	p("\tJNZ loop")
	p("\tVZEROUPPER")
	p("\tRET")
}

func maxKernel() {
	p("")
	p("// func maxAVX2(x *float32, blocks uintptr, lanes *[8]float32)")
	p("TEXT ·maxAVX2(SB), NOSPLIT, $0-24")
	p("\tMOVQ x+0(FP), SI")
	p("\tMOVQ blocks+8(FP), CX")
	p("\tMOVQ lanes+16(FP), DI")
	p("\tVMOVUPS (SI), Y0")
	p("\tJMP next")
	p("loop:")
	p("\tVMAXPS (SI), Y0, Y0")
	p("next:")
	p("\tADDQ $32, SI")
	p("\tDECQ CX")
	p("\tJNZ loop")
	p("\tVMOVUPS Y0, (DI)")
	p("\tVZEROUPPER")
	p("\tRET")
}

func transpose() {
	p("")
	p("// func transpose8AVX2(dst *float32, ds uintptr, src *float32, ss, blocks uintptr)")
	p("TEXT ·transpose8AVX2(SB), NOSPLIT, $0-40")
	p("\tMOVQ dst+0(FP), DI")
	p("\tMOVQ ds+8(FP), R8")
	p("\tMOVQ src+16(FP), SI")
	p("\tMOVQ ss+24(FP), R9")
	p("\tMOVQ blocks+32(FP), CX")
	p("\tLEAQ (SI)(R9*2), R11")
	p("\tADDQ R9, R11")
	p("\tLEAQ (R11)(R9*2), R12")
	p("\tADDQ R9, R12")
	p("loop:")
	for i := range 8 {
		p("\tVMOVUPS %s, Y%d", row(i), i)
	}
	for i := 0; i < 8; i += 2 {
		p("\tVUNPCKLPS Y%d, Y%d, Y%d", i+1, i, 8+i)
		p("\tVUNPCKHPS Y%d, Y%d, Y%d", i+1, i, 9+i)
	}
	for h := 0; h < 8; h += 4 {
		p("\tVUNPCKLPD Y%d, Y%d, Y%d", 10+h, 8+h, h)
		p("\tVUNPCKHPD Y%d, Y%d, Y%d", 10+h, 8+h, h+1)
		p("\tVUNPCKLPD Y%d, Y%d, Y%d", 11+h, 9+h, h+2)
		p("\tVUNPCKHPD Y%d, Y%d, Y%d", 11+h, 9+h, h+3)
	}
	for i := range 8 {
		sel := 0x20
		if i >= 4 {
			sel = 0x31
		}
		p("\tVPERM2F128 $%#x, Y%d, Y%d, Y8", sel, i%4+4, i%4)
		p("\tVMOVUPS Y8, (DI)")
		p("\tADDQ R8, DI")
	}
	p("\tADDQ $32, SI")
	p("\tADDQ $32, R11")
	p("\tADDQ $32, R12")
	p("\tDECQ CX")
	p("\tJNZ loop")
	p("\tVZEROUPPER")
	p("\tRET")
}

func bf16() {
	p("")
	p("// func fromBF16AVX2(dst *float32, src *uint16, blocks uintptr)")
	p("TEXT ·fromBF16AVX2(SB), NOSPLIT, $0-24")
	p("\tMOVQ dst+0(FP), DI")
	p("\tMOVQ src+8(FP), SI")
	p("\tMOVQ blocks+16(FP), CX")
	p("loop:")
	p("\tVPMOVZXWD (SI), Y0")
	p("\tVPSLLD $16, Y0, Y0")
	p("\tVMOVDQU Y0, (DI)")
	p("\tADDQ $16, SI")
	p("\tADDQ $32, DI")
	p("\tDECQ CX")
	p("\tJNZ loop")
	p("\tVZEROUPPER")
	p("\tRET")

	p("")
	p("// func toBF16AVX2(dst *uint16, src *float32, blocks uintptr)")
	p("TEXT ·toBF16AVX2(SB), NOSPLIT, $0-24")
	p("\tMOVQ dst+0(FP), DI")
	p("\tMOVQ src+8(FP), SI")
	p("\tMOVQ blocks+16(FP), CX")
	p("\tVMOVDQU ·bfLow<>(SB), Y10")
	p("\tVMOVDQU ·bfOne<>(SB), Y11")
	p("\tVMOVDQU ·bfAbs<>(SB), Y12")
	p("\tVMOVDQU ·expInf<>(SB), Y13")
	p("\tVMOVDQU ·bfQuiet<>(SB), Y14")
	p("loop:")
	p("\tVMOVDQU (SI), Y0")
	p("\tVPSRLD $16, Y0, Y1") // truncated
	p("\tVPAND Y11, Y1, Y2")
	p("\tVPADDD Y10, Y2, Y2")
	p("\tVPADDD Y0, Y2, Y2")
	p("\tVPSRLD $16, Y2, Y2") // rounded
	p("\tVPOR Y14, Y1, Y1")   // quiet NaN
	p("\tVPAND Y12, Y0, Y3")
	p("\tVPCMPGTD Y13, Y3, Y3")
	p("\tVPBLENDVB Y3, Y1, Y2, Y2")
	p("\tVPACKUSDW Y2, Y2, Y2")
	p("\tVPERMQ $8, Y2, Y2")
	p("\tVMOVDQU X2, (DI)")
	p("\tADDQ $32, SI")
	p("\tADDQ $16, DI")
	p("\tDECQ CX")
	p("\tJNZ loop")
	p("\tVZEROUPPER")
	p("\tRET")
}

func main() {
	p("// Code generated by gen.go. DO NOT EDIT.")
	p("")
	p("#include \"textflag.h\"")
	p("")
	for _, c := range []struct {
		name string
		bits uint32
	}{
		{"Log2e", 0x3fb8aa3b}, {"Magic", 0x4b400000}, {"C1", 0x3f318000}, {"C2", 0xb95e8083},
		{"P0", 0x39506967}, {"P1", 0x3ab743ce}, {"P2", 0x3c088908}, {"P3", 0x3d2aa9c1}, {"P4", 0x3e2aaaaa}, {"P5", 0x3f000000},
		{"One", 0x3f800000}, {"Bias", 0xb4c0007f}, {"Lo", 0xc2ae0000}, {"Hi", 0x42b00000}, {"Inf", 0x7f800000}, {"Sign", 0x80000000},
	} {
		for i := range 8 {
			p("DATA ·exp%s<>+%d(SB)/4, $%#08x", c.name, 4*i, c.bits)
		}
		p("GLOBL ·exp%s<>(SB), RODATA|NOPTR, $32", c.name)
	}
	for _, c := range []struct {
		name string
		bits uint32
	}{{"Low", 0x7fff}, {"One", 1}, {"Abs", 0x7fffffff}, {"Quiet", 0x40}} {
		for i := range 8 {
			p("DATA ·bf%s<>+%d(SB)/4, $%#08x", c.name, 4*i, c.bits)
		}
		p("GLOBL ·bf%s<>(SB), RODATA|NOPTR, $32", c.name)
	}
	tile(avx512, 2)
	tile(avx512, 1)
	tile(avx2, 2)
	tile(avx2, 1)
	vectors(avx512)
	vectors(avx2)
	maxKernel()
	transpose()
	bf16()
	if err := os.WriteFile("arith_amd64.s", out.Bytes(), 0o644); err != nil {
		panic(err)
	}
}
