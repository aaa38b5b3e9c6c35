// Package trace reads request traces: who asked what length when, and which
// blocks two prompts have in common. It knows these forms, by their content:
//
//   - one JSON object a line with hash_ids: one id per block of the prompt,
//     the last one partial, no sessions (Mooncake);
//   - one JSON object a line with session, turn and hash_runs: runs of
//     (first id, count) over full blocks (agent traces);
//   - CSV with TIMESTAMP, ContextTokens, GeneratedTokens (Azure), without blocks;
//   - one JSON object an event with request_received_ms and hash_runs (Dynamo).
//
// Files that end in .gz are unpacked.
package trace

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// Run is a run of consecutive block ids.
type Run struct{ Start, Len int64 }

// Request is one row.
type Request struct {
	Session string // "" if the form has none
	Agent   string // "" for the main agent
	Turn    int    // within session and agent
	At      int64  // ms since the session's start, or the trace's where there are no sessions
	Input   int    // tokens of the prompt
	Output  int    // tokens of the answer
	API     int64  // ms that the recorded call took; -1 unknown
	Think   int64  // ms of the client before the call; -1 unknown
	Blocks  []Run  // ids of the prompt's blocks
	InTool  bool   // the answer calls a tool
	Line    int    // in the file, from 1
}

// NumBlocks is the number of block ids.
func (r *Request) NumBlocks() int {
	n := int64(0)
	for _, b := range r.Blocks {
		n += b.Len
	}
	return int(n)
}

// Block is id i of the prompt, false if it has none there.
func (r *Request) Block(i int) (int64, bool) {
	at := int64(i)
	for _, b := range r.Blocks {
		if at < b.Len {
			return b.Start + at, true
		}
		at -= b.Len
	}
	return 0, false
}

// Common is the number of leading blocks that two prompts share.
func Common(a, b []Run) int {
	n, i, j := int64(0), 0, 0
	var x, y Run
	for {
		if x.Len == 0 {
			if i == len(a) {
				return int(n)
			}
			x = a[i]
			i++
		}
		if y.Len == 0 {
			if j == len(b) {
				return int(n)
			}
			y = b[j]
			j++
		}
		if x.Len == 0 || y.Len == 0 {
			continue
		}
		if x.Start != y.Start {
			return int(n)
		}
		k := min(x.Len, y.Len)
		n += k
		x = Run{x.Start + k, x.Len - k}
		y = Run{y.Start + k, y.Len - k}
	}
}

// Trace is a whole file.
type Trace struct {
	Name      string
	BlockSize int // tokens; 0 if the form has no blocks
	Sessions  SessionForm
	Requests  []Request
	Broken    []*LineError // lines that were left out
}

// SessionForm says what a trace knows of sessions.
type SessionForm uint8

const (
	NoSessions    SessionForm = iota // every request stands alone; At counts from the trace's start
	WithSessions                     // At counts from the session's start, or for Clock traces from the trace's
	SessionsClock                    // sessions, and At counts from the trace's start
)

// LineError is a line that cannot be read.
type LineError struct {
	Line   int
	Reason string
}

func (e *LineError) Error() string { return fmt.Sprintf("line %d: %s", e.Line, e.Reason) }

// Strictness says what broken lines do.
type Strictness uint8

const (
	Strict  Strictness = iota // the first broken line is the error
	Lenient                   // broken lines are left out and listed in Trace.Broken
)

// Open reads a file.
func Open(path string, s Strictness) (*Trace, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var in io.Reader = f
	if strings.HasSuffix(path, ".gz") {
		z, err := gzip.NewReader(f)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		defer z.Close()
		in = z
	}
	t, err := Read(in, s)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	t.Name = path[strings.LastIndexByte(path, '/')+1:]
	return t, nil
}

// maxLine bounds a line; prompts of a million tokens list their blocks in less.
const maxLine = 16 << 20

