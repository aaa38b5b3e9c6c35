//go:build !unix

package socket

import (
	"errors"
	"net"
)

// Conn is not made here.
type Conn struct{ net.Conn }

// New gives nil: connections stay as they are.
func New(net.Conn) *Conn { return nil }

// WriteParts is not called.
func (*Conn) WriteParts([][]byte) error { return errors.ErrUnsupported }

// Poll is not called.
func (*Conn) Poll(func() bool) error { return errors.ErrUnsupported }

// TryRead is not called.
func (*Conn) TryRead([]byte, bool) (int, error) { return 0, errors.ErrUnsupported }

// Ended is not called.
func (*Conn) Ended() bool { return false }

// Quiet is not called.
func (*Conn) Quiet() bool { return true }
