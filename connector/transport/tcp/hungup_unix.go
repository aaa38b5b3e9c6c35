//go:build unix

package tcp

import (
	"net"
	"syscall"
	"time"
)

// ended looks into the socket's buffer, if there is no other layer between.
func ended(c net.Conn) (end, known bool) {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return false, false
	}
	raw, err := t.SyscallConn()
	if err != nil || t.SetReadDeadline(time.Time{}) != nil {
		return true, true
	}
	err = raw.Read(func(fd uintptr) bool {
		var b [1]byte
		n, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK)
		end = n == 0 && err == nil || err != nil && err != syscall.EAGAIN && err != syscall.EINTR
		return true
	})
	return end || err != nil, true
}
