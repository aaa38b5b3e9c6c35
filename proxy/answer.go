package proxy

import (
	"net/http"
	"strconv"
	"time"

	"github.com/sluice-serving/sluice/internal/openai"
)

// answer writes to the client. Its header goes out with the first byte, and
// not before, so that until then every other answer is still possible.
type answer struct {
	w       http.ResponseWriter
	flush   *http.ResponseController
	timeout time.Duration
	status  int // sent; 0 while nothing is
	stream  bool
	set     time.Time // when the deadline was set last
	direct  direct    // of a stream
}

// begun reports whether the client has been sent anything.
func (a *answer) begun() bool { return a.status != 0 }

// deadline gives the next write the configured time, or up to an eighth more:
// it is set anew only when that much has passed.
func (a *answer) deadline(now time.Time) {
	if now.Sub(a.set) < a.timeout/8 {
		return
	}
	a.set = now
	_ = a.flush.SetWriteDeadline(now.Add(a.timeout + a.timeout/8)) // a writer without deadlines writes without one
}

// whole sends a complete answer.
func (a *answer) whole(status int, contentType string, body []byte) bool {
	a.status = status
	a.deadline(time.Now())
	h := a.w.Header()
	if contentType != "" {
		h["Content-Type"] = []string{contentType}
	}
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	a.w.WriteHeader(status)
	_, err := a.w.Write(body)
	return err == nil
}

// events sends bytes that are whole events, the header before the first.
// pending says that more will follow at once, so that the flush can wait.
func (a *answer) events(p []byte, flush flushing, now time.Time) bool {
	if !a.begun() {
		a.status, a.stream = http.StatusOK, true
		h := a.w.Header()
		h["Content-Type"] = []string{openai.ContentTypeSSE}
		h["Cache-Control"] = []string{"no-cache"}
		a.w.WriteHeader(http.StatusOK)
		if a.direct.conn != nil {
			flush = flushNow // the server's buffers are to be empty from now on
		}
	} else if a.direct.conn != nil {
		a.deadline(now)
		return a.direct.add(p) && (flush == flushLater || a.direct.flush())
	}
	a.deadline(now)
	if _, err := a.w.Write(p); err != nil {
		return false
	}
	return flush == flushLater || a.flush.Flush() == nil
}

// end sends what still waits for a flush. The server ends the answer after it.
func (a *answer) end() { a.direct.flush() }

// flushing says whether written events go out at once.
type flushing uint8

const (
	flushNow flushing = iota
	flushLater
)

// fail tells the client about an error: as a status while nothing was sent, as
// an event in a stream. A whole answer that was begun cannot be mended.
func (a *answer) fail(e *openai.Error) {
	switch {
	case !a.begun():
		a.status = e.Status
		a.deadline(time.Now())
		e.Write(a.w)
	case a.stream:
		body, err := e.MarshalJSON()
		if err != nil { // an error always encodes
			panic(err)
		}
		a.events(openai.AppendEvent(nil, "", body), flushNow, time.Now())
	}
}
