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
