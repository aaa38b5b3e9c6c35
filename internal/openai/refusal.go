package openai

import (
	"fmt"
	"net/http"
)

// TypeAppendPrefillMiss is the error type of a refused append-prefill attempt,
// and the stop_reason of a refusal in band.
const TypeAppendPrefillMiss = "append_prefill_miss"

// Reasons of a refused append-prefill attempt: the error's code.
const (
	MissNoPrefix       = "no_prefix"        // nothing of the prompt is cached
	MissBelowMinPrefix = "below_min_prefix" // less is cached than is worth a local prefill
	MissSuffixTooLong  = "suffix_too_long"  // more would have to be computed than the decoder takes on
	MissBusy           = "busy"             // the decoder has no room for prefill work now
	MissDraining       = "draining"         // the decoder takes no new work
)

// PreferIfAvailable is the value of the Prefer header that asks for a refusal
// instead of a prefill from nothing; the member
// kv_transfer_params.decoder_append_prefill = true asks for the same.
const PreferIfAvailable = "if-available"

// Miss is the 412 answer of a refused append-prefill attempt; it is sent before
// any other byte.
func Miss(reason string, promptTokens, cachedTokens int) *Error {
	return &Error{
		Status: http.StatusPreconditionFailed, Type: TypeAppendPrefillMiss, Code: reason,
		Message: fmt.Sprintf("the local prefix does not serve this prompt (%s): %d of %d tokens are cached", reason, cachedTokens, promptTokens),
		Refusal: &RefusalCounts{PromptTokens: promptTokens, CachedTokens: cachedTokens},
	}
}

// IsMiss reports whether the error is a refused append-prefill attempt.
func (e *Error) IsMiss() bool {
	return e != nil && e.Type == TypeAppendPrefillMiss
}
