package graphs

import "fmt"

// WrongRowError is the error of a decode graph over a row that does not run as
// a decode. Replaying it would give a deterministic but wrong answer, for this
// row and possibly for others.
type WrongRowError struct {
	Key     Key
	Row     int
	Verdict RowVerdict
}

func (e *WrongRowError) Error() string {
	return fmt.Sprintf("graphs: row %d (%v) cannot be part of the decode graph %v", e.Row, e.Verdict, e.Key)
}

// CheckRows asserts, before a replay, that every row of a decode graph runs as
// a decode. It is loud where dispatch and execution were fed by different
// verdicts.
func CheckRows(k Key, verdicts []RowVerdict) error {
	if !k.Decode() {
		return nil
	}
	for i, v := range verdicts {
		if !v.RunsAsDecode() {
			return &WrongRowError{Key: k, Row: i, Verdict: v}
		}
	}
	return nil
}

// check panics where a decision breaks G1 or G2.
func (d *Dispatcher) check(b Batch, dec Decision) {
	broken := ""
	switch k := dec.Key; {
	case dec.PaddedTokens < dec.Tokens, dec.PaddedReqs < dec.Reqs:
		broken = "padding shrinks"
	case dec.Mode == None && (dec.PaddedTokens != dec.Tokens || dec.PaddedReqs != dec.Reqs || dec.KeyID != NoKey):
		broken = "an eager step is padded"
	case dec.Mode == Piecewise && dec.PaddedReqs != dec.Reqs:
		broken = "a PIECEWISE step has padded rows"
	case k.Decode() && b.Obstacle != ReasonFull:
		broken = "a decode graph over a row that is no decode"
	case k.Uniform > 0 && (dec.PaddedTokens != k.Uniform*dec.PaddedReqs || d.pcp == 1 && dec.Tokens != k.Uniform*dec.Reqs):
		broken = "rows of another width"
	case (dec.Mode == Full) != (dec.Reason == ReasonFull):
		broken = "reason and mode disagree"
	}
	if broken != "" {
		panic(fmt.Sprintf("graphs: %s: %+v for %+v", broken, dec, b))
	}
}
