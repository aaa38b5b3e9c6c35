package graphs

import (
	"fmt"
	"slices"
)

// LadderRules selects whose default sizes apply.
type LadderRules uint8

const (
	RulesCUDA   LadderRules = iota // default: M = min(2*R*D, Cap)
	RulesAscend                    // M = min(R*D, Cap), and M itself is a size
)

// Grid is the spacing of default sizes.
type Grid uint8

const (
	GridThroughput  Grid = iota // default: 1, 2, 4, then steps of 8, from 256 on steps of 16
	GridInteractive             // every size up to 32, then as above
)

// Runner is the generation of the model runner whose keys are built.
type Runner uint8

const (
	RunnerV2 Runner = iota // default: decode graphs round each size up to their width
	RunnerV1               // the sizes themselves are rounded up to multiples of D
)

// LadderConfig describes the sizes, in tokens, that graphs are captured for.
type LadderConfig struct {
	Rules    LadderRules
	Sizes    []int // explicit sizes; nil = derived
	MaxSize  int   // explicit M, always a size itself; 0 = derived
	Cap      int   // bound of a derived M; 0 = 512
	Grid     Grid
	Multiple int    // sizes must be multiples: the tensor-parallel degree under sequence parallelism; 0 = 1
	MaxSizes int    // at most so many sizes, sampled evenly with both ends kept; 0 = all
	Runner   Runner // default RunnerV2
}

func (c LadderConfig) validate() []error {
	var errs []error
	bad := func(field, format string, args ...any) {
		errs = append(errs, &ConfigError{Field: "Ladder." + field, Problem: fmt.Sprintf(format, args...)})
	}
	for i, s := range c.Sizes {
		if s < 1 || s > maxTokens {
			bad(fmt.Sprintf("Sizes[%d]", i), "%d is not in 1..%d", s, maxTokens)
		}
	}
	for _, f := range []struct {
		name string
		v    int
	}{{"MaxSize", c.MaxSize}, {"Cap", c.Cap}, {"Multiple", c.Multiple}, {"MaxSizes", c.MaxSizes}} {
		if f.v < 0 || f.v > maxTokens {
			bad(f.name, "%d is not in 0..%d", f.v, maxTokens)
		}
	}
	return errs
}

// Ladder is the set of sizes that graphs are captured for.
type Ladder struct {
	Sizes    []int32 // tokens, ascending
	Requests []int32 // further decode graphs by row count, ascending; empty with explicit sizes
	Max      int32   // M, the largest size of any graph
}

