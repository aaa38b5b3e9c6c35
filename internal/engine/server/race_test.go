//go:build race

package server

// sessions of the workload: the race detector makes the model slow.
const sessions = 3

// chainOutput is the output of the requests that are preempted and restored.
const chainOutput = 192

// few is the number of variants that run of a test with many.
const few = 1
