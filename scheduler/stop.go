package scheduler

import "slices"

// ended applies the stop rules to a request whose last token is new. The
// first rule that matches wins.
func (r *request) ended(last Token) (FinishReason, Stop) {
	n := r.total()
	if n < r.minLen {
		return NotFinished, StopNone
	}
	if last == r.firstEOS {
		return FinishStop, StopEOS
	}
	if r.stops {
		if slices.Contains(r.req.EOS, last) {
			return FinishStop, StopEOS
		}
		if slices.Contains(r.req.StopIDs, last) {
			return FinishStop, StopID
		}
	}
	if n >= r.limit {
		return FinishLength, StopNone
	}
	if r.stops && repeats(r.tokens[r.prompt:], r.req.Repetition) {
		return FinishRepetition, StopNone
	}
	return NotFinished, StopNone
}

// repeats reports whether the output ends in some pattern that stands there
// MinCount times in a row.
func repeats(output []Token, rule Repetition) bool {
	if rule.MaxSize <= 0 || rule.MinCount < 2 {
		return false
	}
	for size := max(rule.MinSize, 1); size <= rule.MaxSize; size++ {
		if size > len(output)/rule.MinCount {
			return false
		}
		// The tail repeats with period size if each of its tokens equals the
		// one a period later.
		tail := output[len(output)-size*rule.MinCount:]
		if slices.Equal(tail[:len(tail)-size], tail[size:]) {
			return true
		}
	}
	return false
}