// newLadder derives the sizes of a deployment.
//
// With neither sizes nor a maximum, M is min(2*R*D, Cap) on CUDA and
// min(R*D, Cap) on Ascend, within the token budget B. Sizes above B are
// dropped; B itself is a size when it is at most M, and so is an explicit M,
// which a grid would otherwise lower. Derived ladders also cover row counts up
// to R at full width, so that a width of K+1 does not put the widest decode
// step beyond the cap.
func newLadder(c Config) (Ladder, error) {
	var (
		lc       = c.Ladder
		r, b     = c.MaxNumSeqs, c.MaxNumBatchedTokens
		d        = int(slices.Max(append(c.widths(), int32(c.DecodeWidth()))))
		explicit = len(lc.Sizes) > 0
		derived  = !explicit && lc.MaxSize == 0
		top      = lc.Cap
		m        = lc.MaxSize
	)
	if top == 0 {
		top = 512
	}
	switch {
	case m > 0:
	case explicit:
		m = slices.Max(lc.Sizes)
	case lc.Rules == RulesAscend:
		m = min(r*d, top)
	default:
		m = min(2*r*d, top)
	}
	// Row counts up to the widest decode step that the budget allows.
	var reqs []int
	if widest := min(r, top, b/d); derived && widest > 0 {
		reqs = append(grid(widest, lc.Grid), widest)
	}
	// Decode graphs have sizes of their own where nothing constrains them.
	byReqs := lc.Runner == RunnerV2 && lc.Multiple <= 1 && lc.MaxSizes == 0

	sizes := slices.Clone(lc.Sizes)
	if !explicit {
		sizes = grid(min(m, b), lc.Grid)
	}
	if lc.MaxSize > 0 || derived && lc.Rules == RulesAscend {
		sizes = append(sizes, m)
	}
	if !byReqs {
		for _, n := range reqs {
			sizes = append(sizes, n*d)
			m = max(m, n*d)
		}
	}
	if b <= m {
		sizes = append(sizes, b)
		m = b
	}
	if multiple := max(lc.Multiple, 1); multiple > 1 {
		sizes = slices.DeleteFunc(sizes, func(s int) bool { return s%multiple != 0 })
	}
	sizes = slices.DeleteFunc(sizes, func(s int) bool { return s > m })
	if lc.Runner == RunnerV1 && c.Mode.Decode() == Full && d > 1 {
		sizes = roundSizes(sizes, lcm(d, max(lc.Multiple, 1)), m)
	}
	if len(sizes) == 0 {
		return Ladder{}, &ConfigError{Field: "Ladder.Sizes", Problem: fmt.Sprintf(
			"no size is left within the budget of %d tokens, the maximum %d and multiples of %d", b, m, max(lc.Multiple, 1))}
	}
	l := Ladder{Sizes: ascending(sizes)}
	if lc.MaxSizes > 0 {
		l.Sizes = sample(l.Sizes, lc.MaxSizes)
	}
	l.Max = l.Sizes[len(l.Sizes)-1]
	if byReqs && len(reqs) > 0 {
		l.Requests = ascending(reqs)
		l.Max = max(l.Max, int32(slices.Max(reqs)*d))
	}
	return l, nil
}

// grid lists the default sizes up to m.
func grid(m int, g Grid) []int {
	var out []int
	add := func(s int) {
		if s <= m {
			out = append(out, s)
		}
	}
	if g == GridInteractive {
		for s := 1; s <= min(m, 32); s++ {
			add(s)
		}
	} else {
		add(1)
		add(2)
		add(4)
	}
	for s := 8; s <= min(m, 248); s += 8 {
		if g != GridInteractive || s > 32 {
			add(s)
		}
	}
	for s := 256; s <= m; s += 16 {
		add(s)
	}
	return out
}

// roundSizes rounds sizes up to multiples and drops those above m; if none
// remain, the multiple itself is the only size where it fits.
func roundSizes(sizes []int, multiple, m int) []int {
	var out []int
	for _, s := range sizes {
		if s = roundUp(s, multiple); s <= m {
			out = append(out, s)
		}
	}
	if len(out) == 0 && multiple <= m {
		return []int{multiple}
	}
	return out
}

// sample keeps n of the ascending sizes, spread evenly with both ends kept; the
// largest alone where n is 1.
func sample(sizes []int32, n int) []int32 {
	if n >= len(sizes) {
		return sizes
	}
	if n <= 1 {
		return sizes[len(sizes)-1:]
	}
	out := make([]int32, 0, n)
	for i := range n {
		out = append(out, sizes[(i*(len(sizes)-1)+(n-1)/2)/(n-1)])
	}
	return slices.Compact(out)
}

// CheckCompileSizes reports sizes that a compiler was told to specialise on but
// that padding would change, so that the specialised code never runs.
func (l Ladder) CheckCompileSizes(sizes []int) error {
	for _, s := range sizes {
		if i, ok := slices.BinarySearch(l.Sizes, int32(s)); !ok && i < len(l.Sizes) {
			return &ConfigError{Field: "compile_sizes", Problem: fmt.Sprintf("%d is padded to %d before it runs", s, l.Sizes[i])}
		}
	}
	return nil
}

func ascending(sizes []int) []int32 {
	out := make([]int32, len(sizes))
	for i, s := range sizes {
		out[i] = int32(s)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func roundUp(n, multiple int) int { return (n + multiple - 1) / multiple * multiple }

func lcm(a, b int) int {
	x, y := a, b
	for y != 0 {
		x, y = y, x%y
	}
	return a / x * b
}
