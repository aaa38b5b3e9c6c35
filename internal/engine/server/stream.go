package server

import (
	"net/http"
	"time"

	"github.com/sluice-serving/sluice/internal/engine"
	"github.com/sluice-serving/sluice/internal/openai"
)

// relay answers a request as an event stream. Nothing is sent before the first
// output of an answer, so that a refusal still has its status.
func (s *Server) relay(w http.ResponseWriter, r *http.Request, c *call, answers []*answer) {
	out := openai.NewStream(w)
	prompts := c.promptLists(answers)
	begun := make([]bool, len(answers))
	created := time.Now().Unix()
	var failed *openai.Error
	err := pieces(r.Context(), answers, func(p piece) bool {
		if failed = s.failed(p.of); failed != nil {
			return false
		}
		_, echoed := c.prefix(p.of)
		if (!echoed || begun[p.of.index]) && p.text == "" && len(p.calls) == 0 && !p.of.done && !(c.tokenIDs && len(p.tokens) > 0) && len(p.probs) == 0 {
			return true // nothing to show yet
		}
		var usage *openai.Usage
		if c.everyUsage {
			usage = c.account(answers)
		}
		var events []any
		if c.chat {
			events = s.chatChunks(c, p, created, usage, !begun[p.of.index])
		} else {
			events = []any{s.completionChunk(c, p, created, usage, !begun[p.of.index])}
		}
		for i, ev := range events {
			var prompt []byte
			if i == 0 && !begun[p.of.index] && prompts != nil {
				prompt = prompts[p.of.index/c.perPrompt]
			}
			if out.SendPrompt(ev, prompt) != nil {
				return false // the client has gone; its context ends too
			}
		}
		begun[p.of.index] = true
		return true
	})
	switch {
	case err != nil || r.Context().Err() != nil:
		return
	case failed != nil && !out.Begun():
		failed.Write(w)
		return
	case failed != nil:
		_ = out.Fail(failed) // a client that has gone needs no error
		return
	}
	if c.usage {
		if err := out.Send(c.usageChunk(answers, created)); err != nil {
			return
		}
	}
	_ = out.Done()
}

// promptLists are the prompts' token ids in JSON, where they are asked for. They are made
// while the prompts are computed, so that no first token waits for them.
func (c *call) promptLists(answers []*answer) (lists [][]byte) {
	if !c.tokenIDs {
		return nil
	}
	for i := 0; i < len(answers); i += c.perPrompt {
		prompt := answers[i].prompt
		lists = append(lists, openai.AppendIDs(make([]byte, 0, 8*len(prompt)+2), prompt))
	}
	return lists
}

func (s *Server) completionChunk(c *call, p piece, created int64, usage *openai.Usage, first bool) any {
	choice := openai.CompletionChoice{Index: p.of.index, Text: p.text, Logprobs: s.completionLogprobs(c, p.of, p.probs, first)}
	if first {
		prompt, _ := c.prefix(p.of)
		choice.Text = prompt + p.text
	}
	if c.tokenIDs {
		choice.TokenIDs = ids(p.tokens)
		if first {
			choice.PromptTokenIDs = openai.PromptToCome
		}
	}
	chunk := openai.CompletionResponse{ID: c.answerID, Object: openai.ObjectCompletion, Created: created, Model: c.model, Usage: usage}
	if p.of.done {
		choice.FinishReason, choice.StopReason = optional(p.of.finish), p.of.stop
		chunk.KVTransferParams = p.of.transfer(s.resident(c))
	}
	chunk.Choices = []openai.CompletionChoice{choice}
	return chunk
}

// chatChunks are the events of one piece: before the first one the event that
// opens the message.
func (s *Server) chatChunks(c *call, p piece, created int64, usage *openai.Usage, first bool) []any {
	chunk := func(choice openai.ChatChunkChoice) openai.ChatChunk {
		choice.Index = p.of.index
		return openai.ChatChunk{
			ID: c.answerID, Object: openai.ObjectChatChunk, Created: created, Model: c.model, Usage: usage,
			Choices: []openai.ChatChunkChoice{choice},
		}
	}
	var events []any
	if first {
		empty := ""
		open := chunk(openai.ChatChunkChoice{Delta: openai.Delta{Role: "assistant", Content: &empty}})
		if c.tokenIDs {
			open.PromptTokenIDs = openai.PromptToCome
		}
		events = append(events, open)
	}
	choice := openai.ChatChunkChoice{Delta: openai.Delta{Content: &p.text, ToolCalls: wire(p.calls, true)}, Logprobs: s.chatLogprobs(p.probs)}
	if p.text == "" && len(p.calls) > 0 {
		choice.Delta.Content = nil
	}
	if c.tokenIDs {
		choice.TokenIDs = ids(p.tokens)
	}
	if p.of.done {
		choice.FinishReason, choice.StopReason = optional(p.of.finish), p.of.stop
	}
	body := chunk(choice)
	if p.of.done {
		body.KVTransferParams = p.of.transfer(s.resident(c))
	}
	return append(events, body)
}

// usageChunk is the last event of a stream that asked for usage: no choices.
func (c *call) usageChunk(answers []*answer, created int64) any {
	u := c.account(answers)
	if c.chat {
		return openai.ChatChunk{
			ID: c.answerID, Object: openai.ObjectChatChunk, Created: created, Model: c.model, Choices: []openai.ChatChunkChoice{}, Usage: u,
		}
	}
	return openai.CompletionResponse{
		ID: c.answerID, Object: openai.ObjectCompletion, Created: created, Model: c.model, Choices: []openai.CompletionChoice{}, Usage: u,
	}
}

// resident reports whether the answer says how much of the session stays here:
// to whoever names sessions, except on a prefiller, whose blocks go.
func (s *Server) resident(c *call) bool {
	return c.session && s.engine.Config().KVTransfer.Role != engine.RoleProducer
}

func (s *Server) statusRefusal() bool {
	return s.engine.Config().AppendRefusal == engine.RefuseStatus
}
