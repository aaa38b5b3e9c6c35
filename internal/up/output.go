package up

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
)

// keptLines is how many lines of a child's output an error can quote.
const keptLines = 8

// maxLine is the length in bytes from which a line is written in pieces.
const maxLine = 16 << 10

// Log gathers the output of several children, each line with the name of its child.
type Log struct {
	mu    sync.Mutex
	dst   io.Writer
	width int
}

// NewLog writes to dst, which the caller owns.
func NewLog(dst io.Writer) *Log { return &Log{dst: dst, width: 4} }

func (l *Log) line(name string, line []byte) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.width = max(l.width, len(name))
	// A log that cannot be written is no reason to end the children.
	_, _ = fmt.Fprintf(l.dst, "%-*s | %s\n", l.width, name, line)
}

// output splits what a child prints into lines. It implements io.Writer for exec.
type output struct {
	name  string
	log   *Log
	ready chan struct{} // closed at the ready line

	mu      sync.Mutex
	rest    []byte
	recent  []string
	address string
}

func newOutput(name string, log *Log) *output {
	return &output{name: name, log: log, ready: make(chan struct{})}
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.rest = append(o.rest, p...)
	for {
		i := bytes.IndexByte(o.rest, '\n')
		if i < 0 && len(o.rest) < maxLine {
			return len(p), nil
		}
		if i < 0 {
			o.line(o.rest)
			o.rest = o.rest[:0]
			return len(p), nil
		}
		o.line(bytes.TrimSuffix(o.rest[:i], []byte("\r")))
		o.rest = append(o.rest[:0], o.rest[i+1:]...)
	}
}

func (o *output) line(b []byte) {
	o.log.line(o.name, b)
	text := string(b)
	if len(o.recent) == keptLines {
		o.recent = slices.Delete(o.recent, 0, 1)
	}
	o.recent = append(o.recent, text)
	if o.address != "" {
		return
	}
	if _, after, ok := strings.Cut(text, readyLine); ok {
		if fields := strings.Fields(after); len(fields) > 0 && strings.HasPrefix(fields[0], "http") {
			o.address = strings.TrimSuffix(fields[0], "/")
			close(o.ready)
		}
	}
}

// close writes a last line that lacks its end.
func (o *output) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.rest) > 0 {
		o.line(o.rest)
		o.rest = nil
	}
}

func (o *output) url() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.address
}

func (o *output) last() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.recent)
}
