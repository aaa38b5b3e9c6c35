package arith_test

import (
	"fmt"

	"github.com/sluice-serving/sluice/ascendrt/host/arith"
)

// One row times two columns. Each sum goes through k in ascending order, so the
// bits are the same whatever kernel computes them.
func ExampleMulAcc() {
	a := []float32{1, 2, 3}
	b := []float32{ // a row for each k
		1, 10,
		1, 10,
		1, 10,
	}
	c := make([]float32, 2)
	arith.MulAcc(c, 2, a, 3, b, 2, 1, 3, 2, arith.Start)
	fmt.Println(c)
	// Output:
	// [6 60]
}
