//go:build race

package engine

// raced: the race detector makes the model slow, so tests with many ways to serve
// run one of them in every state and all of them in one.
const raced = true
