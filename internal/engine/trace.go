package engine

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"sync"
)

// Trace appends one JSON object per line to a file: what the engine decided
// about each request. Its methods may be called from any goroutine; nil is a
// trace that writes nothing.
type Trace struct {
	lines chan any
	done  chan struct{}

	mu     sync.RWMutex // guards lines against a send after Close
	closed bool
	err    error // of the writer; read after done
}

// OpenTrace appends to the file, which is created if it does not exist.
func OpenTrace(path string) (*Trace, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open trace: %w", err)
	}
	t := &Trace{lines: make(chan any, 256), done: make(chan struct{})}
	go t.write(f)
	return t, nil
}

// write owns the file until the trace is closed. Lines are flushed when none is waiting.
func (t *Trace) write(f *os.File) {
	defer close(t.done)
	w := bufio.NewWriter(f)
	enc := json.NewEncoder(w)
	for line := range t.lines {
		err := enc.Encode(line)
		if err == nil && len(t.lines) == 0 {
			err = w.Flush()
		}
		if err != nil && t.err == nil {
			t.err = fmt.Errorf("write trace: %w", err)
		}
	}
	if err := w.Flush(); err != nil && t.err == nil {
		t.err = fmt.Errorf("write trace: %w", err)
	}
	if err := f.Close(); err != nil && t.err == nil {
		t.err = fmt.Errorf("close trace: %w", err)
	}
}

// add queues a line; lines added after Close are dropped.
func (t *Trace) add(line any) {
	if t == nil {
		return
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	if !t.closed {
		t.lines <- line
	}
}

// Close writes what is queued and returns the first error of all writes.
func (t *Trace) Close() error {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	if !t.closed {
		t.closed = true
		close(t.lines)
	}
	t.mu.Unlock()
	<-t.done
	return t.err
}

type admitLine struct {
	Event    string `json:"event"` // admit
	Request  string `json:"request_id"`
	Rank     int    `json:"rank"`
	Route    string `json:"route"` // append, local, remote
	Prompt   int    `json:"prompt_tokens"`
	Cached   int    `json:"cached_tokens"`
	External int    `json:"external_tokens,omitempty"`
}

type refuseLine struct {
	Event   string `json:"event"` // refuse
	Request string `json:"request_id"`
	Rank    int    `json:"rank"`
	Reason  string `json:"reason"`
	Prompt  int    `json:"prompt_tokens"`
	Cached  int    `json:"cached_tokens"`
}

type readLine struct {
	Event   string `json:"event"` // kv_read
	Request string `json:"request_id"`
	Rank    int    `json:"rank"`
	Blocks  int    `json:"blocks"`
	Bytes   int    `json:"bytes"`
	Peer    string `json:"peer"`
	Failed  string `json:"error,omitempty"`
}

type preemptLine struct {
	Event   string `json:"event"` // preempt
	Request string `json:"request_id"`
	Rank    int    `json:"rank"`
	Saved   bool   `json:"saved"`
}

// saveLine: the KV of a preempted request is on the host.
type saveLine struct {
	Event   string `json:"event"` // kv_save
	Request string `json:"request_id"`
	Rank    int    `json:"rank"`
	Blocks  int    `json:"blocks"`
	Tokens  int    `json:"tokens"`
}

// readyLine: every worker has reported the save; the request can be restored.
type readyLine struct {
	Event   string `json:"event"` // kv_ready
	Request string `json:"request_id"`
	Rank    int    `json:"rank"`
	Failed  string `json:"error,omitempty"`
}

// restoreLine: a load from the host tier or from files has ended.
type restoreLine struct {
	Event   string `json:"event"` // kv_restore
	Request string `json:"request_id"`
	Rank    int    `json:"rank"`
	Blocks  int    `json:"blocks"`
	Bytes   int    `json:"bytes"`
	Tokens  int    `json:"tokens"`
	Failed  string `json:"error,omitempty"`
}

// resumeLine: a preempted request runs again over so many computed tokens.
type resumeLine struct {
	Event    string `json:"event"` // resume
	Request  string `json:"request_id"`
	Rank     int    `json:"rank"`
	Computed int    `json:"computed_tokens"`
}

type finishLine struct {
	Event   string `json:"event"` // finish
	Request string `json:"request_id"`
	Rank    int    `json:"rank"`
	Output  int    `json:"output_tokens"`
	Reason  string `json:"finish_reason"`
}
