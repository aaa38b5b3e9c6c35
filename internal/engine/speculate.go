package engine

import (
	"strconv"

	"github.com/sluice-serving/sluice/internal/engine/draft"
	"github.com/sluice-serving/sluice/scheduler"
)

// Speculative is the value of --speculative-config: drafts that a step verifies
// beside the token that it makes anyway.
type Speculative struct {
	Method string `json:"method"`                 // "ngram"; "" for none
	Tokens int    `json:"num_speculative_tokens"` // K, drafts per request and step
	Max    int    `json:"prompt_lookup_max"`      // longest end of a sequence that is looked for in it; default Min, or 5
	Min    int    `json:"prompt_lookup_min"`      // shortest; default Max, or 5
}

// methodNGram guesses from the request's own tokens.
const methodNGram = "ngram"

// ParseSpeculative reads the value of --speculative-config. Unknown members are
// errors.
func ParseSpeculative(s string) (Speculative, error) {
	var v Speculative
	err := parseStrict("speculative-config", s, &v)
	return v, err
}

// on reports whether there are drafts.
func (s Speculative) on() bool { return s.Method != "" || s.Tokens != 0 }

func (s Speculative) withDefaults() Speculative {
	const length = 5
	switch {
	case s.Max == 0 && s.Min == 0:
		s.Max, s.Min = length, length
	case s.Max == 0:
		s.Max = s.Min
	case s.Min == 0:
		s.Min = s.Max
	}
	return s
}

// validate reports everything that is wrong with the speculation of c.
func (s Speculative) validate(c *Config) []error {
	if !s.on() {
		return nil
	}
	var errs []error
	if s.Method != methodNGram {
		errs = append(errs, &SettingError{"speculative-config method", strconv.Quote(s.Method), methodNGram})
	}
	for _, f := range []struct {
		name      string
		v, lo, hi int
	}{
		{"num_speculative_tokens", s.Tokens, 1, 64}, {"prompt_lookup_max", s.Max, 1, 1 << 10}, {"prompt_lookup_min", s.Min, 1, s.Max},
	} {
		if f.v < f.lo || f.v > f.hi {
			errs = append(errs, within(f.name, f.v, f.lo, f.hi))
		}
	}
	if need := c.MaxSeqs * (s.Tokens + 1); c.MaxTokens < need {
		errs = append(errs, &SettingError{"max-num-batched-tokens", c.MaxTokens, "at least " + strconv.Itoa(need) + ": max-num-seqs rows of num_speculative_tokens and one more"})
	}
	return errs
}

// propose counts the rows of a step that had drafts, and adds the drafts of the
// next step to its result: for each row that has tokens, by its prompt, its answer
// and these tokens.
func (r *rank) propose(p *scheduler.Plan, res *scheduler.Result) {
	g := draft.NGram{Min: r.cfg.Speculative.Min, Max: r.cfg.Speculative.Max, Tokens: int(p.NextDrafts)}
	r.drafts, r.draftCounts = r.drafts[:0], r.draftCounts[:0]
	tokens := res.Tokens
	for i, id := range p.Requests {
		n := res.Counts[i]
		got := tokens[:n]
		tokens = tokens[n:]
		if p.Drafts[i] > p.Placeholders[i] {
			r.metrics.counter(r.metrics.m.drafted).Inc()
		}
		before := len(r.drafts)
		if s := r.streams[id]; s != nil && n > 0 {
			r.drafts = g.Propose(r.drafts, append(s.known, got...))
		}
		r.draftCounts = append(r.draftCounts, int32(len(r.drafts)-before))
	}
	res.Drafts, res.DraftCounts = r.drafts, r.draftCounts
}

// speculated counts what became of drafts since the last look.
func (r *rank) speculated(now scheduler.Stats) {
	if !r.cfg.Speculative.on() {
		return
	}
	m, was := r.metrics, r.counted
	m.counter(m.m.draftTokens).Add(float64(now.DraftTokens - was.DraftTokens))
	m.counter(m.m.draftsAccepted).Add(float64(now.DraftsAccepted - was.DraftsAccepted))
	for i, n := range now.DraftsAcceptedAt {
		if i < len(was.DraftsAcceptedAt) {
			n -= was.DraftsAcceptedAt[i]
		}
		m.counter(m.m.draftsAcceptedAt, strconv.Itoa(i)).Add(float64(n))
	}
	r.counted = now
}
