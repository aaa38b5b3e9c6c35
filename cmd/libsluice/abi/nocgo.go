//go:build !cgo

package abi

// exported has nothing without C.
type exported struct{}
