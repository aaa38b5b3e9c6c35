package points

import (
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"math"
	"time"

	"github.com/sluice-serving/sluice/internal/bench/measure"
	"github.com/sluice-serving/sluice/internal/bench/scrape"
)

// version of a line.
const version = 1

// Origin says where a line comes from.
type Origin struct {
	Hardware  string `json:"hardware"`               // what the engines ran on
	Commit    string `json:"commit"`                 // of the binary
	Command   string `json:"command"`                // that was run
	Transport string `json:"transport"`              // of KV between the engines
	Flags     string `json:"engine_flags,omitempty"` // that both engines were given beside the preset's
	Shared    bool   `json:"one_device,omitempty"`   // by Prefiller and Decoders: one device for all
	Sizes     Sizes  `json:"sizes"`
}

// Sizes are what the engines of a point were given.
type Sizes struct {
	PrefillerTokens int   `json:"prefiller_kv_tokens"`
	DecoderTokens   int   `json:"decoder_kv_tokens"`
	PrefillerStep   int   `json:"prefiller_step_tokens"`
	DecoderStep     int   `json:"decoder_step_tokens"`
	Seqs            int   `json:"decoder_seqs"` // requests that run at once on the Decoder
	Host            int64 `json:"host_tier_bytes,omitempty"`
	Quiet           int   `json:"quiet_steps,omitempty"` // of the governor of arms with one
}

func (s Sizes) String() string {
	out := fmt.Sprintf("KV of %d tokens at P and %d at D", s.PrefillerTokens, s.DecoderTokens)
	if s.Quiet > 0 {
		out += fmt.Sprintf(", attempts wait up to %d steps for quiet", s.Quiet)
	}
	return out
}

// Line is one point that was measured.
type Line struct {
	Version int       `json:"version"`
	Date    time.Time `json:"date"`
	Origin
	Point
	Figures
}

// planned is what is known of a line's setting before it is measured.
func (o *Origin) planned() string {
	s := o.Hardware + ", KV by " + o.Transport + ", " + o.Sizes.String()
	if o.Flags != "" {
		s += ", engines with " + o.Flags
	}
	return s
}

// setting is what lines must agree on to be compared.
func (l *Line) setting() string {
	if l.Way == "" {
		return l.planned()
	}
	return l.planned() + ", moved by way of " + l.Way
}

// Figures is what a point gave.
type Figures struct {
	Requests int    `json:"requests"`
	Valid    int    `json:"valid"`
	Error    string `json:"first_error,omitempty"`

	WallS    float64 `json:"wall_s"`  // of the whole point
	TotalS   float64 `json:"total_s"` // to the end of the last request
	OutputPS float64 `json:"output_tokens_per_s"`
	Tokens   int     `json:"output_tokens"`
	Events   int     `json:"output_events"` // that carried them

	Full         int            `json:"full_steps"` // of the Decoder
	Piecewise    int            `json:"piecewise_steps"`
	None         int            `json:"eager_steps"`
	NonFullShare float64        `json:"non_full_share"`
	Reasons      map[string]int `json:"non_full_reasons,omitempty"`
	FullMs       float64        `json:"full_step_mean_ms"`
	OtherMs      float64        `json:"other_step_mean_ms"`
	Preempted    int            `json:"preemptions"` // on the Decoder: requests that lost their blocks while they ran; notRecorded in lines of earlier versions

	TPOT Spread `json:"tpot_ms"`
	ITL  Spread `json:"itl_ms"`
	TTFT Spread `json:"ttft_ms"`

	KVBytes       float64 `json:"kv_bytes"`         // that the Decoder received
	TokenBytes    float64 `json:"kv_token_bytes"`   // of KV
	Way           string  `json:"kv_way,omitempty"` // on which most of them came, where the engine tells
	PrefillTokens float64 `json:"prefiller_tokens"`
	HeldAfter     float64 `json:"blocks_held_after"`

	Client Lag    `json:"client"`
	Alone  *Alone `json:"alone,omitempty"`

	// Of append-prefill.
	PromptMs      float64        `json:"prompt_ms,omitempty"` // measured at the Prefiller, one first prompt alone
	Factor        float64        `json:"time_factor,omitempty"`
	Hits          int            `json:"hits"`
	Fallbacks     int            `json:"fallbacks"`
	Refusals      map[string]int `json:"refusals,omitempty"` // fallbacks by reason
	QueuePeak     float64        `json:"queue_peak"`
	Contradicts   int            `json:"contradictions"` // between proxy, scheduler and connector
	Contradiction string         `json:"first_contradiction,omitempty"`
	Restored      float64        `json:"host_tier_loads"`
	Workload      string         `json:"workload_sha256,omitempty"`
	Answers       []string       `json:"answers,omitempty"` // a checksum of each answer's tokens
}

// notRecorded is a count that a line does not have.
const notRecorded = -1

// Spread is a figure's distribution.
type Spread struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P95  float64 `json:"p95"`
	P99  float64 `json:"p99"`
	Max  float64 `json:"max"`
	// Curve is every second percentile, from the least to the greatest value.
	Curve []float64 `json:"curve,omitempty"`
}

