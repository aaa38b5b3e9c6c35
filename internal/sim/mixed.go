package sim

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
)

// mixedPoint is a measured step with one prompt row.
type mixedPoint struct {
	decodes, context float64 // decodes beside it and the tokens that each attends to
	chunk, prefix    float64 // new tokens of the prompt row, and cached ones before them
	seconds          float64
}

// readMixed reads the fields of a line of steptime's grid behind its value.
func readMixed(f []string, decodes int, seconds float64) (mixedPoint, error) {
	var v [3]float64
	for i, name := range []string{"context", "chunk", "prefix"} {
		n, err := strconv.Atoi(f[6+i])
		if err != nil || n < 0 {
			return mixedPoint{}, fmt.Errorf("has the %s %q, which is no number of tokens", name, f[6+i])
		}
		v[i] = float64(n)
	}
	p := mixedPoint{float64(decodes), v[0], v[1], v[2], seconds}
	switch {
	case decodes == 0 && p.chunk == 0:
		return p, errors.New("is a step without rows")
	case decodes > 0 && p.context < 1:
		return p, errors.New("has decodes without context")
	case p.chunk == 0 && p.prefix > 0:
		return p, errors.New("has a prefix without new tokens")
	}
	return p, nil
}

// mixedGrid are steps with a prompt row: every combination of its axes.
type mixedGrid struct {
	decodes, prefixes, chunks []float64
	beside                    float64   // context of the decodes
	seconds                   []float64 // by decodes, prefix, chunk
	least                     float64   // of all
}

// newMixed orders the points. Where one stands twice the later one counts. Decodes of
// which not every combination was measured, because time ended, are left out.
func newMixed(points []mixedPoint) (*mixedGrid, error) {
	g := &mixedGrid{least: points[0].seconds}
	type place struct{ decodes, prefix, chunk float64 }
	have := map[place]float64{}
	axis := func(of func(mixedPoint) float64) []float64 {
		seen := map[float64]bool{}
		for _, p := range points {
			seen[of(p)] = true
		}
		return slices.Sorted(maps.Keys(seen))
	}
	for _, p := range points {
		have[place{p.decodes, p.prefix, p.chunk}] = p.seconds
		if p.decodes > 0 && g.beside != 0 && p.context != g.beside {
			return nil, fmt.Errorf("decodes beside prompt rows attend to %v and to %v tokens: one grid has one of them", g.beside, p.context)
		}
		if p.decodes > 0 {
			g.beside = p.context
		}
		g.least = min(g.least, p.seconds)
	}
	g.prefixes, g.chunks = axis(func(p mixedPoint) float64 { return p.prefix }), axis(func(p mixedPoint) float64 { return p.chunk })
	if len(g.chunks) < 2 {
		return nil, fmt.Errorf("steps with a prompt row of %v new tokens alone: there must be two sizes", g.chunks[0])
	}
	var first error
	for _, d := range axis(func(p mixedPoint) float64 { return p.decodes }) {
		var row []float64
		for _, p := range g.prefixes {
			for _, c := range g.chunks {
				if s, ok := have[place{d, p, c}]; ok {
					row = append(row, s)
				} else if first == nil {
					first = fmt.Errorf("no step of %v new tokens behind %v beside %v decodes", c, p, d)
				}
			}
		}
		if len(row) == len(g.prefixes)*len(g.chunks) {
			g.decodes, g.seconds = append(g.decodes, d), append(g.seconds, row...)
		}
	}
	if len(g.decodes) == 0 {
		return nil, first
	}
	return g, nil
}

// largest is the most new tokens of a measured step.
func (g *mixedGrid) largest() float64 { return g.chunks[len(g.chunks)-1] }

// step is the time of a step in seconds: lines between the points of each axis, and
// beyond the last as between the last two.
func (g *mixedGrid) step(b *beyond, decodes, chunk, prefix float64) float64 {
	b.note("decodes beside a prompt row", decodes, g.decodes[len(g.decodes)-1])
	b.note("new tokens of a step", chunk, g.largest())
	b.note("cached tokens before new ones", prefix, g.prefixes[len(g.prefixes)-1])
	return line(len(g.decodes), decodes, func(i int) (float64, float64) {
		return g.decodes[i], line(len(g.prefixes), prefix, func(j int) (float64, float64) {
			row := g.seconds[(i*len(g.prefixes)+j)*len(g.chunks):]
			return g.prefixes[j], line(len(g.chunks), chunk, func(k int) (float64, float64) { return g.chunks[k], row[k] })
		})
	})
}

// beyond counts what was asked beyond what was measured.
type beyond struct {
	mu sync.Mutex
	of map[string]*outside
}

type outside struct {
	n              int
	most, measured float64
}

// unmeasured is the measured value of what was not measured at all.
const unmeasured = -1

func (b *beyond) note(what string, asked, measured float64) {
	if asked <= measured {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.of == nil {
		b.of = map[string]*outside{}
	}
	o := b.of[what]
	if o == nil {
		o = &outside{measured: measured}
		b.of[what] = o
	}
	o.n++
	o.most = max(o.most, asked)
}

// Beyond says what steps were asked for beyond the measured ones since it was made, a
// line for each kind, ordered; empty if none were.
func (s *Steps) Beyond() []string {
	s.beyond.mu.Lock()
	defer s.beyond.mu.Unlock()
	var out []string
	for _, what := range slices.Sorted(maps.Keys(s.beyond.of)) {
		o := s.beyond.of[what]
		text := fmt.Sprintf("%s: %d times %s", s.Model, o.n, what)
		if o.measured != unmeasured {
			text = fmt.Sprintf("%s: %d times %s beyond the measured %.0f, at most %.0f", s.Model, o.n, what, o.measured, o.most)
		}
		out = append(out, text)
	}
	return out
}
