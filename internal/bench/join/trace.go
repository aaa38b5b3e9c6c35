package join

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
)

// maxLine bounds a line of a trace file, in bytes.
const maxLine = 4 << 20

// The routes that a proxy reports.
const (
	RoutePD       = "pd"       // Prefiller, then Decoder
	RouteLocal    = "local"    // append-prefill on the owner
	RouteFallback = "fallback" // a refused local attempt, then Prefiller and Decoder
)

// The legs of a request.
const (
	LegLocal   = "local"
	LegPrefill = "p"
	LegDecode  = "d"
)

// Leg is one request that the proxy sent to a backend.
type Leg struct {
	Leg       string `json:"leg"`
	RequestID string `json:"request_id"`
	Status    int    `json:"status"` // HTTP status, 0 when none came
	Output    int    `json:"output"` // output tokens or events that were passed on
}

// Route is a proxy's line about one client request.
type Route struct {
	RequestID string `json:"request_id"`
	Session   string `json:"session"`
	Route     string `json:"route"`
	Decoder   string `json:"decoder"`
	Rank      int    `json:"rank"`
	Reason    string `json:"reason"`
	Legs      []Leg  `json:"legs"`

	FallbackMs float64 `json:"fallback_ms"` // from the start of the refused attempt to its refusal; 0 without one
}

// Admit is a scheduler's admission of a request.
type Admit struct {
	Rank         int    `json:"rank"`
	Route        string `json:"route"`
	PromptTokens int    `json:"prompt_tokens"`
	CachedTokens int    `json:"cached_tokens"`
	External     int    `json:"external_tokens"` // that a connector brings
}

// Restore is one load of KV from a host tier.
type Restore struct {
	Tokens int `json:"tokens"`
}

// Refuse is a scheduler's refusal of a local attempt.
type Refuse struct {
	Rank         int    `json:"rank"`
	Reason       string `json:"reason"`
	PromptTokens int    `json:"prompt_tokens"`
	CachedTokens int    `json:"cached_tokens"`
}

// KVRead is one read of KV blocks from another engine.
type KVRead struct {
	Rank   int    `json:"rank"`
	Blocks int    `json:"blocks"`
	Bytes  int64  `json:"bytes"`
	Peer   string `json:"peer"`
	Failed string `json:"error,omitempty"`
}

// Finish is the end of a request in an engine.
type Finish struct {
	OutputTokens int    `json:"output_tokens"`
	FinishReason string `json:"finish_reason"`
}

// Engine holds everything that engines wrote about one leg.
type Engine struct {
	Admits   []Admit
	Refusals []Refuse
	Reads    []KVRead
	Restores []Restore
	Finishes []Finish
}

// Traces holds the lines of any number of trace files.
type Traces struct {
	Routes  []Route            // in the order of the file
	Engines map[string]*Engine // by the id of the leg
}

// ReadFiles reads trace files of proxies and engines.
func ReadFiles(paths ...string) (*Traces, error) {
	t := &Traces{Engines: make(map[string]*Engine)}
	for _, path := range paths {
		if err := t.readFile(path); err != nil {
			return nil, fmt.Errorf("trace file %s: %w", path, err)
		}
	}
	return t, nil
}

func (t *Traces) readFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return t.Read(f)
}

// Read adds the lines of one trace. A last line without its line end is still
// being written and is passed over.
func (t *Traces) Read(r io.Reader) error {
	in := bufio.NewReader(r)
	for n := 1; ; n++ {
		line, err := in.ReadBytes('\n')
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if len(line) > maxLine {
			return fmt.Errorf("line %d is longer than %d bytes", n, maxLine)
		}
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		if err := t.add(line); err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
	}
}

func (t *Traces) add(line []byte) error {
	var head struct {
		Event     string `json:"event"`
		RequestID string `json:"request_id"`
	}
	if err := json.Unmarshal(line, &head); err != nil {
		return err
	}
	if head.Event == "route" {
		return decode(line, &t.Routes)
	}
	e := t.Engines[head.RequestID]
	if e == nil {
		e = new(Engine)
		t.Engines[head.RequestID] = e
	}
	switch head.Event {
	case "admit":
		return decode(line, &e.Admits)
	case "refuse":
		return decode(line, &e.Refusals)
	case "kv_read":
		return decode(line, &e.Reads)
	case "kv_restore":
		return decode(line, &e.Restores)
	case "finish":
		return decode(line, &e.Finishes)
	}
	return nil
}

func decode[T any](line []byte, list *[]T) error {
	var v T
	if err := json.Unmarshal(line, &v); err != nil {
		return err
	}
	*list = append(*list, v)
	return nil
}
