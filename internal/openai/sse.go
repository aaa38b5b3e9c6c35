package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
)

// ContentTypeSSE is the media type of an event stream.
const ContentTypeSSE = "text/event-stream; charset=utf-8"

// Done is the data of the last event of a stream.
const Done = "[DONE]"

// ErrEventTooLong reports an event longer than the reader's limit.
var ErrEventTooLong = errors.New("event is longer than the limit")

// ErrWait is what a source gives a Reader that must not wait: nothing is there.
var ErrWait = errors.New("no event at the moment")

// DefaultMaxEvent is the limit in bytes of one event when none is given.
const DefaultMaxEvent = 16 << 20

// Event is one server-sent event. The slices are valid until the next call of Next.
type Event struct {
	// Raw is the event as it was read, with its terminating blank line.
	Raw []byte
	// Name is the event field; empty means message.
	Name []byte
	// Data is the data field, several lines joined with line feeds; nil when
	// the event has none (a comment, a lone id or retry).
	Data []byte
	// DataAt is where Data starts in Raw when it is a single line; -1 otherwise.
	DataAt int
}

// IsDone reports whether the event is the end marker of a stream.
func (e Event) IsDone() bool { return string(bytes.TrimSpace(e.Data)) == Done }

// Reader splits a byte stream into server-sent events. Lines may end with LF,
// CRLF or CR; reads may split the stream at any byte. It is not for concurrent use.
type Reader struct {
	src   io.Reader
	buf   []byte
	start int // first byte of the event being read
	scan  int // start of the line at hand
	seen  int // bytes of it that were looked at for its end
	max   int
	err   error
	join  []byte // joined data of an event with several data lines
	first bool   // nothing was read yet: a byte order mark may come
}

// NewReader reads events from src; maxEvent is the limit in bytes of one
// event, 0 means DefaultMaxEvent.
func NewReader(src io.Reader, maxEvent int) *Reader {
	r := new(Reader)
	r.Reset(src, maxEvent)
	return r
}

// Reset begins another stream, as NewReader does, in the memory of the last one. What
// was given out of that is not valid any more.
func (r *Reader) Reset(src io.Reader, maxEvent int) {
	if maxEvent <= 0 {
		maxEvent = DefaultMaxEvent
	}
	*r = Reader{src: src, max: maxEvent, first: true, buf: r.buf[:0], join: r.join[:0]}
}

// Memory is what the reader holds, in bytes.
func (r *Reader) Memory() int { return cap(r.buf) + cap(r.join) }

// Next gives the next event. It gives io.EOF at the end of the stream,
// io.ErrUnexpectedEOF when the stream ends inside an event, ErrEventTooLong, or
// the error of the underlying reader. After ErrWait it may be called again.
func (r *Reader) Next() (Event, error) {
	for {
		if end, ok := r.blankLine(); ok {
			raw := r.buf[r.start:end]
			r.start, r.scan = end, end
			return r.parse(raw), nil
		}
		if r.err != nil {
			if r.err == io.EOF && len(bytes.TrimSpace(r.buf[r.start:])) > 0 {
				return Event{}, io.ErrUnexpectedEOF
			}
			return Event{}, r.err
		}
		if len(r.buf)-r.start > r.max {
			r.err = ErrEventTooLong
			return Event{}, r.err
		}
		if !r.fill() {
			return Event{}, ErrWait
		}
	}
}

// Pending reports whether another whole event with LF line ends is already
// buffered, so that a writer may put off its flush.
func (r *Reader) Pending() bool {
	return bytes.Contains(r.buf[r.start:], []byte("\n\n"))
}

// Buffered is the part of the stream that was read but not yet given out.
func (r *Reader) Buffered() []byte { return r.buf[r.start:] }

// fill reads more; false when the source has nothing.
func (r *Reader) fill() bool {
	if r.start > 0 && (r.start == len(r.buf) || cap(r.buf)-len(r.buf) < 512) {
		n := copy(r.buf, r.buf[r.start:])
		r.buf, r.scan, r.start = r.buf[:n], r.scan-r.start, 0
	}
	if cap(r.buf)-len(r.buf) < 512 {
		grown := make([]byte, len(r.buf), max(4096, 2*cap(r.buf)))
		copy(grown, r.buf)
		r.buf = grown
	}
	for range 100 {
		n, err := r.src.Read(r.buf[len(r.buf):cap(r.buf)])
		r.buf = r.buf[:len(r.buf)+n]
		if err == ErrWait {
			return n > 0
		}
		if err != nil {
			r.err = err
		}
		if n > 0 || err != nil {
			return true
		}
	}
	r.err = io.ErrNoProgress
	return true
}

// blankLine looks for the end of the current event from r.scan on, which
// always stands at the start of a line, and gives the index after it.
func (r *Reader) blankLine() (int, bool) {
	if r.first && len(r.buf) > 0 {
		mark := []byte("\xef\xbb\xbf")
		switch {
		case bytes.HasPrefix(r.buf, mark):
			r.start, r.scan, r.first = 3, 3, false
		case r.err == nil && bytes.HasPrefix(mark, r.buf):
			return 0, false
		default:
			r.first = false
		}
	}
	for r.scan < len(r.buf) {
		rest := r.buf[r.scan:]
		i := lineEnd(rest[r.seen:])
		if i < 0 {
			r.seen = len(rest)
			return 0, false
		}
		i += r.seen
		r.seen = i
		next := r.scan + i + 1
		if rest[i] == '\r' {
			if next == len(r.buf) && r.err == nil && !(i == 0 && r.loneCR()) {
				return 0, false // a line feed may follow and belongs to this line end
			}
			if next < len(r.buf) && r.buf[next] == '\n' {
				next++
			}
		}
		r.scan, r.seen = next, 0
		if i == 0 {
			return next, true
		}
	}
	return 0, false
}

