package demo

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"

	"github.com/sluice-serving/sluice/internal/bench/join"
	"github.com/sluice-serving/sluice/internal/bench/measure"
)

// Report is everything that a run found.
type Report struct {
	Workload  WorkloadInfo    `json:"workload"`
	Processes []Process       `json:"processes"`
	Engines   []EngineInfo    `json:"engines"`
	Probes    []Probe         `json:"probes"`
	Arms      []Arm           `json:"arms"`
	Uncached  measure.Summary `json:"uncached"`
	Control   *Control        `json:"negative_control,omitempty"`
	PeakBytes int64           `json:"peak_memory_bytes"`
	Seconds   float64         `json:"seconds"` // of the whole run
	Checks    []Check         `json:"checks"`
}

// WorkloadInfo names the frozen workload.
type WorkloadInfo struct {
	Hash      string  `json:"sha256"`
	Seed      uint64  `json:"seed"`
	Sessions  int     `json:"sessions"`
	Requests  int     `json:"requests"`
	FollowUps int     `json:"follow_ups"`
	Window    float64 `json:"arrival_window_s"` // as frozen

	PromptSeconds float64 `json:"prefiller_prompt_s"` // measured time of one first prompt
	TimeScale     float64 `json:"time_scale"`         // of the frozen times in this run
}

// Process is a command that was started.
type Process struct {
	Name string   `json:"name"`
	Args []string `json:"args"`
}

// EngineInfo is what a running engine says about itself.
type EngineInfo struct {
	Name       string `json:"name"`
	Role       string `json:"role"`
	Scheduling string `json:"scheduling"` // sync or async
	Runner     string `json:"runner"`     // model-runner generation
	Device     string `json:"device"`
	Model      string `json:"model"`
	BlockBytes int64  `json:"kv_block_bytes"`
}

// String is what people are told of an engine; one without a connector has no role.
func (e *EngineInfo) String() string {
	return fmt.Sprintf("role %s, %s scheduling, model runner %s, device %s", cmp.Or(e.Role, "none"), e.Scheduling, e.Runner, e.Device)
}

// Probe is one request that was sent before the arms to show a decision on a rank.
type Probe struct {
	RequestID string `json:"request_id"`
	Kind      string `json:"kind"` // warm hit or intentional miss
	Rank      int    `json:"rank"`
	Route     string `json:"route"`
	Reason    string `json:"reason"`
	Error     string `json:"error,omitempty"`
}

// Arm is the outcome of one arm.
type Arm struct {
	Name            string          `json:"name"`
	Title           string          `json:"title"`
	Routing         string          `json:"routing"`
	PrefillerReuse  string          `json:"prefiller_prefix_reuse"`
	CacheSalt       string          `json:"cache_salt"`
	WorkloadHash    string          `json:"workload_sha256"`
	Started         float64         `json:"started_s"` // since the run began
	Ended           float64         `json:"ended_s"`   // its last block is let go
	Summary         measure.Summary `json:"summary"`
	Correct         int             `json:"answer_correct"`
	SameAsBaseline  int             `json:"same_as_baseline"`
	Hits            int             `json:"hits"`
	Fallbacks       int             `json:"fallbacks"`
	RankHits        []int           `json:"hits_by_rank"`
	RankFallbacks   []int           `json:"fallbacks_by_rank"`
	HitTokens       int             `json:"hit_tokens"`        // cached tokens of the hits
	HitPromptTokens int             `json:"hit_prompt_tokens"` // prompt tokens of the hits
	QueuePeak       float64         `json:"prefiller_queue_peak"`
	FallbackCost    measure.Spread  `json:"fallback_cost_ms"`
	FullShare       float64         `json:"full_graph_share"`
	Steps           float64         `json:"decoder_steps"`
	NonFull         map[string]int  `json:"non_full_steps_by_reason"`
	FullStepMs      float64         `json:"full_step_mean_ms"`
	OtherStepMs     float64         `json:"non_full_step_mean_ms"`
	PrefillTokens   float64         `json:"prefiller_computed_tokens"`
	KVBlocks        int64           `json:"kv_blocks_pulled"`
	KVBytes         int64           `json:"kv_bytes_pulled"`
	CountedBlocks   float64         `json:"kv_blocks_by_counter"`
	CountedBytes    float64         `json:"kv_bytes_by_counter"`
	HeldAfter       float64         `json:"blocks_held_after"`

	records  []measure.Record
	rows     []join.Row
	problems []string
}

// Control is the negative control of the answer comparison.
type Control struct {
	Answers int `json:"answers"`
	Changed int `json:"changed"` // after one cached KV block was overwritten with noise
	Broken  int `json:"broken"`  // answers without noise that were wrong, and answers that were not valid
}

// Check is one thing that had to hold.
type Check struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail"`
}

// Failed lists the checks that did not hold.
func (r *Report) Failed() []Check {
	var out []Check
	for _, c := range r.Checks {
		if !c.OK {
			out = append(out, c)
		}
	}
	return out
}

// WriteJSON writes the report.
func (r *Report) WriteJSON(dst io.Writer) error {
	enc := json.NewEncoder(dst)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}
