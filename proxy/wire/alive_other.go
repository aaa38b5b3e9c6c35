//go:build !unix

package wire

import (
	"errors"
	"syscall"
)

// alive cannot be asked here; a request on a closed connection is sent again.
func (c *conn) alive() bool { return true }

func isReset(err error) bool { return errors.Is(err, syscall.ECONNRESET) }
