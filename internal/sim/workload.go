package sim

import (
	"errors"
	"fmt"
	"slices"

	"github.com/sluice-serving/sluice/kvcache"
)

// Workload is what clients do. Sessions are numbered from 0 in the order of
// their starts, which never decrease. Implementations are deterministic and
// answer the same question the same way.
type Workload interface {
	Sessions() int
	// Start is when the first turn of a session becomes eligible.
	Start(session int) Time
	// Turns is the number of turns of a session, at least 1.
	Turns(session int) int
	// Prompt appends to history what turn t of a session sends: history is the
	// prompt of the turn before and its answer, empty for the first turn. It
	// may cut and rewrite history.
	Prompt(session, t int, history []kvcache.Token) []kvcache.Token
	// Output is the number of tokens that the turn's answer has, at least 1.
	Output(session, t int) int
	// Answer is token k of the turn's answer, whatever route it takes.
	Answer(session, t, k int) kvcache.Token
	// Think is the time from the end of turn t to the eligibility of t+1.
	Think(session, t int) Time
	// Parent is the session whose history a session's first turn extends; -1 for none.
	Parent(session int) int
}

// ToolCaller is a workload that knows which answers call a tool. An engine sees
// that in the answer and tells its scheduler.
type ToolCaller interface {
	InTool(session, t int) bool
}

// Conversations is a workload of equal sessions that arrive evenly, after the
// published Decoder Append-Prefill experiment.
type Conversations struct {
	Count        int       // sessions
	Rounds       int       // turns of each
	Window       float64   // seconds over which sessions arrive
	Starts       []float64 // of each session, in seconds, ascending; nil: at equal distances over Window
	ThinkTime    float64   // seconds
	PromptMin    int       // tokens of a first prompt, at least
	PromptMax    int       // at most
	AddMin       int       // tokens that a later turn adds to history and answer
	AddMax       int
	OutMin       int // tokens of an answer
	OutMax       int
	OutMean      float64 // 0: uniform in [OutMin, OutMax]; else only these two, mixed to this mean
	SharedPrompt int     // leading tokens that all sessions have in common
	Seed         uint64
}

var _ Workload = (*Conversations)(nil)

// Validate reports what cannot be run, joined.
func (c *Conversations) Validate() error {
	var errs []error
	for _, f := range []struct {
		name     string
		v, least int
	}{
		{"sessions", c.Count, 1}, {"turns", c.Rounds, 1}, {"shortest prompt", c.PromptMin, 1}, {"shortest addition", c.AddMin, 1},
		{"shortest answer", c.OutMin, 1}, {"shared prompt", c.SharedPrompt, 0},
	} {
		if f.v < f.least {
			errs = append(errs, fmt.Errorf("workload: %s is %d, must be at least %d", f.name, f.v, f.least))
		}
	}
	if c.PromptMax < c.PromptMin || c.AddMax < c.AddMin || c.OutMax < c.OutMin {
		errs = append(errs, errors.New("workload: a largest length is below its smallest"))
	}
	if c.SharedPrompt > c.PromptMin {
		errs = append(errs, fmt.Errorf("workload: shared prompt is %d tokens, longer than the shortest prompt of %d", c.SharedPrompt, c.PromptMin))
	}
	if !(c.Window >= 0) || !(c.ThinkTime >= 0) {
		errs = append(errs, errors.New("workload: window and think time must not be negative"))
	}
	if c.Starts != nil && (len(c.Starts) != c.Count || !slices.IsSorted(c.Starts)) {
		errs = append(errs, fmt.Errorf("workload: %d starts of %d sessions, must be one for each, ascending", len(c.Starts), c.Count))
	}
	return errors.Join(errs...)
}

func (c *Conversations) Sessions() int { return c.Count }

func (c *Conversations) Start(session int) Time {
	if c.Starts != nil {
		return Seconds(c.Starts[session])
	}
	return Seconds(c.Window * float64(session) / float64(c.Count))
}

func (c *Conversations) Turns(int) int { return c.Rounds }

func (c *Conversations) Think(int, int) Time { return Seconds(c.ThinkTime) }

func (c *Conversations) Parent(int) int { return -1 }

// draw is a number of one turn: what names the purpose.
func (c *Conversations) draw(session, t int, what uint64) float64 {
	return unit(c.Seed^what, uint64(session)<<20|uint64(t))
}

func (c *Conversations) between(lo, hi, session, t int, what uint64) int {
	return lo + int(c.draw(session, t, what)*float64(hi-lo+1))
}

func (c *Conversations) Prompt(session, t int, history []kvcache.Token) []kvcache.Token {
	n := c.between(c.AddMin, c.AddMax, session, t, 1)
	if t == 0 {
		n = c.between(c.PromptMin, c.PromptMax, session, t, 2)
		for i := range min(n, c.SharedPrompt) {
			history = append(history, tokenOf(c.Seed, 0, i))
		}
		n -= len(history)
	}
	for i := range n {
		history = append(history, tokenOf(c.Seed, uint64(session)<<20|uint64(t)<<4|3, i))
	}
	return history
}

func (c *Conversations) Output(session, t int) int {
	if c.OutMean == 0 {
		return c.between(c.OutMin, c.OutMax, session, t, 5)
	}
	// An even spread of the longer answers, rather than a random one, gives
	// the total that the mean asks for.
	share := (c.OutMean - float64(c.OutMin)) / float64(c.OutMax-c.OutMin)
	i := float64(session*c.Rounds + t)
	if int((i+1)*share) > int(i*share) {
		return c.OutMax
	}
	return c.OutMin
}

func (c *Conversations) Answer(session, t, k int) kvcache.Token {
	return tokenOf(c.Seed, uint64(session)<<20|uint64(t)<<4|7, k)
}

// vocabulary of synthetic tokens; ids below 256 are left to special ones.
const vocabulary = 151_000

// tokenOf is token i of a stream.
func tokenOf(seed, stream uint64, i int) kvcache.Token {
	return kvcache.Token(256 + mix(mix(seed^stream*0x9E3779B97F4A7C15)+uint64(i))%(vocabulary-256))
}
