package workload

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"time"
)

// Content says what a generated turn consists of.
type Content uint8

// The kinds of content.
const (
	Text   Content = iota // words, for chat
	Tokens                // token ids, for completions
)

func (c Content) String() string {
	switch c {
	case Text:
		return "text"
	case Tokens:
		return "tokens"
	}
	return fmt.Sprintf("content(%d)", uint8(c))
}

// Range is an inclusive range of integers.
type Range struct{ Low, High int }

func (r Range) String() string { return fmt.Sprintf("%d-%d", r.Low, r.High) }

func (r Range) pick(rng *rand.Rand) int { return r.Low + rng.IntN(r.High-r.Low+1) }

func (r Range) validate(name string, low int) error {
	if r.Low < low || r.High < r.Low {
		return fmt.Errorf("%s %v is not a range from %d up", name, r, low)
	}
	return nil
}

// TokenRange is the default range of generated token ids: printable bytes,
// which every byte-level and every large vocabulary has.
var TokenRange = Range{33, 126}

// Conversations describes a multi-turn workload. Lengths count characters of
// text, or tokens.
type Conversations struct {
	Name     string
	Seed     uint64
	Content  Content
	Sessions int
	Turns    int
	First    Range // length of the first user input
	Next     Range // length of each later one
	Vocab    Range // token ids; zero means TokenRange
	System   string

	Arrival   time.Duration // sessions arrive evenly over it
	Think     time.Duration // pause before a follow-up
	MaxTokens int           // output limit of a turn

	// A long pause stands for a user who comes back late. LongPauses sessions,
	// the first to arrive, have one before their follow-up number LongTurn
	// (from 1).
	LongPauses int
	LongPause  time.Duration
	LongTurn   int
}

// Validate reports everything that is wrong with the description.
func (c *Conversations) Validate() error {
	errs := []error{c.First.validate("first length", 1), c.Next.validate("next length", 1)}
	if c.Vocab != (Range{}) {
		errs = append(errs, c.Vocab.validate("token range", 0))
	}
	if c.Sessions < 1 || c.Turns < 1 || c.MaxTokens < 1 {
		errs = append(errs, fmt.Errorf("sessions %d, turns %d and max tokens %d must be at least 1", c.Sessions, c.Turns, c.MaxTokens))
	}
	if c.Arrival < 0 || c.Think < 0 || c.LongPause < 0 {
		errs = append(errs, errors.New("arrival, think time and long pause must not be negative"))
	}
	if c.LongPauses < 0 || c.LongPauses > c.Sessions {
		errs = append(errs, fmt.Errorf("long pauses %d are not between 0 and %d sessions", c.LongPauses, c.Sessions))
	}
	if c.LongPauses > 0 && (c.LongTurn < 1 || c.LongTurn >= c.Turns) {
		errs = append(errs, fmt.Errorf("the long pause before follow-up %d needs more turns than %d", c.LongTurn, c.Turns))
	}
	return errors.Join(errs...)
}

// Generate freezes the workload: the same description gives the same bytes.
// Every session's input starts with its own id, so that two sessions share no
// whole block of their prompts.
func (c *Conversations) Generate() (*Workload, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	rng := rand.New(rand.NewPCG(c.Seed, 0x5eed))
	vocab := c.Vocab
	if vocab == (Range{}) {
		vocab = TokenRange
	}
	w := &Workload{Version: Version, Name: c.Name, Seed: c.Seed}
	for i := range c.Sessions {
		s := Session{ID: fmt.Sprintf("s%03d", i), System: c.System}
		if c.Sessions > 1 {
			s.Arrival = c.Arrival * time.Duration(i) / time.Duration(c.Sessions-1)
		}
		for j := range c.Turns {
			t := Turn{MaxTokens: c.MaxTokens}
			length := c.Next
			if j == 0 {
				length = c.First
			} else {
				t.Think = c.Think
				if i < c.LongPauses && j == c.LongTurn {
					t.Think = c.LongPause
				}
			}
			n := length.pick(rng)
			if c.Content == Tokens {
				t.Tokens = tokens(rng, n, vocab)
			} else {
				prefix := ""
				if j == 0 {
					prefix = fmt.Sprintf("%04x ", uint16(i*40503)) // an odd factor keeps them distinct
				}
				t.Text = words(rng, prefix, n)
			}
			s.Turns = append(s.Turns, t)
		}
		w.Sessions = append(w.Sessions, s)
	}
	return w, w.Validate()
}

// RandomPrompts describes independent requests of fixed lengths.
type RandomPrompts struct {
	Seed      uint64
	Content   Content
	Requests  int
	InputLen  int     // tokens, or characters of text
	OutputLen int     // output limit, tokens
	Rate      float64 // requests a second, exponential gaps; 0 or +Inf: all at once
	Vocab     Range   // token ids; zero means TokenRange
}

// Generate freezes the workload: one session of one turn for each request.
func (p *RandomPrompts) Generate() (*Workload, error) {
	if p.Requests < 1 || p.InputLen < 1 || p.OutputLen < 1 || p.Rate < 0 || math.IsNaN(p.Rate) {
		return nil, fmt.Errorf("requests %d, input %d, output %d and rate %g: the first three start at 1, the rate at 0", p.Requests, p.InputLen, p.OutputLen, p.Rate)
	}
	vocab := p.Vocab
	if vocab == (Range{}) {
		vocab = TokenRange
	}
	if err := vocab.validate("token range", 0); err != nil {
		return nil, err
	}
	rng := rand.New(rand.NewPCG(p.Seed, 0xda7a))
	w := &Workload{Version: Version, Name: "random", Seed: p.Seed}
	at := 0.0
	for i := range p.Requests {
		t := Turn{MaxTokens: p.OutputLen}
		if p.Content == Tokens {
			t.Tokens = tokens(rng, p.InputLen, vocab)
		} else {
			t.Text = words(rng, "", p.InputLen)
		}
		w.Sessions = append(w.Sessions, Session{ID: fmt.Sprintf("r%05d", i), Arrival: time.Duration(at * float64(time.Second)), Turns: []Turn{t}})
		if p.Rate > 0 && !math.IsInf(p.Rate, 1) {
			at += rng.ExpFloat64() / p.Rate
		}
	}
	return w, w.Validate()
}

func tokens(rng *rand.Rand, n int, vocab Range) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(vocab.pick(rng))
	}
	return out
}

var syllables = strings.Fields("ba ce di fo gu ha je ki lo mu na pe qui ro su ta ve wi xo yu za che dri flo gra ple sto tru")

// words is text of exactly n characters (at least those of the prefix) made of invented words.
func words(rng *rand.Rand, prefix string, n int) string {
	var b strings.Builder
	b.WriteString(prefix)
	for b.Len() < n {
		for range 1 + rng.IntN(3) {
			b.WriteString(syllables[rng.IntN(len(syllables))])
		}
		if rng.IntN(9) == 0 {
			b.WriteByte('.')
		}
		b.WriteByte(' ')
	}
	s := b.String()[:max(n, len(prefix))]
	if s[len(s)-1] == ' ' {
		s = s[:len(s)-1] + "."
	}
	return s
}
