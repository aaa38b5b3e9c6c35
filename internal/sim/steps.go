package sim

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-serving/sluice/graphs"
)

// Steps are the measured steps of one model, as internal/engine/steptime writes
// them: the time of a decode step by its sequences, for each kind of graph, and
// the rate at which prompts are computed. Between two measured values it takes
// the line through them, beyond the last one it goes on as between the last two.
//
// A step with prompt rows is one of as many sequences as it has tokens, less
// what those would read of the cache, plus what its rows do read; tokens beyond
// the largest measured step take what they take in a prompt.
type Steps struct {
	Model    string
	Contexts []float64 // tokens in the cache of each sequence, in ascending order, for which steps were measured

	decode  map[graphs.Mode][][]point // seconds by sequences, for each context
	prefill []point                   // seconds of a whole prompt by its tokens
	read    float64                   // seconds to read the KV of one token of context
}

type point struct{ x, y float64 }

var _ Cost = (*Steps)(nil)

// ReadSteps reads the lines of one model from steptime's output; lines of other
// models and figures of other kinds are passed over.
func ReadSteps(in io.Reader, model string) (*Steps, error) {
	s := &Steps{Model: model, decode: map[graphs.Mode][][]point{}}
	lines := bufio.NewScanner(in)
	context := 0.0
	for n := 1; lines.Scan(); n++ {
		text := lines.Text()
		if rest, ok := strings.CutPrefix(text, "#"); ok {
			context = contextOf(rest, context)
			continue
		}
		f := strings.Split(text, ",")
		if len(f) != 6 || f[0] != model || f[1] != "decode" && f[1] != "prefill" {
			continue
		}
		size, errS := strconv.Atoi(f[2])
		value, errV := strconv.ParseFloat(f[4], 64)
		if errS != nil || errV != nil || size < 1 || !positive(value) {
			return nil, fmt.Errorf("measured steps: line %d: %q is no size and no value", n, text)
		}
		if f[1] == "prefill" {
			if f[5] != "ktok/s" {
				return nil, fmt.Errorf("measured steps: line %d: the unit of a prefill is %q, not ktok/s", n, f[5])
			}
			s.prefill = append(s.prefill, point{float64(size), float64(size) / (1e3 * value)})
			continue
		}
		mode, ok := map[string]graphs.Mode{"FULL": graphs.Full, "PIECEWISE": graphs.Piecewise, "NONE": graphs.None}[f[3]]
		if !ok || f[5] != "ms" {
			return nil, fmt.Errorf("measured steps: line %d: %q is no decode step in ms", n, text)
		}
		at := s.context(context)
		s.decode[mode][at] = append(s.decode[mode][at], point{float64(size), value / 1e3})
	}
	return s, errors.Join(lines.Err(), s.prepare())
}

// contextOf finds "context N" in a comment.
func contextOf(comment string, otherwise float64) float64 {
	for part := range strings.SplitSeq(comment, ",") {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(part), "context "); ok {
			if n, err := strconv.Atoi(rest); err == nil {
				return float64(n)
			}
		}
	}
	return otherwise
}

// context is the place of a context among those that have steps.
func (s *Steps) context(tokens float64) int {
	at, found := slices.BinarySearch(s.Contexts, tokens)
	if !found {
		s.Contexts = slices.Insert(s.Contexts, at, tokens)
	}
	for _, mode := range measuredModes {
		if !found {
			s.decode[mode] = slices.Insert(s.decode[mode], at, nil)
		}
	}
	return at
}

// measuredModes are those of which every context must have steps.
var measuredModes = []graphs.Mode{graphs.Full, graphs.Piecewise, graphs.None}

func (s *Steps) prepare() error {
	ascending := func(a, b point) int { return int(math.Copysign(1, a.x-b.x)) }
	if len(s.Contexts) == 0 {
		return fmt.Errorf("measured steps of %s: there are none", s.Model)
	}
	if s.Contexts[0] <= 0 {
		return fmt.Errorf("measured steps of %s: no comment says the context", s.Model)
	}
	for _, mode := range measuredModes {
		for i, p := range s.decode[mode] {
			if len(p) < 2 {
				return fmt.Errorf("measured steps of %s: %d decode steps of %v over %v tokens of context, must be at least 2", s.Model, len(p), mode, s.Contexts[i])
			}
			slices.SortStableFunc(p, ascending)
		}
	}
	if len(s.prefill) < 2 {
		return fmt.Errorf("measured steps of %s: %d prompts, must be at least 2", s.Model, len(s.prefill))
	}
	slices.SortStableFunc(s.prefill, ascending)
	full := s.decode[graphs.Full]
	short := full[0]
	most := short[len(short)-1]
	if last := len(full) - 1; last > 0 {
		s.read = (at(full[last], most.x) - most.y) / most.x / (s.Contexts[last] - s.Contexts[0])
	} else {
		// Between the two largest steps the weights are read as often: what a
		// sequence costs more there is its cache.
		before := short[len(short)-2]
		s.read = (most.y - before.y) / (most.x - before.x) / s.Contexts[0]
	}
	s.read = max(s.read, 0)
	return nil
}

// at is the value of a line of points.
func at(p []point, x float64) float64 {
	return line(len(p), x, func(i int) (float64, float64) { return p[i].x, p[i].y })
}

// Decode is the time of a step of so many sequences with so many tokens of
// context each, in seconds.
func (s *Steps) Decode(mode graphs.Mode, rows, context float64) float64 {
	steps := s.decode[mode]
	if len(steps) == 1 {
		return max(at(steps[0], rows)+s.read*rows*(context-s.Contexts[0]), steps[0][0].y/2)
	}
	return line(len(steps), context, func(i int) (float64, float64) { return s.Contexts[i], at(steps[i], rows) })
}

// Prompt is the time of a prompt that is computed alone, in seconds.
func (s *Steps) Prompt(tokens float64) float64 {
	first := s.prefill[0]
	if tokens >= first.x {
		return at(s.prefill, tokens)
	}
	// Below what was measured: from the time of the smallest step on.
	low := s.decode[graphs.None][0][0]
	return line(2, tokens, func(i int) (float64, float64) { return []float64{low.x, first.x}[i], []float64{low.y, first.y}[i] })
}

// Step is 0 for a step without rows.
func (s *Steps) Step(w Work, _ uint64) float64 {
	switch {
	case w.Decodes == 0 && w.Prefill == 0:
		return 0
	case w.Decodes == 0:
		return s.Prompt(float64(w.Prefill))
	case w.Prefill == 0:
		return s.Decode(w.Mode, float64(w.Decodes), float64(w.Decoded)/float64(w.Decodes))
	}
	steps := s.decode[w.Mode][0] // those that read least of the cache
	tokens, largest := float64(w.Decodes+w.Prefill), steps[len(steps)-1].x
	n := min(tokens, largest)
	took := at(steps, n) - s.read*n*s.Contexts[0] + s.read*(float64(w.Decoded)+w.Context/float64(w.Prefill))
	if tokens > largest {
		rate := s.prefill[0]
		took += (tokens - largest) * rate.y / rate.x
	}
	return max(took, steps[0].y/2)
}
