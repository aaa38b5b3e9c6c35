package graphs

import "fmt"

// Reason says why a step did not run as FULL. The zero value is that it did.
type Reason uint8

const (
	ReasonFull            Reason = iota // it ran as FULL
	ReasonPrefillRow                    // a row runs as a prefill
	ReasonFreshOneToken                 // a one-token prompt without context, and no other prefill
	ReasonNonUniform                    // rows of different widths: drafts are missing somewhere
	ReasonBeyondLadder                  // larger than the largest graph of its kind
	ReasonNoWidth                       // uniform, but no graph has this width
	ReasonEncoderInputs                 // encoder inputs are scheduled
	ReasonContextParallel               // a tail in a context-parallel group
	ReasonDPPeer                        // another data-parallel rank could not
	ReasonPPPeer                        // another pipeline stage could not
	ReasonForcedEager                   // profiling, calibration or enforced eager
	ReasonNotCaptured                   // nothing, or not this graph, has been captured
	ReasonLoRACase                      // no graph for this number of adapters
	ReasonModeConfig                    // the configured mode has no FULL graph for such a batch
	ReasonCascade                       // cascade attention is used
	ReasonMalformed                     // a row that no scheduler may produce
	ReasonNoTokens                      // nothing to run

	NumReasons // how many there are, for tables by reason
)

var reasonNames = [NumReasons]string{
	ReasonFull:            "full",
	ReasonPrefillRow:      "prefill_row",
	ReasonFreshOneToken:   "fresh_one_token",
	ReasonNonUniform:      "non_uniform_drafts",
	ReasonBeyondLadder:    "beyond_ladder",
	ReasonNoWidth:         "no_candidate_for_width",
	ReasonEncoderInputs:   "encoder_inputs",
	ReasonContextParallel: "pcp",
	ReasonDPPeer:          "dp_peer",
	ReasonPPPeer:          "pp_peer",
	ReasonForcedEager:     "forced_eager",
	ReasonNotCaptured:     "not_captured",
	ReasonLoRACase:        "lora_case",
	ReasonModeConfig:      "mode_config",
	ReasonCascade:         "cascade_attention",
	ReasonMalformed:       "malformed_row",
	ReasonNoTokens:        "no_tokens",
}

// String returns the label that metrics use.
func (r Reason) String() string {
	if r < NumReasons {
		return reasonNames[r]
	}
	return fmt.Sprintf("Reason(%d)", uint8(r))
}

var reasonMeanings = [NumReasons]string{
	ReasonFull:            "a FULL graph is replayed",
	ReasonPrefillRow:      "a row runs as a prefill",
	ReasonFreshOneToken:   "a one-token prompt without context is no decode",
	ReasonNonUniform:      "the rows have different widths, some without their drafts",
	ReasonBeyondLadder:    "the step is larger than the largest graph of its kind",
	ReasonNoWidth:         "no graph has the width of the rows",
	ReasonEncoderInputs:   "encoder inputs are scheduled",
	ReasonContextParallel: "context-parallel ranks see a prompt tail with different lengths",
	ReasonDPPeer:          "another data-parallel rank cannot replay a FULL graph",
	ReasonPPPeer:          "another pipeline stage cannot replay a FULL graph",
	ReasonForcedEager:     "eager execution is forced for this step",
	ReasonNotCaptured:     "the graph has not been captured",
	ReasonLoRACase:        "no graph for this number of adapters",
	ReasonModeConfig:      "the configured mode has no FULL graph for such a step",
	ReasonCascade:         "cascade attention is never part of a FULL graph",
	ReasonMalformed:       "a row has numbers that no scheduler may produce",
	ReasonNoTokens:        "nothing is scheduled",
}

// Meaning says the reason in words.
func (r Reason) Meaning() string {
	if r < NumReasons {
		return reasonMeanings[r]
	}
	return r.String()
}
