package replay

import (
	"errors"
	"fmt"
	"strings"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/graphs"
)

// Sentinels.
var (
	// ErrSealed: a capture after start-up. Serving never captures.
	ErrSealed = errors.New("replay: the set is sealed; nothing is captured while serving")
	// ErrTwice: the key has been captured before.
	ErrTwice = errors.New("replay: captured before")
	// ErrNested: a break within a break, or a capture within a capture.
	ErrNested = errors.New("replay: nested")
	// ErrHeld: every result slot is still held; release one first.
	ErrHeld = errors.New("replay: all results are still held")
	// ErrReleased: the result was released before.
	ErrReleased = errors.New("replay: the result was released")
	// ErrOrder: host values would be replaced out of turn.
	ErrOrder = errors.New("replay: update and launch out of order")
	// ErrShape: a batch does not fit the buffers or the decision.
	ErrShape = errors.New("replay: batch does not fit")
	// ErrMoved: an input is not where it was at capture.
	ErrMoved = errors.New("replay: an input moved since capture")
	// ErrBusy: every image of the static inputs belongs to a step in flight.
	ErrBusy = errors.New("replay: too many steps in flight")
)

// MissingKeyError is the error of a launch whose graph does not exist. It is
// never answered by running the step another way: a hidden miss is a hidden
// loss of speed, and a graph captured then would block serving.
type MissingKeyError struct{ Key graphs.Key }

func (e *MissingKeyError) Error() string {
	return fmt.Sprintf("replay: no graph for %v was captured", e.Key)
}

// ExhaustedError is the error of a capture that the device has no resources
// for.
type ExhaustedError struct {
	Key      graphs.Key
	Captured int    // keys captured before
	Advice   string // what to do
	Err      error
}

func (e *ExhaustedError) Error() string {
	return fmt.Sprintf("replay: the device has no resources left for %v after %d graphs: %s: %v", e.Key, e.Captured, e.Advice, e.Err)
}

func (e *ExhaustedError) Unwrap() error { return e.Err }

const (
	adviceSizes  = "capture fewer or smaller sizes, or use mode FULL_DECODE_ONLY or FULL, which hold fewer graphs; mode NONE confirms the cause"
	adviceMemory = "capture fewer or smaller sizes, or leave more device memory beside the KV pool"
	adviceDriver = "the driver is too old for this many graphs: install HDK 25.5.1 or newer"
)

// Codes of the Ascend runtime for streams that run out.
const (
	codeStreamResource  = 207005
	codeStreamExhausted = 207008
)

// Advice recognises the errors of a device whose resources are exhausted and
// says what to do; ok is false for every other error.
func Advice(err error) (advice string, ok bool) {
	if err == nil {
		return "", false
	}
	text := strings.ToLower(err.Error())
	var code int
	if e, found := errors.AsType[*ascendrt.Error](err); found {
		code = e.Code
	}
	streamCode := code == codeStreamExhausted || code == codeStreamResource ||
		strings.Contains(text, "207008") || strings.Contains(text, "207005")
	switch {
	case strings.Contains(text, "alloc sq cq fail"):
		return adviceDriver, true
	case strings.Contains(text, "insufficient_stream_resources"),
		strings.Contains(text, "stream resources are insufficient"),
		streamCode && strings.Contains(text, "stream"),
		errors.Is(err, ascendrt.ErrResourceLimit):
		return adviceSizes, true
	case errors.Is(err, ascendrt.ErrOutOfMemory):
		return adviceMemory, true
	}
	return "", false
}
