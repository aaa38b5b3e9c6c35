package sim

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-serving/sluice/graphs"
)

// Steps are the measured steps of one model, as internal/engine/steptime writes
// them: the time of a decode step by its sequences and their context, for each kind
// of graph, the rate at which prompts are computed, and with --grid the time of
// steps with a prompt row by its new tokens, the cached ones before them and the
// decodes beside it. Between measured values it takes the line through them, beyond
// the last one it goes on as between the last two, and [Steps.Beyond] tells of it.
//
// Without a grid a step with prompt rows is one of as many sequences as it has
// tokens, less what those would read of the cache, plus what its rows do read;
// tokens beyond the largest measured step take what they take in a prompt.
type Steps struct {
	Model    string
	Contexts []float64 // tokens in the cache of each sequence, in ascending order, for which decode steps were measured

	decode  map[graphs.Mode][]curve // in ascending order of context
	prefill []point                 // seconds of a whole prompt by its tokens
	mixed   *mixedGrid              // nil: none was measured
	read    float64                 // seconds to read the KV of one token of context
	ladder  []int32                 // sizes of graphs, ascending
	beyond  beyond
}

type point struct{ x, y float64 }

// curve is the time of decode steps by sequences, over one context.
type curve struct {
	context float64
	points  []point
}

var _ Cost = (*Steps)(nil)

// ReadSteps reads the lines of one model from steptime's output; lines of other
// models and figures of other kinds are passed over. Where a step stands twice the
// later line counts.
func ReadSteps(in io.Reader, model string) (*Steps, error) {
	s := &Steps{Model: model, decode: map[graphs.Mode][]curve{}}
	lines := bufio.NewScanner(in)
	context := 0.0
	var grid []mixedPoint
	for n := 1; lines.Scan(); n++ {
		text := lines.Text()
		if rest, ok := strings.CutPrefix(text, "#"); ok {
			context = contextOf(rest, context)
			continue
		}
		f := strings.Split(text, ",")
		if len(f) < 2 || f[0] != model || f[1] != "decode" && f[1] != "prefill" && f[1] != "step" {
			continue
		}
		bad := func(what string) error { return fmt.Errorf("measured steps: line %d: %q %s", n, text, what) }
		fields, least := 6, 1
		if f[1] == "step" {
			fields, least = 9, 0
		}
		if len(f) != fields {
			return nil, bad(fmt.Sprintf("has %d fields, not %d", len(f), fields))
		}
		size, errS := strconv.Atoi(f[2])
		value, errV := strconv.ParseFloat(f[4], 64)
		if errS != nil || errV != nil || size < least || !positive(value) {
			return nil, bad("is no size and no value")
		}
		if f[1] == "prefill" {
			if f[5] != "ktok/s" {
				return nil, fmt.Errorf("measured steps: line %d: the unit of a prefill is %q, not ktok/s", n, f[5])
			}
			s.prefill = put(s.prefill, point{float64(size), float64(size) / (1e3 * value)})
			continue
		}
		mode, ok := map[string]graphs.Mode{"FULL": graphs.Full, "PIECEWISE": graphs.Piecewise, "NONE": graphs.None}[f[3]]
		if !ok || f[5] != "ms" {
			return nil, bad("is no decode step in ms")
		}
		if f[1] == "decode" {
			s.add(mode, context, point{float64(size), value / 1e3})
			continue
		}
		p, err := readMixed(f, size, value/1e3)
		switch {
		case err != nil:
			return nil, bad(err.Error())
		case p.chunk == 0:
			s.add(mode, p.context, point{p.decodes, p.seconds})
		case mode != graphs.Full: // a one-token tail in a FULL graph is a decode to it
			grid = append(grid, p)
		}
	}
	return s, errors.Join(lines.Err(), s.prepare(grid))
}

// put adds a point in ascending order, in the place of one with the same x.
func put(p []point, x point) []point {
	at, found := slices.BinarySearchFunc(p, x.x, func(a point, x float64) int { return cmp.Compare(a.x, x) })
	if found {
		p[at] = x
		return p
	}
	return slices.Insert(p, at, x)
}

