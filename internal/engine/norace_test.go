//go:build !race

package engine

// raced: all variants run without the race detector.
const raced = false
