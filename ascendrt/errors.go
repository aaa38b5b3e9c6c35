package ascendrt

import (
	"errors"
	"strconv"
	"strings"
)

// Sentinels. Errors of a backend are *[Error] values whose Class is one of
// these, so errors.Is tells what a caller may decide on.
var (
	// ErrUnsupported: this runtime, its version or this hardware lacks the feature.
	ErrUnsupported = errors.New("device: not supported by this runtime")
	// ErrUnavailable: the runtime's library or a device is missing on this machine.
	ErrUnavailable = errors.New("device: runtime not available")
	// ErrOutOfMemory: device or pinned memory is exhausted; nothing has changed.
	ErrOutOfMemory = errors.New("device: out of memory")
	// ErrResourceLimit: no stream, event, graph or queue slot is left.
	ErrResourceLimit = errors.New("device: stream, event or graph limit reached")
	// ErrCapture: a command or call that is illegal while capturing.
	ErrCapture = errors.New("device: illegal during capture")
	// ErrGraphUpdate: the graph cannot take this update in place; capture again.
	ErrGraphUpdate = errors.New("device: graph cannot be updated in place")
	// ErrTimeout: the deadline passed; the device goes on working.
	ErrTimeout = errors.New("device: timeout")
	// ErrInvalid: an argument is wrong: a type, a shape, a range, an index.
	ErrInvalid = errors.New("device: invalid argument")
	// ErrInUse: a live graph still names the buffer.
	ErrInUse = errors.New("device: buffer is named by a live graph")
	// ErrCompile: a program did not compile; the text holds the compiler's log.
	ErrCompile = errors.New("device: program does not compile")
	// ErrDegraded: the device works but has reported correctable trouble.
	ErrDegraded = errors.New("device: degraded")
	// ErrDeviceLost: a fault that nothing in this process can repair. Sticky.
	ErrDeviceLost = errors.New("device: lost; the process must be restarted")
	// ErrClosed: the handle or the device was closed before.
	ErrClosed = errors.New("device: closed")
)

// Error reports a failed call with the vendor's facts.
type Error struct {
	Backend string // "host", "cuda", "ascend"
	Call    string // the call that failed, with its arguments where they matter
	Code    int    // the vendor's code, 0 if the check is ours
	Name    string // the vendor's name of the code, "" if none
	Text    string // the vendor's text, or ours: what is wrong and what to do
	Command int    // index of the command in the submitted buffer, -1 if none
	Class   error  // one of the sentinels above
}

// Error gives one line: backend, call, command, code, name, text.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Backend)
	b.WriteString(": ")
	b.WriteString(e.Call)
	if e.Command >= 0 {
		b.WriteString(": command ")
		b.WriteString(strconv.Itoa(e.Command))
	}
	if e.Code != 0 || e.Name != "" {
		b.WriteString(": ")
		if e.Name != "" {
			b.WriteString(e.Name)
		}
		if e.Code != 0 {
			b.WriteString(" (")
			b.WriteString(strconv.Itoa(e.Code))
			b.WriteString(")")
		}
	}
	if e.Text != "" {
		b.WriteString(": ")
		b.WriteString(e.Text)
	} else if e.Class != nil {
		b.WriteString(": ")
		b.WriteString(e.Class.Error())
	}
	return b.String()
}

// Unwrap gives the class, so that errors.Is works with the sentinels.
func (e *Error) Unwrap() error { return e.Class }
