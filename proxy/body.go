package proxy

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/sluice-serving/sluice/internal/openai"
	"github.com/sluice-serving/sluice/proxy/splice"
)

// memory is what a body takes: its text and the places of its members.
type memory struct {
	raw    []byte
	object splice.Object
}

// buffers keeps the memory of bodies for the next ones.
var buffers = sync.Pool{New: func() any { return new(memory) }}

// maxKept is the largest body whose memory is kept.
const maxKept = 1 << 20

// dropBody gives the body's memory back: nothing will be sent again.
func (x *exchange) dropBody() {
	kept := x.memory
	x.body, x.memory = nil, nil
	if kept != nil && cap(kept.raw) <= maxKept {
		buffers.Put(kept)
	}
}

// readBody reads the whole body within the limits of size and time.
func (x *exchange) readBody() (*memory, *openai.Error) {
	limit := x.p.cfg.MaxBody
	if x.r.ContentLength > limit {
		x.w.Header().Set("Connection", "close") // the rest of the body is not read
		return nil, openai.BodyTooLarge(limit)
	}
	control := http.NewResponseController(x.w)
	_ = control.SetReadDeadline(time.Now().Add(x.p.cfg.BodyTimeout)) // a writer without deadlines reads without one
	var src io.Reader = http.MaxBytesReader(x.w, x.r.Body, limit)
	switch strings.ToLower(x.r.Header.Get("Content-Encoding")) {
	case "", "identity":
	case "gzip":
		packed, err := gzip.NewReader(src)
		if err != nil {
			return nil, openai.BadRequest("", "the body is not gzip as its header says")
		}
		src = io.LimitReader(packed, limit+1)
	default:
		return nil, &openai.Error{Status: http.StatusUnsupportedMediaType, Type: openai.TypeInvalidRequest, Message: "the body's content encoding is not supported: use identity or gzip"}
	}
	kept, _ := buffers.Get().(*memory)
	var err error
	kept.raw, err = readAll(kept.raw[:0], src, max(x.r.ContentLength, 0))
	if err == nil && int64(len(kept.raw)) <= limit {
		_ = control.SetReadDeadline(time.Time{})
		return kept, nil
	}
	if cap(kept.raw) <= maxKept {
		buffers.Put(kept)
	}
	// The rest of the body is not waited for: the connection ends here.
	_ = control.SetReadDeadline(time.Now())
	x.w.Header().Set("Connection", "close")
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) || err == nil {
		return nil, openai.BodyTooLarge(limit)
	}
	return nil, openai.BadRequest("", "the body could not be read whole")
}

// readAll appends all of src to buf, which it grows at once to the expected
// size but no further than is believable.
func readAll(buf []byte, src io.Reader, expected int64) ([]byte, error) {
	if want := int(min(expected, maxKept)) + bytes.MinRead; cap(buf) < want {
		buf = make([]byte, 0, want)
	}
	for {
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
		n, err := src.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if err != nil {
			if err == io.EOF {
				err = nil
			}
			return buf, err
		}
	}
}

// eligible reports whether the request may be attempted locally: one prompt,
// one answer, and nothing that needs every prompt token computed.
func (x *exchange) eligible() bool {
	for _, key := range []string{"n", "best_of"} {
		if v := x.body.Raw(key); v != nil && v[0] != 'n' && string(v) != "1" {
			return false
		}
	}
	for _, key := range []string{"echo", "prompt_logprobs", "use_beam_search"} {
		if v := x.body.Raw(key); v != nil && v[0] != 'n' && v[0] != 'f' {
			return false
		}
	}
	return x.prompts() < 2
}

// prompts is the number of prompts in the body.
func (x *exchange) prompts() int {
	raw := x.body.Raw(x.at.prompt)
	if x.at.prompt != "prompt" || len(raw) == 0 || raw[0] != '[' {
		return 1
	}
	n := 0
	splice.Elements(raw, func(e []byte) bool {
		if e[0] != '"' && e[0] != '[' { // the token ids of one
			n = 1
			return false
		}
		n++
		return true
	})
	return max(n, 1)
}

// hasAssistant reports whether a message list holds an answer of the model.
func hasAssistant(list []byte) bool {
	if !bytes.Contains(list, []byte("assistant")) && !bytes.ContainsRune(list, '\\') {
		return false // a role that is written with escapes holds a backslash
	}
	found := false
	splice.Elements(list, func(raw []byte) bool {
		role, _ := splice.StringOf(splice.Field(raw, "role"))
		found = role == "assistant"
		return !found
	})
	return found
}
