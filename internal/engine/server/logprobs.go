package server

import (
	"encoding/json"
	"fmt"
	"math"
	"unicode/utf8"

	"github.com/sluice-serving/sluice/internal/engine/sample"
	"github.com/sluice-serving/sluice/internal/openai"
	"github.com/sluice-serving/sluice/scheduler"
)

// leastLogprob stands for the logarithm of 0, which JSON cannot write.
const leastLogprob = -9999

// spelled is a token as log probabilities show it: its text, or its id where it
// is no text by itself.
func (s *Server) spelled(t scheduler.Token) string {
	if text := s.tokenText(t); text != "" && utf8.ValidString(text) {
		return text
	}
	return fmt.Sprintf("token_id:%d", t)
}

// completionLogprobs writes the log probabilities of tokens of an answer, and with
// its first ones those of the prompt that it begins with; nil if there are none.
func (s *Server) completionLogprobs(c *call, a *answer, probs []sample.Logprobs, first bool) json.RawMessage {
	var out openai.CompletionLogprobs
	add := func(x sample.Logprobs, most int) {
		text := s.spelled(x.Chosen.Token)
		own := finite(x.Chosen.Value)
		top := map[string]float64{text: own}
		for _, t := range x.Top[:min(len(x.Top), most)] {
			top[s.spelled(t.Token)] = finite(t.Value)
		}
		out.Tokens, out.TokenLogprobs = append(out.Tokens, text), append(out.TokenLogprobs, &own)
		out.TopLogprobs, out.TextOffset = append(out.TopLogprobs, top), append(out.TextOffset, a.offset)
		a.offset += characters(s.tokenText(x.Chosen.Token))
	}
	if text, echoed := c.prefix(a); first && echoed {
		if c.echo.top != nil {
			for i, x := range a.scores {
				add(x.Logprobs, *c.echo.top)
				if i == 0 {
					out.TokenLogprobs[0], out.TopLogprobs[0] = nil, nil
				}
			}
		}
		a.offset = utf8.RuneCountInString(text) // special tokens have no text, but a prompt may spell them
	}
	for _, x := range probs {
		add(x, len(x.Top))
	}
	if len(out.Tokens) == 0 {
		return nil
	}
	raw, _ := json.Marshal(out) // numbers are finite
	return raw
}

// chatLogprobs writes the log probabilities of tokens; nil if there are none.
func (s *Server) chatLogprobs(probs []sample.Logprobs) json.RawMessage {
	if len(probs) == 0 {
		return nil
	}
	one := func(p sample.Logprob) openai.TokenLogprob {
		text := s.tokenText(p.Token)
		bytes := make([]int, len(text))
		for i := range len(text) {
			bytes[i] = int(text[i])
		}
		return openai.TokenLogprob{Token: s.spelled(p.Token), Logprob: finite(p.Value), Bytes: bytes}
	}
	var out openai.ChatLogprobs
	for _, x := range probs {
		at := openai.ChatLogprob{TokenLogprob: one(x.Chosen), TopLogprobs: []openai.TokenLogprob{}}
		for _, t := range x.Top {
			at.TopLogprobs = append(at.TopLogprobs, one(t))
		}
		out.Content = append(out.Content, at)
	}
	raw, _ := json.Marshal(out) // numbers are finite
	return raw
}

func finite(v float64) float64 { return math.Max(v, leastLogprob) }

// tokenText is what a token adds to an answer, in bytes.
func (s *Server) tokenText(t scheduler.Token) string {
	text := s.engine.Tokenizer()
	if text == nil {
		return ""
	}
	return text.Bytes(t)
}

// characters counts those that begin in a token's text, which may hold a part of
// one only.
func characters(text string) int {
	n := 0
	for i := range len(text) {
		if utf8.RuneStart(text[i]) {
			n++
		}
	}
	return n
}
