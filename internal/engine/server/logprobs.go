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

// completionLogprobs writes the log probabilities of tokens whose text begins at
// *offset characters of the answer; nil if there are none.
func (s *Server) completionLogprobs(probs []sample.Logprobs, offset *int) json.RawMessage {
	if len(probs) == 0 {
		return nil
	}
	var out openai.CompletionLogprobs
	for _, x := range probs {
		text := s.spelled(x.Chosen.Token)
		top := map[string]float64{text: finite(x.Chosen.Value)}
		for _, t := range x.Top {
			top[s.spelled(t.Token)] = finite(t.Value)
		}
		out.Tokens, out.TokenLogprobs = append(out.Tokens, text), append(out.TokenLogprobs, finite(x.Chosen.Value))
		out.TopLogprobs, out.TextOffset = append(out.TopLogprobs, top), append(out.TextOffset, *offset)
		*offset += utf8.RuneCountInString(s.tokenText(x.Chosen.Token))
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
