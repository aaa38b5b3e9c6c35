package sample

import (
	"fmt"
	"math"
	"slices"
)

// Score is what the model gave for one token of a prompt.
type Score struct {
	Logprobs // of the logits behind the token before it; Chosen is the prompt's own token
	// Rank is how many tokens are at least as likely as the prompt's own; 0 in the
	// score of the first token, behind which nothing stands.
	Rank int
}

// scores are those of a prompt while it is computed.
type scores struct {
	prompt []Token
	of     []Score // by position of the token that is scored
}

func newScores(prompt []Token) scores {
	s := scores{slices.Clone(prompt), make([]Score, len(prompt))}
	if len(prompt) > 0 {
		s.of[0].Chosen.Token = prompt[0]
	}
	return s
}

// Scored is the number of positions of the prompt, from the first on, behind which
// Score wants the logits: one less than it has tokens, and none without
// Params.Prompt.
func (s *Sampler) Scored() int { return max(0, len(s.scores.prompt)-1) }

// Score takes the logits behind the prompt's token at a position below Scored. A
// position may come again. It reports false if a logit is NaN. Several goroutines
// may call it at once, each for another position.
func (s *Sampler) Score(pos int, logits []float32) bool {
	next := s.scores.prompt[pos+1]
	top, own, rank := float32(math.Inf(-1)), logits[next], 0
	for _, v := range logits {
		if v != v {
			return false
		}
		top = max(top, v)
		if v >= own {
			rank++
		}
	}
	if math.IsInf(float64(top), 0) {
		return false
	}
	at, norm := alternatives(logits, top, s.p.PromptTop)
	at.Chosen = Logprob{next, float64(own) - norm}
	s.scores.of[pos+1] = Score{at, rank}
	return true
}

// MissingScoreError reports a position of a prompt whose logits nobody has given.
type MissingScoreError struct{ Position, Tokens int }

func (e *MissingScoreError) Error() string {
	return fmt.Sprintf("token %d of the prompt's %d has no log probability", e.Position, e.Tokens)
}

// TakeScores gives the scores of the prompt's tokens, the first of which has none,
// and forgets them; nil without Params.Prompt. The error is a *MissingScoreError.
func (s *Sampler) TakeScores() ([]Score, error) {
	out := s.scores.of
	for i := 1; i < len(out); i++ {
		if out[i].Rank == 0 {
			return nil, &MissingScoreError{i, len(out)}
		}
	}
	s.scores = scores{}
	return out, nil
}
