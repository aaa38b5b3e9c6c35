//go:build !race

package server

// sessions of the workload.
const sessions = 8

// chainOutput is the output of the requests that are preempted and restored.
const chainOutput = 512

// few is the number of variants that run of a test with many.
const few = 100
