//go:build linux && (amd64 || arm64) && !race

package socket

import (
	"syscall"
	"unsafe"
)

// The calls go straight to the kernel. None blocks: the sockets do not. After
// an error the number of bytes is 0.

func call(number, fd uintptr, p unsafe.Pointer, n int, flags uintptr) (int, syscall.Errno) {
	for {
		r, _, err := syscall.RawSyscall6(number, fd, uintptr(p), uintptr(n), flags, 0, 0)
		switch err {
		case 0:
			return int(r), 0
		case syscall.EINTR:
		default:
			return 0, err
		}
	}
}

func read(fd uintptr, p []byte) (int, syscall.Errno) {
	return call(syscall.SYS_RECVFROM, fd, unsafe.Pointer(unsafe.SliceData(p)), len(p), 0)
}

func peek(fd uintptr) (int, syscall.Errno) {
	var one [1]byte
	return call(syscall.SYS_RECVFROM, fd, unsafe.Pointer(&one), len(one), syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
}

func write(fd uintptr, p []byte) (int, syscall.Errno) {
	return call(syscall.SYS_SENDTO, fd, unsafe.Pointer(unsafe.SliceData(p)), len(p), syscall.MSG_NOSIGNAL)
}

// vector is the memory of vectored writes.
type vector []syscall.Iovec

// maxParts bounds the parts of one vectored write.
const maxParts = 64

// write writes several parts with one call, at most maxWrite bytes and the
// first from at on.
func (v *vector) write(fd uintptr, parts [][]byte, at int) (int, syscall.Errno) {
	list := (*v)[:0]
	for left := maxWrite; left > 0 && len(parts) > 0 && len(list) < maxParts; parts, at = parts[1:], 0 {
		p := parts[0][at:]
		if len(p) == 0 {
			continue
		}
		p = p[:min(len(p), left)]
		left -= len(p)
		piece := syscall.Iovec{Base: unsafe.SliceData(p)}
		piece.SetLen(len(p))
		list = append(list, piece)
	}
	n, err := call(syscall.SYS_WRITEV, fd, unsafe.Pointer(unsafe.SliceData(list)), len(list), 0)
	clear(list) // the parts are the caller's
	*v = list
	return n, err
}
