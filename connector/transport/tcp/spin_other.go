//go:build !linux

package tcp

// arrived has nobody to ask for: neighbours are there on Linux alone.
func arrived(uintptr) bool { return true }
