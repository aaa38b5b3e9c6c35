package server

import (
	"net/http"
	"strings"
	"time"

	"github.com/sluice-serving/sluice/internal/engine/sample"
	"github.com/sluice-serving/sluice/internal/openai"
	"github.com/sluice-serving/sluice/scheduler"
)

// gather answers a request without streaming.
func (s *Server) gather(w http.ResponseWriter, r *http.Request, c *call, answers []*answer) {
	texts := make([]strings.Builder, len(answers))
	tokens := make([][]scheduler.Token, len(answers))
	probs := make([][]sample.Logprobs, len(answers))
	calls := make([][]openai.ToolCall, len(answers))
	var failed *openai.Error
	err := pieces(r.Context(), answers, func(p piece) bool {
		texts[p.of.index].WriteString(p.text)
		calls[p.of.index] = append(calls[p.of.index], p.calls...)
		if c.tokenIDs {
			tokens[p.of.index] = append(tokens[p.of.index], p.tokens...)
		}
		probs[p.of.index] = append(probs[p.of.index], p.probs...)
		failed = s.failed(p.of)
		return failed == nil
	})
	switch {
	case err != nil:
		return // the client has gone
	case failed != nil:
		failed.Write(w)
		return
	}
	u := c.account(answers)
	if c.chat {
		out := openai.ChatResponse{ID: c.answerID, Object: openai.ObjectChat, Created: time.Now().Unix(), Model: c.model, Usage: u}
		for i, a := range answers {
			choice := openai.ChatChoice{
				Index: i, Message: openai.AnswerMessage{Role: "assistant", Content: texts[i].String(), ToolCalls: wire(calls[i], false)},
				FinishReason: optional(a.finish), StopReason: a.stop, Logprobs: s.chatLogprobs(probs[i]),
			}
			if c.tokenIDs {
				choice.TokenIDs, out.PromptTokenIDs = ids(tokens[i]), ids(a.prompt)
			}
			out.Choices = append(out.Choices, choice)
		}
		out.PromptLogprobs = s.promptLogprobs(c, answers[0].scores)
		out.KVTransferParams = answers[0].transfer(s.resident(c))
		openai.WriteJSON(w, http.StatusOK, out)
		return
	}
	out := openai.CompletionResponse{ID: c.answerID, Object: openai.ObjectCompletion, Created: time.Now().Unix(), Model: c.model, Usage: u}
	for i, a := range answers {
		prompt, _ := c.prefix(a)
		choice := openai.CompletionChoice{
			Index: i, Text: prompt + texts[i].String(), FinishReason: optional(a.finish), StopReason: a.stop,
			Logprobs: s.completionLogprobs(c, a, probs[i], true), PromptLogprobs: s.promptLogprobs(c, a.scores),
		}
		if c.tokenIDs {
			choice.TokenIDs, choice.PromptTokenIDs = ids(tokens[i]), ids(a.prompt)
		}
		out.Choices = append(out.Choices, choice)
	}
	out.KVTransferParams = answers[0].transfer(s.resident(c))
	openai.WriteJSON(w, http.StatusOK, out)
}

// failed is the error that an answer ends the request with, nil if it does not.
func (s *Server) failed(a *answer) *openai.Error {
	switch {
	case a.err != nil:
		return failure(a.err)
	case a.refused() && s.statusRefusal():
		return openai.Miss(a.refusal.Reason.String(), int(a.refusal.PromptTokens), int(a.refusal.CachedTokens))
	}
	return nil
}

// account sums the usage of all choices. A prompt counts once however many
// answers it gets.
func (c *call) account(answers []*answer) *openai.Usage {
	prompt, output, cached := 0, 0, 0
	for i, a := range answers {
		output += a.seen.output
		if i%c.perPrompt == 0 {
			prompt += c.lengths[i]
			cached += a.seen.cached
		}
	}
	return openai.NewUsage(prompt, output, cached)
}
