package server

import (
	"errors"
	"fmt"

	"github.com/sluice-serving/sluice/internal/engine/tokenizer"
	"github.com/sluice-serving/sluice/internal/openai"
	"github.com/sluice-serving/sluice/scheduler"
)

// conversation is the prompt of a chat request.
func (s *Server) conversation(c *call, q *openai.ChatRequest) ([]scheduler.Token, *openai.Error) {
	var e *openai.Error
	conv := tokenizer.Conversation{Messages: make([]tokenizer.Message, len(q.Messages)), Options: q.ChatTemplateKwargs}
	if conv.Tools, c.tools, e = tools(q); e != nil {
		return nil, e
	}
	for i, m := range q.Messages {
		switch m.Role {
		case "system", "developer", "user", "assistant", "tool":
		default:
			return nil, openai.BadRequest(fmt.Sprintf("messages[%d].role", i), "unknown role %q", m.Role)
		}
		conv.Messages[i] = tokenizer.Message{
			Role: m.Role, Content: string(m.Content), Name: m.Name, Reasoning: m.ReasoningContent, ToolCalls: m.ToolCalls, ToolCallID: m.ToolCallID,
		}
	}
	prompt, err := s.engine.Tokenizer().Chat(conv)
	var refused *tokenizer.TemplateError
	switch {
	case errors.Is(err, tokenizer.ErrNoTemplate):
		return nil, openai.BadRequest("messages", "%v: ask /v1/completions", err)
	case errors.As(err, &refused):
		return nil, openai.BadRequest("messages", "%v", err)
	case err != nil:
		return nil, openai.Internal("%v", err)
	}
	return prompt, nil
}
