//go:build unix

package model

import (
	"errors"
	"os"
	"syscall"
)

// mapFile maps a whole file for reading.
func mapFile(path string) (mapped, error) {
	f, err := os.Open(path)
	if err != nil {
		return mapped{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return mapped{}, err
	}
	if info.Size() == 0 {
		return mapped{close: func() error { return nil }}, nil
	}
	if int64(int(info.Size())) != info.Size() {
		return mapped{}, errors.New("the file is larger than the address space")
	}
	b, err := syscall.Mmap(int(f.Fd()), 0, int(info.Size()), syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		return mapped{}, err
	}
	return mapped{bytes: b, close: func() error { return syscall.Munmap(b) }}, nil
}
