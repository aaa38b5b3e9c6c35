package scheduler

import (
	"fmt"
	"math"
	"time"
)

// GovernorConfig bounds what append attempts may add to the steps of a
// Decoder, so that the time per output token of those that decode there stays
// near what it is without them. The zero value of a field is its default.
type GovernorConfig struct {
	// TargetTPOT is the mean step time to keep while requests decode. 0: the
	// decode-only step, times TargetRatio.
	TargetTPOT time.Duration
	// TargetRatio of the mean step time to a decode-only step, above 1.
	// Default 1.04.
	TargetRatio float64
	// Interval is the least number of steps without append tokens after each
	// step with some, while requests decode. Default 1; NoInterval for none.
	Interval int
	// MaxInterval bounds how far the interval is stretched when even a small
	// chunk is too much. Default 7.
	MaxInterval int
	// Savings is the largest number of steps whose allowance a chunk may take at
	// once: what steps without append tokens have left unused is saved for the
	// attempt that comes next, so that a short suffix is done in one chunk.
	// Default 4; at least Interval+1.
	Savings int
	// Quiet is how many steps attempts may be held back, before each chunk, for a step
	// in which nobody decodes: while all that decode are sure to end within what is left
	// of it, by MaxTokens and the model's length. Such a step takes any chunk and
	// lengthens nobody's answer, which matters where answers are so short that a mean
	// over many steps says nothing of one of them. MaxWait goes on meanwhile. Ranks that
	// step together each hold attempts back, those of all, for their own requests as long
	// as they have attempts of their own. Default 0: attempts are never held back for that.
	Quiet int
	// FirstTokens is the cap until enough steps were measured. Default 64.
	FirstTokens int
	// MinTokens is the smallest chunk worth a step. Default 32.
	MinTokens int
	// MaxTokens of append attempts in a step. Default: no bound but the budget.
	MaxTokens int
}

// NoInterval is the value of GovernorConfig.Interval for no decode-only steps.
const NoInterval = -1

func (c GovernorConfig) withDefaults() GovernorConfig {
	if c.TargetRatio == 0 {
		c.TargetRatio = 1.04
	}
	switch c.Interval {
	case 0:
		c.Interval = 1
	case NoInterval:
		c.Interval = 0
	}
	if c.MaxInterval == 0 {
		c.MaxInterval = max(7, c.Interval)
	}
	if c.Savings == 0 {
		c.Savings = max(4, c.Interval+1)
	}
	if c.FirstTokens == 0 {
		c.FirstTokens = 64
	}
	if c.MinTokens == 0 {
		c.MinTokens = 32
	}
	if c.MaxTokens == 0 {
		c.MaxTokens = math.MaxInt32
	}
	return c
}

func (c GovernorConfig) validate(bad func(field, format string, args ...any)) {
	if c.TargetTPOT < 0 {
		bad("Governor.TargetTPOT", "is %v, must not be negative", c.TargetTPOT)
	}
	if c.TargetRatio != 0 && !(c.TargetRatio > 1 && c.TargetRatio <= 100) {
		bad("Governor.TargetRatio", "is %v, must lie above 1 and not above 100", c.TargetRatio)
	}
	if c.Interval < NoInterval || c.Interval > 1000 {
		bad("Governor.Interval", "is %d, must lie in [%d, 1000]", c.Interval, NoInterval)
	}
	if c.MaxInterval < 0 || c.MaxInterval != 0 && c.MaxInterval < c.Interval {
		bad("Governor.MaxInterval", "is %d, must not be below Interval=%d", c.MaxInterval, c.Interval)
	}
	if c.Savings < 0 || c.Savings > 1000 || c.Savings != 0 && c.Savings <= c.Interval {
		bad("Governor.Savings", "is %d, must lie in [0, 1000] and above Interval=%d", c.Savings, c.Interval)
	}
	if c.Quiet < 0 || c.Quiet > 1000 {
		bad("Governor.Quiet", "is %d, must lie in [0, 1000]", c.Quiet)
	}
	for _, f := range []struct {
		name string
		v    int
	}{{"FirstTokens", c.FirstTokens}, {"MinTokens", c.MinTokens}, {"MaxTokens", c.MaxTokens}} {
		if f.v < 0 || f.v > math.MaxInt32 {
			bad("Governor."+f.name, "is %d, must lie in [0, %d]", f.v, math.MaxInt32)
		}
	}
}

// Proposal is what one rank asks of the next step, before it is planned.
type Proposal struct {
	// Cap is the number of append tokens that the rank can bear.
	Cap int32
	// Wants says whether the rank has append tokens to compute.
	Wants Want
}

// Want says whether a rank has append work.
type Want uint8

const (
	WantsNothing Want = iota // decodes alone
	WantsAppend              // append tokens wait for this step
)

// Agreement is what the ranks of a lock-step group agree on for one step.
type Agreement struct {
	// Cap is the number of append tokens that each rank may compute.
	Cap int32
	// Chunk is true if some rank will compute append tokens: the interval of
	// every rank begins anew.
	Chunk bool
}