// Read reads a trace.
func Read(in io.Reader, s Strictness) (*Trace, error) {
	sc := bufio.NewScanner(in)
	sc.Buffer(make([]byte, 0, 1<<16), maxLine)
	t := &Trace{}
	var form *form
	line := 0
	for sc.Scan() {
		line++
		text := bytes.TrimSpace(sc.Bytes())
		if len(text) == 0 {
			continue
		}
		if form == nil {
			if form = recognise(text); form == nil {
				return nil, &LineError{line, "is of no form that is known: neither JSON with hash_ids or hash_runs, nor CSV with TIMESTAMP, ContextTokens, GeneratedTokens"}
			}
			t.Sessions = form.sessions
			if form.header {
				continue
			}
		}
		req := Request{Line: line, API: -1, Think: -1}
		keep, err := form.parse(text, &req, t)
		if err == nil && keep {
			err = req.check(t.BlockSize, form.partial)
		}
		if err != nil {
			le := &LineError{line, err.Error()}
			if s == Strict {
				return nil, le
			}
			t.Broken = append(t.Broken, le)
			continue
		}
		if keep {
			t.Requests = append(t.Requests, req)
		}
	}
	if err := sc.Err(); err != nil {
		return nil, &LineError{line + 1, err.Error()}
	}
	if len(t.Requests) == 0 {
		return nil, errors.New("has no requests")
	}
	if form.clock {
		t.rebase()
	}
	return t, nil
}

// rebase lets time begin with the first request.
func (t *Trace) rebase() {
	first := t.Requests[0].At
	for i := range t.Requests {
		first = min(first, t.Requests[i].At)
	}
	for i := range t.Requests {
		t.Requests[i].At -= first
	}
}

func (r *Request) check(blockSize int, partial bool) error {
	switch {
	case r.Input < 1:
		return fmt.Errorf("input length is %d, must be at least 1", r.Input)
	case r.Output < 0:
		return fmt.Errorf("output length is %d, must not be negative", r.Output)
	case r.At < 0:
		return fmt.Errorf("timestamp is %d ms, must not be negative", r.At)
	case r.Turn < 0:
		return fmt.Errorf("turn is %d, must not be negative", r.Turn)
	}
	for _, b := range r.Blocks {
		if b.Len < 1 || b.Start < 0 {
			return fmt.Errorf("block run (%d, %d) is not one", b.Start, b.Len)
		}
	}
	if blockSize > 0 {
		want := r.Input / blockSize
		if partial {
			want = (r.Input + blockSize - 1) / blockSize
		}
		if n := r.NumBlocks(); n != want {
			return fmt.Errorf("has %d blocks, %d tokens in blocks of %d make %d", n, r.Input, blockSize, want)
		}
	}
	return nil
}

// form is a way of writing rows.
type form struct {
	sessions SessionForm
	header   bool // the first line names columns
	partial  bool // the last block may be partial
	clock    bool // times are absolute
	parse    func(line []byte, r *Request, t *Trace) (keep bool, err error)
}

func recognise(line []byte) *form {
	if line[0] != '{' {
		if strings.HasPrefix(string(line), "TIMESTAMP,ContextTokens,GeneratedTokens") {
			return &form{header: true, clock: true, parse: parseAzure}
		}
		return nil
	}
	var keys map[string]json.RawMessage
	if json.Unmarshal(line, &keys) != nil {
		return nil
	}
	_, ids := keys["hash_ids"]
	_, runs := keys["hash_runs"]
	_, event := keys["event"]
	_, n := keys["nblocks"]
	switch {
	case ids:
		return &form{partial: true, parse: parseMooncake}
	case event:
		return &form{sessions: SessionsClock, clock: true, parse: parseDynamo}
	case runs && n:
		_, think := keys["think_ms"]
		s := SessionsClock
		if think {
			s = WithSessions
		}
		return &form{sessions: s, parse: parseAgent}
	}
	return nil
}

