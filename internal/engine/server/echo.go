package server

import (
	"github.com/sluice-serving/sluice/internal/engine/sample"
	"github.com/sluice-serving/sluice/internal/engine/tokenizer"
	"github.com/sluice-serving/sluice/internal/openai"
	"github.com/sluice-serving/sluice/scheduler"
)

// maxScores bounds the log probabilities of prompt tokens that one request asks
// for: the prompt's own and the most likely ones, over all tokens and answers.
const maxScores = 1 << 21

// echo are the prompts that a completion's answers begin with.
type echo struct {
	top   *int     // most likely tokens per token, of logprobs; nil: no log probabilities
	texts []string // the prompts as they came; nil if as token ids
	alone bool     // max_tokens is 0: nothing comes behind the prompt
	of    []string // by prompt: its text
}

// add takes prompt k in. One that came as ids is what its tokens say.
func (x *echo) add(s *Server, k int, prompt []scheduler.Token) {
	text := ""
	switch words := s.engine.Tokenizer(); {
	case x.texts != nil:
		text = x.texts[k]
	case words != nil:
		text = tokenizer.Decode(words, prompt)
	}
	x.of = append(x.of, text)
}

// scores is how many most likely tokens the log probabilities of a prompt need: as
// many as prompt_logprobs says and as an echo shows; nil if nobody asks.
func (c *call) scores(prompt *int) *int {
	switch {
	case c.echo == nil || c.echo.top == nil:
		return prompt
	case prompt == nil || *prompt >= 0 && *prompt < *c.echo.top: // a negative one is out of range
		return c.echo.top
	}
	return prompt
}

// boundScores refuses a request whose prompts have too many log probabilities.
func (c *call) boundScores(prompts [][]scheduler.Token, n int) *openai.Error {
	if !c.sampling.Prompt {
		return nil
	}
	all := 0
	for _, p := range prompts {
		all += len(p) * n * (1 + c.sampling.PromptTop)
	}
	if all > maxScores {
		param := "prompt_logprobs"
		if c.prompts == nil {
			param = "logprobs"
		}
		return openai.BadRequest(param, "%d log probabilities of prompt tokens are asked for, over all prompts and answers; at most %d", all, maxScores)
	}
	return nil
}

// prefix is the text that an answer begins with, and whether it begins with its
// prompt at all. One without a token does not: a refused attempt is no answer.
func (c *call) prefix(a *answer) (text string, echoed bool) {
	if c.echo == nil || !a.begun {
		return "", false
	}
	return c.echo.of[a.index/c.perPrompt], true
}

// promptLogprobs writes the scores of a prompt, as far as prompt_logprobs asks for
// them; nil if it does not.
func (s *Server) promptLogprobs(c *call, scores []sample.Score) openai.PromptLogprobs {
	if c.prompts == nil {
		return nil
	}
	var out openai.PromptLogprobs
	one := func(p sample.Logprob, rank int) openai.PromptLogprob {
		return openai.PromptLogprob{ID: int32(p.Token), Logprob: finite(p.Value), Rank: rank, Token: s.spelled(p.Token)}
	}
	for i, x := range scores {
		if i == 0 {
			out = append(out, nil)
			continue
		}
		at := openai.PromptTokens{one(x.Chosen, x.Rank)}
		for j, t := range x.Top[:min(len(x.Top), *c.prompts)] {
			if t.Token == x.Chosen.Token {
				at[0].Rank = j + 1
				continue
			}
			at = append(at, one(t, j+1))
		}
		out = append(out, at)
	}
	return out
}
