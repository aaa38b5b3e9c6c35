// Package golden replays recorded scheduling histories through the public
// interface of the scheduler and compares every decision with the recorded
// one. A history is a gzip file of JSON lines: one header, requests and steps
// in the order of time, one end.
package golden

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"os"

	"github.com/sluice-serving/sluice/scheduler"
)

// Header describes a history.
type Header struct {
	Scenario string `json:"scenario"`
	About    string `json:"about"`
	Config   Config `json:"config"`
}

// Config is the configuration that the history was recorded with.
type Config struct {
	BlockSize            int    `json:"block_size"`
	NumBlocks            int    `json:"num_blocks"`
	MaxNumSeqs           int    `json:"max_num_seqs"`
	MaxNumBatchedTokens  int    `json:"max_num_batched_tokens"`
	MaxModelLen          int    `json:"max_model_len"`
	Policy               string `json:"policy"`
	EnablePrefixCaching  bool   `json:"enable_prefix_caching"`
	EnableChunkedPrefill bool   `json:"enable_chunked_prefill"`
	LongPrefillThreshold int    `json:"long_prefill_token_threshold"`
	ReserveFullISL       bool   `json:"scheduler_reserve_full_isl"`
	MaxLoRAs             int    `json:"max_loras"`
	KVConnector          bool   `json:"kv_connector"`
	KVLoadFailurePolicy  string `json:"kv_load_failure_policy"`
}

// Part is a piece of a prompt: token ids as such, or a run of generated ones.
type Part struct {
	IDs   []scheduler.Token `json:"ids"`
	Seed  uint64            `json:"seed"`
	Start uint64            `json:"start"`
	Len   int               `json:"len"`
}

// Request is a request of a history.
type Request struct {
	ID           string                     `json:"id"`
	ArrivalTime  float64                    `json:"arrival_time"`
	Priority     int                        `json:"priority"`
	Prompt       []Part                     `json:"prompt"`
	PromptLen    int                        `json:"prompt_len"`
	PromptFNV    string                     `json:"prompt_fnv"`
	MaxTokens    int                        `json:"max_tokens"`
	MinTokens    int                        `json:"min_tokens"`
	StopTokenIDs []scheduler.Token          `json:"stop_token_ids"`
	EOS          *scheduler.Token           `json:"eos"`
	IgnoreEOS    bool                       `json:"ignore_eos"`
	OutSeed      uint64                     `json:"out_seed"`
	OutOverride  map[string]scheduler.Token `json:"out_override"`
	Salt         string                     `json:"salt"`
	LoRA         int64                      `json:"lora"`
	KV           *KV                        `json:"kv"`

	tokens []scheduler.Token
}

// KV is what the stand-in connector does for a request.
type KV struct {
	Remote  int    `json:"remote"`
	Mode    string `json:"mode"`
	Once    *bool  `json:"once"`
	Unknown int    `json:"unknown"`
	Send    bool   `json:"send"`
}

// Step is one recorded step.
type Step struct {
	T        int               `json:"t"`
	Add      []string          `json:"add"`
	Abort    []string          `json:"abort"`
	Sched    []json.RawMessage `json:"sched"`
	Total    int               `json:"total"`
	Hits     map[string][2]int `json:"hits"`
	Load     []json.RawMessage `json:"load"`
	Unknown  []string          `json:"unknown"`
	Preempt  []string          `json:"preempt"`
	Rollback []string          `json:"rollback"`
	FinIDs   []string          `json:"fin_ids"`
	CPB      int               `json:"cpb"`
	Free1    int               `json:"free1"`
	AbortMid []string          `json:"abort_mid"`
	KVIn     *KVIn             `json:"kv_in"`
	Out      []json.RawMessage `json:"out"`
	Free2    int               `json:"free2"`
	N        [3]int            `json:"n"`
	Q1       *Queues           `json:"q1"`
	Q2       *Queues           `json:"q2"`
}

