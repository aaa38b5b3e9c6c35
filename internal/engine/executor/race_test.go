//go:build race

package executor

// stepSizes are the step budgets under test: the race detector makes the model slow.
var stepSizes = []int{64}

// byteSeeds is the number of random workloads that are compared byte by byte.
const byteSeeds = 1

const raceEnabled = true
