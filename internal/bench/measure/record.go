package measure

import "time"

// Record is what one request of a run was seen to do. Times are offsets from
// the start of the workload.
type Record struct {
	RequestID string `json:"request_id"` // the client-visible id
	Session   string `json:"session"`
	Turn      int    `json:"turn"` // from 0

	Eligible time.Duration `json:"eligible_ns"` // when the turn could have been sent
	Sent     time.Duration `json:"sent_ns"`
	First    time.Duration `json:"first_ns"` // first output; 0 when there was none
	Last     time.Duration `json:"last_ns"`  // last output; 0 when there was none
	End      time.Duration `json:"end_ns"`   // end of the answer, or of the failure

	// Gaps are the times between one event with output and the next.
	Gaps []time.Duration `json:"gaps_ns,omitempty"`

	PromptTokens int `json:"prompt_tokens"`
	CachedTokens int `json:"cached_tokens"`
	OutputTokens int `json:"output_tokens"`

	Status       int    `json:"status"` // HTTP status; 0 when no answer came
	FinishReason string `json:"finish_reason,omitempty"`
	StopReason   string `json:"stop_reason,omitempty"`
	Error        string `json:"error,omitempty"`

	Text     string  `json:"text"`
	TokenIDs []int32 `json:"token_ids,omitempty"`
}

// FollowUp reports whether the request continues a session.
func (r *Record) FollowUp() bool { return r.Turn > 0 }

// Valid reports whether the answer kept the protocol: status 200, a finish
// reason, output, a usage that agrees with it, and no error on the way.
func (r *Record) Valid() bool {
	return r.Error == "" && r.Status == 200 && r.FinishReason != "" && r.OutputTokens > 0 && r.PromptTokens > 0 &&
		(len(r.TokenIDs) == 0 || len(r.TokenIDs) == r.OutputTokens)
}

// TTFT is the time from eligibility to the first output; false without output.
func (r *Record) TTFT() (time.Duration, bool) {
	return r.First - r.Eligible, r.First > 0
}

// TPOT is the mean time per output token after the first; false with fewer than two.
func (r *Record) TPOT() (time.Duration, bool) {
	if r.OutputTokens < 2 || r.First == 0 {
		return 0, false
	}
	return (r.Last - r.First) / time.Duration(r.OutputTokens-1), true
}

// SameAnswer reports whether two requests gave the same output: token by token
// where both servers sent token ids, else by text.
func SameAnswer(a, b *Record) bool {
	if len(a.TokenIDs) > 0 && len(b.TokenIDs) > 0 {
		if len(a.TokenIDs) != len(b.TokenIDs) {
			return false
		}
		for i, t := range a.TokenIDs {
			if b.TokenIDs[i] != t {
				return false
			}
		}
		return true
	}
	return a.OutputTokens == b.OutputTokens && a.Text == b.Text
}
