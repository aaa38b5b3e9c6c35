// Package arith is the arithmetic of the host backend: float32 sums in a fixed
// order, one lane per output.
//
// Every output is acc = 0, then acc = acc + float32(a·b) for each k in
// ascending order, product and sum rounded separately. The vector kernels
// (AVX2, AVX-512) put neighbouring outputs into neighbouring lanes and never
// split or fuse a sum, so they give the bits of the portable Go code, and an
// output does not depend on what else is computed beside it. The kernels in
// assembly come from gen.go.
//
// Exp is a polynomial of degree 5 after range reduction by two constants,
// written as single float32 operations (see exp1): the same bits everywhere.
package arith

//go:generate go run gen.go
