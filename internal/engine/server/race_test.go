//go:build race

package server

// sessions of the workload: the race detector makes the model slow.
const sessions = 3
