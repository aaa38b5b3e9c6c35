//go:build !race

package executor

// stepSizes are the step budgets under test.
var stepSizes = []int{16, 256}
