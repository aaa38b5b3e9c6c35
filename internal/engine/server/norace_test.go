//go:build !race

package server

// sessions of the workload.
const sessions = 8
