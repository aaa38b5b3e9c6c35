package sample

import (
	"fmt"
	"math"

	"github.com/sluice-serving/sluice/kvcache"
)

// Token is a vocabulary id.
type Token = kvcache.Token

// MaxLogprobs is the most alternatives per token that a request may ask for.
const MaxLogprobs = 20

// maxBias bounds the values of Params.Bias, as OpenAI's interface does.
const maxBias = 100

// minTemperature is the least temperature that is divided by: below it a float32
// would overflow. vLLM has the same bound.
const minTemperature = 0.01

// greedyBelow is the temperature below which the most likely token is taken.
const greedyBelow = 1e-5

// Params say how the tokens of one request are chosen. The zero value takes the
// most likely token.
type Params struct {
	Temperature float64 // 0: the most likely token
	TopK        int     // of the most likely tokens; 0 or -1: all
	TopP        float64 // the most likely tokens that hold this mass, in (0, 1]; 0 means 1
	MinP        float64 // least probability, as a share of the largest one, in [0, 1]

	Presence   float64 // subtracted from logits of tokens in the output, in [-2, 2]
	Frequency  float64 // subtracted once per occurrence in the output, in [-2, 2]
	Repetition float64 // divides positive and multiplies negative logits of tokens in prompt or output; above 0; 0 means 1

	Bias      []Bias  // added to logits
	MinTokens int     // output tokens before any of Ends
	Ends      []Token // tokens that end the answer

	Seed     uint64 // of the draws
	Logprobs bool   // log probabilities are reported
	Top      int    // with them those of so many most likely tokens, at most MaxLogprobs

	Prompt    bool // log probabilities of the prompt's tokens are reported
	PromptTop int  // with them those of so many most likely tokens, at most MaxLogprobs
}

// Bias is added to the logit of one token.
type Bias struct {
	Token Token
	Value float64
}

// RangeError reports a parameter that is out of its range. Field is its name on
// the wire.
type RangeError struct {
	Field string
	Value any
	Rule  string
}

func (e *RangeError) Error() string {
	return fmt.Sprintf("%s is %v, must be %s", e.Field, e.Value, e.Rule)
}

// Validate reports the first parameter that is out of its range for a
// vocabulary, as a *RangeError.
func (p *Params) Validate(vocab int) error {
	within := func(v, lo, hi float64) bool { return v >= lo && v <= hi } // false for NaN
	switch {
	case !within(p.Temperature, 0, 2):
		return &RangeError{"temperature", p.Temperature, "within 0 to 2"}
	case p.TopK < -1:
		return &RangeError{"top_k", p.TopK, "-1 or more"}
	case !within(p.TopP, 0, 1):
		return &RangeError{"top_p", p.TopP, "above 0 and at most 1"}
	case !within(p.MinP, 0, 1):
		return &RangeError{"min_p", p.MinP, "within 0 to 1"}
	case !within(p.Presence, -2, 2):
		return &RangeError{"presence_penalty", p.Presence, "within -2 to 2"}
	case !within(p.Frequency, -2, 2):
		return &RangeError{"frequency_penalty", p.Frequency, "within -2 to 2"}
	case !(p.Repetition >= 0) || math.IsInf(p.Repetition, 1):
		return &RangeError{"repetition_penalty", p.Repetition, "above 0"}
	case p.MinTokens < 0:
		return &RangeError{"min_tokens", p.MinTokens, "0 or more"}
	case p.Top < 0 || p.Top > MaxLogprobs:
		return &RangeError{"logprobs", p.Top, fmt.Sprintf("within 0 to %d", MaxLogprobs)}
	case p.PromptTop < 0 || p.PromptTop > MaxLogprobs:
		return &RangeError{"prompt_logprobs", p.PromptTop, fmt.Sprintf("within 0 to %d", MaxLogprobs)}
	}
	for _, b := range p.Bias {
		switch {
		case b.Token < 0 || int(b.Token) >= vocab:
			return &RangeError{"logit_bias", b.Token, fmt.Sprintf("a token id of the vocabulary of %d", vocab)}
		case !within(b.Value, -maxBias, maxBias):
			return &RangeError{"logit_bias", b.Value, fmt.Sprintf("within %d to %d", -maxBias, maxBias)}
		}
	}
	return nil
}

// random reports whether tokens are drawn.
func (p *Params) random() bool { return p.Temperature >= greedyBelow }

// penalises reports whether a choice depends on the tokens before it.
func (p *Params) penalises() bool {
	return p.Presence != 0 || p.Frequency != 0 || p.Repetition != 1
}
