package graphs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Explanation says how one step would run and why, for people and for tools.
type Explanation struct {
	Mode         string   `json:"mode"`
	PaddedTokens int32    `json:"padded_tokens"`
	PaddedReqs   *int32   `json:"padded_reqs,omitempty"` // absent for PIECEWISE, which pads no rows
	Uniform      int32    `json:"uniform,omitempty"`     // absent where the rows differ
	Key          string   `json:"key,omitempty"`         // absent for NONE
	Reason       string   `json:"reason"`
	Rows         []string `json:"rows"`
	Causes       []string `json:"causes"` // one per row

	rows     []Row
	tokens   int32
	decision Decision
}

// Peer is what another data-parallel rank brings to the agreement: rows to be
// classified alike, or its vote.
type Peer struct {
	Rows []Row
	Vote *Vote
}

// Explain dispatches rows under a configuration whose graphs all exist, in
// agreement with the peers if there are any.
func Explain(c Config, rows []Row, peers []Peer) (Explanation, error) {
	d, err := New(c)
	if err != nil {
		return Explanation{}, err
	}
	d.SetCaptureState(AllCaptured)
	verdicts := make([]RowVerdict, len(rows))
	b := d.Classify(MakeRows(rows), Step{}, verdicts)
	dec := d.Select(b)
	if len(peers) > 0 {
		votes := []Vote{d.Vote(b)}
		for _, p := range peers {
			if p.Vote != nil {
				votes = append(votes, *p.Vote)
				continue
			}
			votes = append(votes, d.Vote(d.Classify(MakeRows(p.Rows), Step{}, make([]RowVerdict, len(p.Rows)))))
		}
		if dec, err = d.SelectAgreed(b, Agree(votes)); err != nil {
			return Explanation{}, err
		}
	}
	e := Explanation{
		Mode: dec.Mode.String(), PaddedTokens: dec.PaddedTokens, Uniform: b.Uniform, Reason: dec.Reason.String(),
		rows: rows, tokens: b.Tokens, decision: dec, Rows: []string{}, Causes: []string{},
	}
	if dec.Mode != Piecewise {
		e.PaddedReqs = &dec.PaddedReqs
	}
	if dec.KeyID != NoKey {
		e.Key = dec.Key.String()
	}
	for _, v := range verdicts {
		e.Rows = append(e.Rows, v.Class().String())
		e.Causes = append(e.Causes, v.Cause())
	}
	return e, nil
}

// Text formats the explanation for a terminal.
func (e Explanation) Text() string {
	var s strings.Builder
	cells := [][]string{{"row", "scheduled", "drafts", "placeholders", "computed", "prefill", "verdict", "because"}}
	for i, r := range e.rows {
		cells = append(cells, []string{
			fmt.Sprint(i), fmt.Sprint(r.Scheduled), fmt.Sprint(r.Drafts), fmt.Sprint(r.Placeholders), fmt.Sprint(r.Computed), fmt.Sprint(r.Prefill),
			e.Rows[i], e.Causes[i],
		})
	}
	writeTable(&s, cells)
	fmt.Fprintf(&s, "\nmode     %s\n", e.Mode)
	fmt.Fprintf(&s, "tokens   %d, padded to %d\n", e.tokens, e.PaddedTokens)
	if e.PaddedReqs != nil {
		fmt.Fprintf(&s, "requests %d, padded to %d\n", len(e.rows), *e.PaddedReqs)
	} else {
		fmt.Fprintf(&s, "requests %d, not padded\n", len(e.rows))
	}
	if e.Uniform > 0 {
		fmt.Fprintf(&s, "uniform  %d\n", e.Uniform)
	} else {
		s.WriteString("uniform  no\n")
	}
	if e.Key != "" {
		fmt.Fprintf(&s, "key      %s\n", e.Key)
	} else {
		s.WriteString("key      none\n")
	}
	fmt.Fprintf(&s, "reason   %s: %s\n", e.Reason, e.decision.Reason.Meaning())
	return s.String()
}

// ErrInput is the sentinel of rows that cannot be read.
var ErrInput = errors.New("graphs: rows cannot be read")

// ParseRows reads a JSON array of rows. Unknown fields and anything behind the
// array are errors.
func ParseRows(data []byte) ([]Row, error) {
	var rows []Row
	if err := strict(data, &rows); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInput, err)
	}
	return rows, nil
}

// ParsePeers reads the other ranks of an agreement: a JSON array with one entry
// per rank, each an array of rows or a vote such as
// {"mode":"PIECEWISE","tokens":16,"reqs":2,"uniform":0}. An array of rows, or
// one vote, stands for a single rank.
func ParsePeers(data []byte) ([]Peer, error) {
	if rows, err := ParseRows(data); err == nil && len(rows) > 0 {
		return []Peer{{Rows: rows}}, nil
	}
	var entries []json.RawMessage
	if err := strict(data, &entries); err != nil {
		entries = []json.RawMessage{data}
	}
	var peers []Peer
	for i, raw := range entries {
		if rows, err := ParseRows(raw); err == nil {
			peers = append(peers, Peer{Rows: rows})
			continue
		}
		var v struct {
			Mode                         string
			Tokens, Reqs, Uniform, Bound int32
		}
		if err := strict(raw, &v); err != nil {
			return nil, fmt.Errorf("%w: peer %d: %w", ErrInput, i, err)
		}
		vote := Vote{Tokens: v.Tokens, Reqs: v.Reqs, Uniform: v.Uniform, Bound: v.Bound}
		switch strings.ToUpper(v.Mode) {
		case "NONE":
			vote.Mode = None
		case "PIECEWISE":
			vote.Mode = Piecewise
		case "FULL":
			vote.Mode = Full
		default:
			return nil, fmt.Errorf("%w: peer %d: unknown mode %q", ErrInput, i, v.Mode)
		}
		if err := vote.Validate(); err != nil {
			return nil, fmt.Errorf("%w: peer %d: %w", ErrInput, i, err)
		}
		peers = append(peers, Peer{Vote: &vote})
	}
	return peers, nil
}

func strict(data []byte, into any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err == io.EOF {
		return errors.New("there is nothing to read; an array of rows is wanted, such as [{\"scheduled\":1,\"computed\":128,\"prefill\":129}]")
	} else if err != nil {
		return err
	}
	if _, err := dec.Token(); err != io.EOF {
		return errors.New("something follows the JSON value")
	}
	return nil
}