// Agree joins the proposals of all ranks that step together. A step lasts as
// long as its slowest rank, so the tightest cap holds for all, and all have
// their chunks in the same step.
func Agree(proposals []Proposal) Agreement {
	a := Agreement{Cap: math.MaxInt32}
	for _, p := range proposals {
		a.Cap = min(a.Cap, p.Cap)
		a.Chunk = a.Chunk || p.Wants == WantsAppend
	}
	a.Chunk = a.Chunk && a.Cap > 0
	return a
}

// governor chooses how many append tokens a step may have. It learns step
// times from what is measured (stepFit); before it knows enough it allows a
// small first chunk. It is deterministic, has no clock, and belongs to its
// scheduler's goroutine.
type governor struct {
	cfg   GovernorConfig
	fit   stepFit
	since int // steps since the last one with append tokens, of any rank
	held  int // of them those in which an attempt was held back for a quiet one
}

// newGovernor makes a governor, or says what is wrong with the configuration.
func newGovernor(cfg GovernorConfig) (*governor, error) {
	var err error
	cfg.validate(func(field, format string, args ...any) {
		if err == nil {
			err = &ConfigError{field, fmt.Sprintf(format, args...)}
		}
	})
	if err != nil {
		return nil, err
	}
	return &governor{cfg: cfg.withDefaults(), since: math.MaxInt32}, nil
}

// enough steps of each kind make the fit one to rely on.
const enough = 8

func (g *governor) learned() bool {
	nd, np := g.fit.samples()
	return nd >= enough && np >= enough
}

// cap is the number of append tokens that a step with so many decodes can
// bear; context is the number of tokens that its append tokens attend to.
// Without decodes there is nobody to protect.
func (g *governor) cap(decodes, context int) int32 {
	if decodes == 0 {
		return int32(g.cfg.MaxTokens)
	}
	tokens, interval := g.chunk(decodes, context)
	if g.since < interval {
		return 0
	}
	if saved := min(g.since+1, g.cfg.Savings); saved > interval+1 && g.learned() && tokens < math.MaxInt32/g.cfg.Savings {
		tokens = tokens * saved / (interval + 1)
	}
	return int32(min(tokens, g.cfg.MaxTokens))
}

// chunk is the size of an append chunk and the number of decode-only steps
// that must follow it, such that the mean of the chunk's step and those steps
// is the target.
func (g *governor) chunk(decodes, context int) (tokens, interval int) {
	interval = g.cfg.Interval
	if !g.learned() {
		return g.cfg.FirstTokens, max(interval, 1)
	}
	m := g.fit.model
	base := m.decodeOnly(decodes)
	slack := base * (g.cfg.TargetRatio - 1)
	if g.cfg.TargetTPOT > 0 {
		slack = g.cfg.TargetTPOT.Seconds() - base
	}
	per := m.Prefill + m.Context*float64(context)
	if per <= 0 {
		return math.MaxInt32, interval
	}
	for ; ; interval++ {
		n := slack * float64(interval+1) / per
		if n >= float64(g.cfg.MinTokens) || interval >= g.cfg.MaxInterval {
			// A load that is over the target by itself still lets the attempts
			// go on, slowly: they hold blocks.
			return int(min(max(n, float64(g.cfg.MinTokens)), math.MaxInt32)), interval
		}
	}
}

// waits reports whether attempts are held back where those that decode have at most so
// many steps left.
func (g *governor) waits(left int) bool { return left > 0 && g.held+left <= g.cfg.Quiet }

// takes predicts how long so many append tokens take beside so many decodes, of at
// most so many steps each: with the decode-only steps between their chunks, or behind
// those that decode. It is 0 until enough steps were measured.
func (g *governor) takes(tokens, decodes, left, context int) time.Duration {
	if !g.learned() {
		return 0
	}
	m := g.fit.model
	own := m.append(float64(tokens), float64(tokens)*float64(context))
	steps := 1.0
	switch {
	case g.waits(left):
		steps += float64(left)
	case decodes > 0:
		n, interval := g.chunk(decodes, context)
		chunks := math.Ceil(float64(tokens) / float64(max(n, 1)))
		steps = (chunks-1)*float64(interval+1) + 1
	}
	s := own + steps*m.decodeOnly(decodes)
	return time.Duration(min(s*1e9, math.MaxInt64/2))
}

// stepped tells the governor that a step was planned, and whether any rank of
// the group has append tokens in it; held is true if one of this rank's attempts was held
// back for a quiet one.
func (g *governor) stepped(a Agreement, held bool) {
	if a.Chunk {
		g.since, g.held = 0, 0
		return
	}
	if g.since < math.MaxInt32 {
		g.since++
	}
	if held {
		g.held++
	}
}

// observe takes the measured time of an applied step.
func (g *governor) observe(w StepWork, elapsed time.Duration) { g.fit.observe(w, elapsed.Seconds()) }
