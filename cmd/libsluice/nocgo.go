//go:build !cgo

package main

// exported has nothing without C.
type exported struct{}
