package proxy

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"sync"
)

// LegTrace is one leg of a request in the trace file.
type LegTrace struct {
	Leg       string `json:"leg"` // local, p or d
	RequestID string `json:"request_id"`
	Instance  string `json:"instance"` // host:port
	Rank      int    `json:"rank"`
	Status    int    `json:"status"` // HTTP status; 0 when no answer came
	Output    int    `json:"output"` // output tokens, or chunks with output where no count came
	Reason    string `json:"reason,omitempty"`
}

// RouteTrace is one line of the trace file: how one client request went.
type RouteTrace struct {
	Event       string     `json:"event"` // "route"
	RequestID   string     `json:"request_id"`
	Session     string     `json:"session"`
	Route       string     `json:"route"`   // pd, local or fallback
	Decoder     string     `json:"decoder"` // host:port that served last; empty when none
	Rank        int        `json:"rank"`
	Reason      string     `json:"reason"`
	Status      int        `json:"status"` // sent to the client; 499 when it went away first
	Prefiller   string     `json:"prefiller,omitempty"`
	Prompt      int        `json:"prompt_tokens"`
	Cached      int        `json:"cached_tokens"`
	FirstMillis float64    `json:"ttft_ms"`  // until the first output; 0 when none came
	Millis      float64    `json:"total_ms"` // until the end
	FellMillis  float64    `json:"fallback_ms,omitempty"`
	Trace       string     `json:"trace_id"` // of the W3C trace context on all legs
	Legs        []LegTrace `json:"legs"`
}

// tracer appends lines to a file from one goroutine of its own.
type tracer struct {
	lines chan RouteTrace
	done  chan struct{}
	once  sync.Once
	err   error // set before done is closed
}

func newTracer(path string) (*tracer, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("trace file: %w", err)
	}
	t := &tracer{lines: make(chan RouteTrace, 256), done: make(chan struct{})}
	go t.run(f)
	return t, nil
}

// run writes until the channel is closed, and flushes whenever it has caught up.
func (t *tracer) run(f *os.File) {
	defer close(t.done)
	w := bufio.NewWriterSize(f, 64<<10)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	keep := func(err error) {
		if err != nil && t.err == nil {
			t.err = err
		}
	}
	for line := range t.lines {
		keep(enc.Encode(line))
		if len(t.lines) == 0 {
			keep(w.Flush())
		}
	}
	keep(w.Flush())
	keep(f.Close())
}

// write hands a line over; it waits when the disk cannot keep up. It must not
// be called after close.
func (t *tracer) write(line RouteTrace) {
	if t != nil {
		t.lines <- line
	}
}

// close writes what is left and gives the first error of the writer.
func (t *tracer) close() error {
	if t == nil {
		return nil
	}
	t.once.Do(func() { close(t.lines) })
	<-t.done
	return t.err
}
