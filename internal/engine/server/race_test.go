//go:build race

package server

// sessions of the workload: fewer, since the race detector makes the
// model slow, and enough that one answer in twenty may be unchanged.
const sessions = 7

// chainOutput is the output of the requests that are preempted and restored.
const chainOutput = 192

// few is the number of variants that run of a test with many.
const few = 1
