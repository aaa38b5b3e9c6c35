//go:build !unix

package model

import "os"

// mapFile reads a whole file: this system has no mapping here.
func mapFile(path string) (mapped, error) {
	b, err := os.ReadFile(path)
	return mapped{bytes: b, close: func() error { return nil }}, err
}
