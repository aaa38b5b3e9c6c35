package tcp

import (
	"errors"
	"os"
	"time"
)

// hungUpWait is how long a connection is read from whose end cannot be asked for at once.
const hungUpWait = 200 * time.Microsecond

// hungUp reports whether the peer has ended a connection on which nothing is expected.
func (w *wire) hungUp() bool {
	if w.br.Buffered() > 0 {
		return false
	}
	if end, known := ended(w.conn); known {
		return end
	}
	if w.conn.SetReadDeadline(time.Now().Add(hungUpWait)) != nil {
		return true
	}
	_, err := w.br.Peek(1)
	return err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
}
