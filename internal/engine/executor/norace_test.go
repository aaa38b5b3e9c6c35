//go:build !race

package executor

// stepSizes are the step budgets under test.
var stepSizes = []int{16, 256}

// byteSeeds is the number of random workloads that are compared byte by byte.
const byteSeeds = 2

const raceEnabled = false
