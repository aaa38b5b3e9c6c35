package openai

import (
	"bytes"
	"encoding/json"
)

// FinishToolCalls is the finish_reason of an answer that ended with tool calls.
const FinishToolCalls = "tool_calls"

// ToolCall is a function that the model wants called.
type ToolCall struct {
	Index    *int         `json:"index,omitempty"` // among the answer's calls; in a delta only
	ID       string       `json:"id"`
	Type     string       `json:"type"` // "function"
	Function FunctionCall `json:"function"`
}

// FunctionCall is the function's name and its arguments, a JSON object as the
// model wrote it.
type FunctionCall struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// ToolChoice says which of its tools a request lets the model call.
type ToolChoice string

// The values of tool_choice that are strings. ToolsNamed stands for an object
// that names a function.
const (
	ToolsAuto     ToolChoice = "auto" // the default of a request with tools
	ToolsNone     ToolChoice = "none" // the default of one without
	ToolsRequired ToolChoice = "required"
	ToolsNamed    ToolChoice = "function"
)

// ToolList checks tools and tool_choice and returns them; no tools is nil. Only
// functions are tools.
func (r *ChatRequest) ToolList() (json.RawMessage, ToolChoice, *Error) {
	choice := ToolsNone
	list := r.Tools
	if absent(list) {
		list = nil
	} else {
		var tools []struct {
			Type     string `json:"type"`
			Function struct {
				Name string `json:"name"`
			} `json:"function"`
		}
		if err := json.Unmarshal(list, &tools); err != nil {
			return nil, "", BadRequest("tools", "tools must be a list of functions: %v", err)
		}
		for i, t := range tools {
			if t.Type != "function" || t.Function.Name == "" {
				return nil, "", BadRequest("tools", "tools[%d] is no function with a name", i)
			}
		}
		if len(tools) == 0 {
			list = nil
		} else {
			choice = ToolsAuto
		}
	}
	if absent(r.ToolChoice) {
		return list, choice, nil
	}
	var named struct {
		Function struct {
			Name string `json:"name"`
		} `json:"function"`
	}
	switch {
	case json.Unmarshal(r.ToolChoice, &choice) == nil:
	case json.Unmarshal(r.ToolChoice, &named) == nil && named.Function.Name != "":
		choice = ToolsNamed
	default:
		choice = ""
	}
	switch choice {
	case ToolsNone:
	case ToolsAuto, ToolsRequired, ToolsNamed:
		if list == nil {
			return nil, "", BadRequest("tool_choice", "tool_choice is given without tools")
		}
	default:
		return nil, "", BadRequest("tool_choice", "tool_choice is %s, must be auto, none, required or a function", r.ToolChoice)
	}
	return list, choice, nil
}

func absent(raw json.RawMessage) bool {
	return len(raw) == 0 || bytes.Equal(raw, []byte("null"))
}