// KVIn is what the workers report with a step's result.
type KVIn struct {
	Recv    []string          `json:"recv"`
	Send    []string          `json:"send"`
	Invalid []json.RawMessage `json:"invalid"`
}

// Queues are the recorded queues.
type Queues struct {
	Run  []string `json:"run"`
	Wait []string `json:"wait"`
	Skip []string `json:"skip"`
}

// End are the recorded totals.
type End struct {
	Steps              int      `json:"steps"`
	Unfinished         []string `json:"unfinished"`
	TotalTokens        int      `json:"total_tokens"`
	Preemptions        int      `json:"preemptions"`
	Rollbacks          int      `json:"rollbacks"`
	Finished           int      `json:"finished"`
	FirstAdmissionHits int      `json:"first_admission_hits"`
	RemoteLoads        int      `json:"remote_loads"`
	Free               int      `json:"free"`
}

// History is a whole file.
type History struct {
	Header Header
	Events []Event
	End    End
}

// Event is a request or a step; the other one is nil.
type Event struct {
	Request *Request
	Step    *Step
}

// Read reads a history file.
func Read(path string) (*History, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // read only
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	h, err := parse(z)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return h, nil
}

func parse(r io.Reader) (*History, error) {
	h := &History{}
	in := bufio.NewScanner(r)
	in.Buffer(make([]byte, 1<<16), 1<<26)
	line, ended := 0, false
	for in.Scan() {
		line++
		var kind struct {
			Type string `json:"type"`
		}
		err := json.Unmarshal(in.Bytes(), &kind)
		if err == nil {
			switch kind.Type {
			case "header":
				err = json.Unmarshal(in.Bytes(), &h.Header)
			case "req":
				q := &Request{}
				if err = json.Unmarshal(in.Bytes(), q); err == nil {
					err = q.join()
				}
				h.Events = append(h.Events, Event{Request: q})
			case "step":
				st := &Step{}
				err = json.Unmarshal(in.Bytes(), st)
				h.Events = append(h.Events, Event{Step: st})
			case "end":
				err = json.Unmarshal(in.Bytes(), &h.End)
				ended = true
			default:
				err = fmt.Errorf("unknown type %q", kind.Type)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
	}
	if err := in.Err(); err != nil {
		return nil, err
	}
	if h.Header.Scenario == "" || !ended {
		return nil, fmt.Errorf("no header or no end in %d lines", line)
	}
	return h, nil
}

// join makes the prompt's tokens and checks them.
func (q *Request) join() error {
	for _, p := range q.Prompt {
		q.tokens = append(q.tokens, p.IDs...)
		for i := range p.Len {
			q.tokens = append(q.tokens, tok(p.Seed, p.Start+uint64(i)))
		}
	}
	if len(q.tokens) != q.PromptLen {
		return fmt.Errorf("request %s: the prompt has %d tokens, not %d", q.ID, len(q.tokens), q.PromptLen)
	}
	if sum := digest(q.tokens); sum != q.PromptFNV {
		return fmt.Errorf("request %s: the prompt's digest is %s, not %s", q.ID, sum, q.PromptFNV)
	}
	return nil
}

// sample is the k-th token that the model yields for the request.
func (q *Request) sample(k int) scheduler.Token {
	if t, ok := q.OutOverride[fmt.Sprint(k)]; ok {
		return t
	}
	return tok(q.OutSeed, uint64(k))
}

// tok is the i-th token of a generated run.
func tok(seed, i uint64) scheduler.Token {
	z := seed<<32 + i + 0x9E3779B97F4A7C15
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	z ^= z >> 31
	return scheduler.Token(100 + z%31900)
}

func digest(tokens []scheduler.Token) string {
	h := fnv.New64a()
	for _, t := range tokens {
		_, _ = h.Write([]byte{byte(t), byte(t >> 8), byte(t >> 16), byte(t >> 24)}) // never fails
	}
	return fmt.Sprintf("%016x", h.Sum64())
}