// add takes a decode step in.
func (s *Steps) add(mode graphs.Mode, context float64, p point) {
	all := s.decode[mode]
	at, found := slices.BinarySearchFunc(all, context, func(c curve, x float64) int { return cmp.Compare(c.context, x) })
	if !found {
		all = slices.Insert(all, at, curve{context: context})
	}
	all[at].points = put(all[at].points, p)
	s.decode[mode] = all
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

func (s *Steps) prepare(grid []mixedPoint) error {
	fail := func(format string, args ...any) error {
		return fmt.Errorf("measured steps of %s: "+format, append([]any{s.Model}, args...)...)
	}
	if len(s.decode) == 0 && len(grid) == 0 {
		return fail("there are none")
	}
	modes := []graphs.Mode{graphs.Full, graphs.Piecewise, graphs.None}
	contexts := map[float64]int{}
	for _, mode := range modes {
		for _, c := range s.decode[mode] {
			contexts[c.context] = 0
		}
	}
	if len(grid) > 0 {
		modes = modes[:1] // the others are taken from its steps
	}
	s.Contexts = slices.Sorted(maps.Keys(contexts))
	for _, mode := range modes {
		clear(contexts)
		for _, c := range s.decode[mode] {
			contexts[c.context] = len(c.points)
		}
		for _, c := range s.Contexts {
			if c <= 0 {
				return fail("no comment says the context")
			}
			if contexts[c] < 2 {
				return fail("%d decode steps of %v over %v tokens of context, must be at least 2", contexts[c], mode, c)
			}
		}
	}
	full := s.decode[graphs.Full]
	if len(full) == 0 {
		return fail("there are no decode steps of FULL")
	}
	if len(grid) == 0 && len(s.prefill) < 2 {
		return fail("%d prompts, must be at least 2", len(s.prefill))
	}
	if len(grid) > 0 {
		var err error
		if s.mixed, err = newMixed(grid); err != nil {
			return fail("%w", err)
		}
		for _, p := range grid { // a prompt alone is one of its steps
			if p.decodes == 0 && p.prefix == 0 {
				s.prefill = put(s.prefill, point{p.chunk, p.seconds})
			}
		}
	}
	short := full[0]
	most := short.points[len(short.points)-1]
	if last := full[len(full)-1]; last.context > short.context {
		// Both may not have been measured to the same number of sequences: what is long
		// takes more memory.
		n := min(most.x, last.points[len(last.points)-1].x)
		s.read = (at(last.points, n) - at(short.points, n)) / n / (last.context - short.context)
	} else {
		// Between the two largest steps the weights are read as often: what a
		// sequence costs more there is its cache.
		before := short.points[len(short.points)-2]
		s.read = (most.y - before.y) / (most.x - before.x) / short.context
	}
	s.read = max(s.read, 0)
	d, err := graphs.New(graphs.Config{Mode: graphs.ModeFullAndPiecewise, MaxNumSeqs: 256, MaxNumBatchedTokens: 8192})
	if err != nil {
		return err
	}
	s.ladder = d.Ladder().Sizes
	return nil
}

// at is the value of a line of points.
func at(p []point, x float64) float64 {
	return line(len(p), x, func(i int) (float64, float64) { return p[i].x, p[i].y })
}

// curves are the decode steps of a kind of graph, those of FULL where none of it were
// measured.
func (s *Steps) curves(mode graphs.Mode) []curve {
	if c := s.decode[mode]; len(c) > 0 {
		return c
	}
	s.beyond.note(fmt.Sprintf("decode steps of %v, of which none were measured", mode), 0, unmeasured)
	return s.decode[graphs.Full]
}

// Padded is the time of a decode step that a graph of so many tokens replays, in
// seconds. Where steps of no more rows were measured that filled the same graph in part,
// the line through them and the whole one tells; else rows that are padded cost what
// rows cost, but their cache.
func (s *Steps) Padded(mode graphs.Mode, padded, rows, context float64) float64 {
	if padded <= rows || s.filled(mode, padded, rows) {
		return s.Decode(mode, rows, context)
	}
	return s.Decode(mode, padded, rows*context/padded)
}

// filled tells whether, over every context, a step of at most so many rows was measured
// that filled the graph of the padded size in part.
func (s *Steps) filled(mode graphs.Mode, padded, rows float64) bool {
	for _, c := range s.curves(mode) {
		at, found := slices.BinarySearchFunc(c.points, rows, func(p point, x float64) int { return cmp.Compare(p.x, x) })
		if !found {
			at-- // the last one below
		}
		if at < 0 || s.graphOf(c.points[at].x) != padded {
			return false
		}
	}
	return true
}

// graphOf is the size of the graph that replays a decode step of so many rows, of those
// that engines capture unless they are told otherwise; 0 beyond them.
func (s *Steps) graphOf(rows float64) float64 {
	at, _ := slices.BinarySearchFunc(s.ladder, rows, func(size int32, x float64) int { return cmp.Compare(float64(size), x) })
	if at == len(s.ladder) {
		return 0
	}
	return float64(s.ladder[at])
}

// Decode is the time of a step of so many sequences with so many tokens of
// context each, in seconds.
func (s *Steps) Decode(mode graphs.Mode, rows, context float64) float64 {
	steps := s.curves(mode)
	s.beyond.note("sequences of a decode step", rows, steps[0].points[len(steps[0].points)-1].x)
	s.beyond.note("context of a decode step", context, steps[len(steps)-1].context)
	if first := steps[0]; len(steps) == 1 {
		return max(at(first.points, rows)+s.read*rows*(context-first.context), first.points[0].y/2)
	}
	return line(len(steps), context, func(i int) (float64, float64) {
		c := steps[i]
		if last := c.points[len(c.points)-1].x; rows > last { // memory ended there: the card reads on at its rate
			return c.context, at(c.points, last) + (at(steps[0].points, rows) - at(steps[0].points, last)) + s.read*(rows-last)*(c.context-steps[0].context)
		}
		return c.context, at(c.points, rows)
	})
}

// Prompt is the time of a prompt that is computed alone, in seconds.
func (s *Steps) Prompt(tokens float64) float64 {
	if len(s.prefill) < 2 { // the grid's prompt rows had decodes beside them
		return s.mixed.step(&s.beyond, 0, tokens, 0)
	}
	first := s.prefill[0]
	if tokens >= first.x {
		s.beyond.note("tokens of a prompt", tokens, s.prefill[len(s.prefill)-1].x)
		return at(s.prefill, tokens)
	}
	// Below what was measured: from the time of the smallest step on.
	low := s.curves(graphs.None)[0].points[0]
	return line(2, tokens, func(i int) (float64, float64) { return []float64{low.x, first.x}[i], []float64{low.y, first.y}[i] })
}

// Step is 0 for a step without rows.
func (s *Steps) Step(w Work, _ uint64) float64 {
	rows, tokens := float64(w.Decodes), float64(w.Prefill)
	switch {
	case w.Decodes == 0 && w.Prefill == 0:
		return 0
	case w.Prefill == 0 && w.Tails > 0 && w.Mode != graphs.Full && s.mixed != nil:
		// Outside of FULL graphs a tail is a prompt row, of one token.
		tails := float64(w.Tails)
		return s.beside(rows-tails, float64(w.Decoded-w.Tailed), tails, float64(w.Tailed)/tails-1)
	case w.Prefill == 0:
		return s.Padded(w.Mode, float64(w.Padded), rows, float64(w.Decoded)/rows)
	}
	// One prompt row of all the tokens attends to as much as the rows do together, or to
	// more: whole prompts beside each other attend to themselves alone.
	prefix := max(w.Context/tokens-(tokens+1)/2, 0)
	switch {
	case w.Decodes == 0 && (s.mixed == nil || prefix == 0):
		each := min(max(2*w.Context/tokens-1, 1), tokens)
		return min(s.Prompt(tokens), tokens/each*s.Prompt(each))
	case w.Decodes == 0 && tokens > s.mixed.largest():
		// More tokens than any measured step behind a prefix has: what the prefix
		// costs it is taken from the largest one.
		most := s.mixed.largest()
		return s.Prompt(tokens) + max(s.mixed.step(&s.beyond, 0, most, prefix)-s.mixed.step(&s.beyond, 0, most, 0), 0)
	case s.mixed != nil:
		return s.beside(rows, float64(w.Decoded), max(tokens, float64(w.Padded)-rows), prefix)
	}
	steps := s.curves(w.Mode)[0] // those that read least of the cache
	all, largest := rows+tokens, steps.points[len(steps.points)-1].x
	n := min(all, largest)
	took := at(steps.points, n) - s.read*n*steps.context + s.read*(float64(w.Decoded)+w.Context/tokens)
	if all > largest {
		rate := s.prefill[0]
		took += (all - largest) * rate.y / rate.x
	}
	return max(took, steps.points[0].y/2)
}

// beside is the time of a step of new tokens behind cached ones beside decodes, which
// attend to so many tokens together.
func (s *Steps) beside(decodes, decoded, tokens, prefix float64) float64 {
	took := s.mixed.step(&s.beyond, decodes, tokens, prefix)
	if decodes > 0 { // the grid's decodes had another context
		took += s.Decode(graphs.Full, decodes, decoded/decodes) - s.Decode(graphs.Full, decodes, s.mixed.beside)
	}
	return max(took, s.mixed.least)
}
