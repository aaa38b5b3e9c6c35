//go:build unix && !linux

package socket

import "errors"

// lane is not made here.
type lane struct{}

func (*Conn) pumped(func() bool) error { return errors.ErrUnsupported }

func (*Conn) shut() {}

func (*Conn) joinedAs() uintptr { return 0 }