func parseMooncake(line []byte, r *Request, t *Trace) (bool, error) {
	var row struct {
		Timestamp int64   `json:"timestamp"`
		Input     int     `json:"input_length"`
		Output    int     `json:"output_length"`
		IDs       []int64 `json:"hash_ids"`
	}
	if err := json.Unmarshal(line, &row); err != nil {
		return false, err
	}
	t.BlockSize = 512
	r.At, r.Input, r.Output = row.Timestamp, row.Input, row.Output
	for _, id := range row.IDs {
		if k := len(r.Blocks) - 1; k >= 0 && r.Blocks[k].Start+r.Blocks[k].Len == id {
			r.Blocks[k].Len++
		} else {
			r.Blocks = append(r.Blocks, Run{id, 1})
		}
	}
	return true, nil
}

func pairs(flat []int64) ([]Run, error) {
	if len(flat)%2 != 0 {
		return nil, fmt.Errorf("hash_runs has %d numbers, must be pairs", len(flat))
	}
	out := make([]Run, 0, len(flat)/2)
	for i := 0; i < len(flat); i += 2 {
		out = append(out, Run{flat[i], flat[i+1]})
	}
	return out, nil
}

func parseAgent(line []byte, r *Request, t *Trace) (bool, error) {
	var row struct {
		Session string  `json:"session"`
		Agent   string  `json:"agent"`
		Turn    int     `json:"turn"`
		At      float64 `json:"timestamp"`
		Input   int     `json:"input_length"`
		Output  int     `json:"output_length"`
		API     *int64  `json:"api_ms"`
		Think   *int64  `json:"think_ms"`
		Blocks  int     `json:"nblocks"`
		Runs    []int64 `json:"hash_runs"`
		Stop    string  `json:"stop"`
	}
	if err := json.Unmarshal(line, &row); err != nil {
		return false, err
	}
	runs, err := pairs(row.Runs)
	if err != nil {
		return false, err
	}
	if row.Session == "" {
		return false, errors.New("session is empty")
	}
	if t.BlockSize == 0 {
		t.BlockSize = 64
		if row.Blocks > 0 && row.Input/row.Blocks < 32 {
			t.BlockSize = 16
		}
	}
	r.Session, r.Agent, r.Turn, r.At, r.Input, r.Output, r.Blocks = row.Session, row.Agent, row.Turn, int64(row.At), row.Input, row.Output, runs
	r.InTool = row.Stop == "tool_use"
	if row.API != nil {
		r.API = *row.API
	}
	if row.Think != nil {
		r.Think = *row.Think
	}
	return true, nil
}

func parseDynamo(line []byte, r *Request, t *Trace) (bool, error) {
	var row struct {
		Event   string  `json:"event"`
		Session string  `json:"session"`
		At      int64   `json:"request_received_ms"`
		Total   float64 `json:"total_time_ms"`
		Input   int     `json:"input_tokens"`
		Output  int     `json:"output_tokens"`
		Runs    []int64 `json:"hash_runs"`
	}
	if err := json.Unmarshal(line, &row); err != nil {
		return false, err
	}
	if row.Event != "request_end" {
		return false, nil
	}
	runs, err := pairs(row.Runs)
	if err != nil {
		return false, err
	}
	r.Session, r.At, r.Input, r.Output, r.Blocks, r.API = row.Session, row.At, row.Input, row.Output, runs, int64(row.Total)
	return true, nil
}

func parseAzure(line []byte, r *Request, _ *Trace) (bool, error) {
	rec, err := csv.NewReader(bytes.NewReader(line)).Read()
	if err != nil {
		return false, err
	}
	if len(rec) != 3 {
		return false, fmt.Errorf("has %d columns, must have 3", len(rec))
	}
	at, err := time.Parse("2006-01-02 15:04:05.9999999", rec[0])
	if err != nil {
		return false, err
	}
	if _, err := fmt.Sscan(rec[1], &r.Input); err != nil {
		return false, fmt.Errorf("ContextTokens %q: %w", rec[1], err)
	}
	if _, err := fmt.Sscan(rec[2], &r.Output); err != nil {
		return false, fmt.Errorf("GeneratedTokens %q: %w", rec[2], err)
	}
	r.At = at.UnixMilli()
	return true, nil
}
