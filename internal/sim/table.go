package sim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
)

// Table is a cost model of measured steps: the time of decode-only steps by
// their rows, and what prefill tokens add by their number and by the length of
// what they attend to. Between two measured values it takes the line through
// them; beyond the last one it goes on as between the last two.
type Table struct {
	// Decode is in ascending order of rows.
	Decode []DecodePoint `json:"decode"`
	// Prefill is in ascending order of context, and of tokens within one. Every
	// context has the same token counts.
	Prefill []PrefillPoint `json:"prefill"`

	contexts, tokens []float64
}

// DecodePoint is a measured decode-only step.
type DecodePoint struct {
	Rows    int     `json:"rows"`
	Seconds float64 `json:"seconds"`
}

// PrefillPoint is what so many prefill tokens that each attend to Context
// tokens add to a step.
type PrefillPoint struct {
	Context int     `json:"context"`
	Tokens  int     `json:"tokens"`
	Seconds float64 `json:"seconds"`
}

var _ Cost = (*Table)(nil)

// ReadTable reads a table as JSON and checks it.
func ReadTable(in io.Reader) (*Table, error) {
	b, err := io.ReadAll(in)
	if err != nil {
		return nil, err
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	t := new(Table)
	if err := dec.Decode(t); err != nil {
		return nil, fmt.Errorf("cost model: %w", err)
	}
	return t, t.prepare()
}

// prepare checks the points and lists the axes of the prefill points.
func (t *Table) prepare() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("cost model: "+format, args...)) }
	if len(t.Decode) < 2 {
		bad("has %d decode points, must have at least 2", len(t.Decode))
	}
	for i, p := range t.Decode {
		if p.Rows < 1 || !positive(p.Seconds) {
			bad("decode point %d: %d rows in %v s", i, p.Rows, p.Seconds)
		}
		if i > 0 && p.Rows <= t.Decode[i-1].Rows {
			bad("decode point %d: %d rows do not come after %d", i, p.Rows, t.Decode[i-1].Rows)
		}
	}
	t.contexts, t.tokens = nil, nil
	for i, p := range t.Prefill {
		if p.Context < 0 || p.Tokens < 1 || !positive(p.Seconds) {
			bad("prefill point %d: %d tokens over %d in %v s", i, p.Tokens, p.Context, p.Seconds)
		}
		if n := len(t.contexts); n == 0 || t.contexts[n-1] != float64(p.Context) {
			t.contexts = append(t.contexts, float64(p.Context))
		}
		if len(t.contexts) == 1 {
			t.tokens = append(t.tokens, float64(p.Tokens))
		}
	}
	if len(t.tokens) < 2 || len(t.contexts) < 1 || len(t.Prefill) != len(t.contexts)*len(t.tokens) || !slices.IsSorted(t.contexts) || !slices.IsSorted(t.tokens) {
		bad("the %d prefill points are no grid of ascending contexts by at least 2 ascending token counts", len(t.Prefill))
		return errors.Join(errs...)
	}
	for i, p := range t.Prefill {
		if float64(p.Tokens) != t.tokens[i%len(t.tokens)] || float64(p.Context) != t.contexts[i/len(t.tokens)] {
			bad("prefill point %d: %d tokens over %d stands where the grid has %v over %v", i, p.Tokens, p.Context, t.tokens[i%len(t.tokens)], t.contexts[i/len(t.tokens)])
		}
	}
	return errors.Join(errs...)
}

func positive(s float64) bool { return s > 0 && !math.IsInf(s, 0) }

// Step is 0 for a step without rows.
func (t *Table) Step(w Work, _ uint64) float64 {
	s := 0.0
	if w.Decodes > 0 {
		s = line(len(t.Decode), float64(w.Decodes), func(i int) (float64, float64) { return float64(t.Decode[i].Rows), t.Decode[i].Seconds })
	}
	if w.Prefill > 0 {
		context := w.Context / float64(w.Prefill)
		s += line(len(t.contexts), context, func(i int) (float64, float64) {
			row := t.Prefill[i*len(t.tokens):]
			return t.contexts[i], line(len(t.tokens), float64(w.Prefill), func(k int) (float64, float64) { return t.tokens[k], row[k].Seconds })
		})
	}
	return max(s, 0)
}

// line is the value at x of the line through the two points around it, or the
// two nearest to it; a single point is a constant. Below the first point it is
// that point's value: a step has a least time.
func line(n int, x float64, at func(int) (x, y float64)) float64 {
	i := 1
	for i < n-1 {
		if to, _ := at(i); x <= to {
			break
		}
		i++
	}
	x0, y0 := at(0)
	if n == 1 || x <= x0 {
		return y0
	}
	x0, y0 = at(i - 1)
	x1, y1 := at(i)
	return y0 + (y1-y0)*(x-x0)/(x1-x0)
}
