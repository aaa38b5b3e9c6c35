//go:build unix && !(linux && (amd64 || arm64) && !race)

package socket

import "syscall"

// The race detector knows the calls of package syscall: what was written before
// a write is seen after the read of its bytes. After an error the number of
// bytes is 0.

func read(fd uintptr, p []byte) (int, syscall.Errno) {
	return again(func() (int, error) { return syscall.Read(int(fd), p) })
}

func peek(fd uintptr) (int, syscall.Errno) {
	return again(func() (int, error) {
		var one [1]byte
		n, _, err := syscall.Recvfrom(int(fd), one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		return n, err
	})
}

func write(fd uintptr, p []byte) (int, syscall.Errno) {
	return again(func() (int, error) { return syscall.Write(int(fd), p) })
}

// vector has no memory here: parts are written one by one.
type vector struct{}

func (*vector) write(fd uintptr, parts [][]byte, at int) (int, syscall.Errno) {
	p := parts[0][at:]
	return write(fd, p[:min(len(p), maxWrite)])
}

func again(call func() (int, error)) (int, syscall.Errno) {
	for {
		n, err := call()
		switch err {
		case nil:
			return n, 0
		case syscall.EINTR:
		default:
			return 0, err.(syscall.Errno) // package syscall has no other
		}
	}
}