func newSpread(values []float64) Spread {
	if len(values) == 0 {
		return Spread{}
	}
	s := measure.NewSpread(values)
	out := Spread{Mean: s.Mean, P50: s.P50, P95: s.P95, P99: s.P99, Max: s.Max}
	out.Curve = curve(values, 51)
	return out
}

// curve is n percentiles, from the least to the greatest value, to four digits behind
// the point.
func curve(values []float64, n int) []float64 {
	out := measure.Percentiles(values, n)
	for i, v := range out {
		out[i] = math.Round(v*1e4) / 1e4
	}
	return out
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// fromMilliseconds gives back what milliseconds was given, to the nanosecond.
func fromMilliseconds(ms float64) time.Duration {
	return time.Duration(math.Round(ms * float64(time.Millisecond)))
}

// client takes what the load generator saw.
func (f *Figures) client(records []measure.Record) {
	s := measure.Summarize(records)
	f.Requests, f.Valid, f.Error, f.TotalS, f.OutputPS, f.Tokens = s.Requests, s.Valid, s.FirstError, s.TotalSeconds, s.OutputThroughput, s.OutputTokens
	var ttft, tpot, itl []float64
	for i := range records {
		r := &records[i]
		if d, ok := r.TTFT(); ok {
			ttft = append(ttft, milliseconds(d))
			f.Events++
		}
		if d, ok := r.TPOT(); ok {
			tpot = append(tpot, milliseconds(d))
		}
		f.Events += len(r.Gaps)
		for _, g := range r.Gaps {
			itl = append(itl, milliseconds(g))
		}
	}
	f.TTFT, f.TPOT, f.ITL = newSpread(ttft), newSpread(tpot), newSpread(itl)
}

// pages are the metrics of Prefiller and Decoder at one moment.
type pages struct{ prefiller, decoder scrape.Page }

// engines takes the growth of the engines' counters.
func (f *Figures) engines(before, after pages) {
	const steps, seconds = "sluice_graph_steps_total", "sluice_step_seconds"
	d0, d1 := before.decoder, after.decoder
	modes := scrape.Minus(d1.By(steps, "mode", nil), d0.By(steps, "mode", nil))
	f.Full, f.Piecewise, f.None = int(modes["FULL"]), int(modes["PIECEWISE"]), int(modes["NONE"])
	all := f.Full + f.Piecewise + f.None
	if all > 0 {
		f.NonFullShare = float64(f.Piecewise+f.None) / float64(all)
	}
	f.Reasons = map[string]int{}
	for _, mode := range []string{"PIECEWISE", "NONE"} {
		want := map[string]string{"mode": mode}
		for reason, n := range scrape.Minus(d1.By(steps, "reason", want), d0.By(steps, "reason", want)) {
			f.Reasons[reason] += int(n)
		}
	}
	sums := scrape.Minus(d1.By(seconds+"_sum", "mode", nil), d0.By(seconds+"_sum", "mode", nil))
	if f.Full > 0 {
		f.FullMs = 1e3 * sums["FULL"] / float64(f.Full)
	}
	if n := f.Piecewise + f.None; n > 0 {
		f.OtherMs = 1e3 * (sums["PIECEWISE"] + sums["NONE"]) / float64(n)
	}
	grown := func(name string, p func(pages) scrape.Page, want map[string]string) float64 {
		return p(after).Sum(name, want) - p(before).Sum(name, want)
	}
	ofP, ofD := func(p pages) scrape.Page { return p.prefiller }, func(p pages) scrape.Page { return p.decoder }
	f.Preempted = int(grown("vllm:num_preemptions_total", ofD, nil))
	f.KVBytes = grown("sluice_kv_transfer_bytes_total", ofD, map[string]string{"direction": "received"})
	f.TokenBytes = d1.Max("sluice_kv_block_bytes") / BlockSize
	const ways = "sluice_kv_transfer_way_bytes_total"
	most := 0.0
	grew := scrape.Minus(d1.By(ways, "way", nil), d0.By(ways, "way", nil))
	for _, way := range scrape.Keys(grew) {
		if grew[way] > most {
			f.Way, most = way, grew[way]
		}
	}
	f.PrefillTokens = grown("vllm:prompt_tokens_by_source_total", ofP, map[string]string{"source": "local_compute"})
	f.Restored = grown("sluice_kv_offload_total", ofD, map[string]string{"event": "hit"})
}

// checksum of an answer's tokens; empty for an answer that is not valid.
func checksum(r *measure.Record) string {
	if !r.Valid() {
		return ""
	}
	h := fnv.New64a()
	var b [4]byte
	for _, t := range r.TokenIDs {
		b = [4]byte{byte(t), byte(t >> 8), byte(t >> 16), byte(t >> 24)}
		_, _ = h.Write(b[:]) // a hash takes everything
	}
	return hex.EncodeToString(h.Sum(nil))
}

// SameAnswers counts the answers that two lines have alike.
func SameAnswers(a, b *Line) int {
	n := 0
	for i := range min(len(a.Answers), len(b.Answers)) {
		if a.Answers[i] != "" && a.Answers[i] == b.Answers[i] {
			n++
		}
	}
	return n
}