// lineEnd is the index of the first CR or LF, -1 when there is none.
func lineEnd(b []byte) int {
	i := bytes.IndexByte(b, '\n')
	if i >= 0 {
		b = b[:i]
	}
	if j := bytes.IndexByte(b, '\r'); j >= 0 {
		return j
	}
	return i
}

// loneCR reports whether the line before r.scan ended with a bare CR, so that
// the stream does not use CRLF and a blank line need not wait for an LF.
func (r *Reader) loneCR() bool { return r.scan > r.start && r.buf[r.scan-1] == '\r' }

func (r *Reader) parse(raw []byte) Event {
	ev := Event{Raw: raw, DataAt: -1}
	lines := 0
	for rest := raw; len(rest) > 0; {
		var line []byte
		at := len(raw) - len(rest)
		if i := lineEnd(rest); i >= 0 {
			line, rest = rest[:i], rest[i+1:] // of a CRLF the LF is left over as one more empty line
		} else {
			line, rest = rest, nil
		}
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "event":
			ev.Name = value
		case "data":
			switch lines++; lines {
			case 1:
				ev.Data = value[:len(value):len(value)]
				ev.DataAt = at + len(line) - len(value)
			case 2:
				ev.DataAt = -1
				r.join = append(append(append(r.join[:0], ev.Data...), '\n'), value...)
				ev.Data = r.join
			default:
				r.join = append(append(r.join, '\n'), value...)
				ev.Data = r.join
			}
		}
	}
	if lines > 0 && ev.Data == nil {
		ev.Data = []byte{}
	}
	return ev
}

// AppendEvent appends one event to dst: its name unless empty, then its data,
// a data line per line of it.
func AppendEvent(dst []byte, name string, data []byte) []byte {
	if name != "" {
		dst = append(append(append(dst, "event: "...), name...), '\n')
	}
	for {
		line, rest, more := bytes.Cut(data, []byte("\n"))
		dst = append(append(append(dst, "data: "...), line...), '\n')
		if !more {
			return append(dst, '\n')
		}
		data = rest
	}
}

// Stream writes an event stream as the answer of an HTTP request and flushes
// every event. It is not for concurrent use.
type Stream struct {
	w     http.ResponseWriter
	flush *http.ResponseController
	buf   []byte
	begun bool
}

// NewStream prepares an event stream on w. Nothing is sent before the first
// event, so an error answer is possible until then.
func NewStream(w http.ResponseWriter) *Stream {
	return &Stream{w: w, flush: http.NewResponseController(w)}
}

// Begun reports whether the answer's header has been sent.
func (s *Stream) Begun() bool { return s.begun }

// Raw writes bytes that already are whole events.
func (s *Stream) Raw(p []byte) error { return s.write(p) }

// write sends parts of an event, of which the last one ends it.
func (s *Stream) write(parts ...[]byte) error {
	if !s.begun {
		s.begun = true
		h := s.w.Header()
		h.Set("Content-Type", ContentTypeSSE)
		h.Set("Cache-Control", "no-cache")
		s.w.WriteHeader(http.StatusOK)
	}
	for _, p := range parts {
		if _, err := s.w.Write(p); err != nil {
			return err
		}
	}
	return s.flush.Flush()
}

// Data writes one event with the given data.
func (s *Stream) Data(data []byte) error {
	s.buf = AppendEvent(s.buf[:0], "", data)
	return s.Raw(s.buf)
}

// Send writes one event with v as JSON.
func (s *Stream) Send(v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return s.Data(data)
}

// SendPrompt is Send of an event that repeats a prompt's token ids: where v has
// PromptToCome for them list is written, their JSON. It is made before the event, so
// that a token which is ready does not wait until a long prompt is encoded. Without
// a list SendPrompt is Send.
func (s *Stream) SendPrompt(v any, list []byte) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	at := bytes.Index(data, promptToCome)
	if list == nil || at < 0 {
		return s.Data(data)
	}
	s.buf = append(append(s.buf[:0], "data: "...), data...)
	s.buf = append(s.buf, "\n\n"...)
	at += len("data: ") + len(promptToCome)
	return s.write(s.buf[:at-len(`[-1]`)], list, s.buf[at:])
}

// PromptToCome stands for a prompt's token ids in what SendPrompt is given. No token
// has the id, and nothing in a string of JSON looks like the member that it makes.
var (
	PromptToCome = []int32{-1}
	promptToCome = []byte(`"prompt_token_ids":[-1]`)
)

// Fail writes the error as an event; the stream then ends without its end marker.
func (s *Stream) Fail(e *Error) error { return s.Send(e) }

// Done writes the end marker.
func (s *Stream) Done() error { return s.Data([]byte(Done)) }
