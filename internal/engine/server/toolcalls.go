package server

import (
	"bytes"
	"encoding/json"
	"strings"
	"unicode"

	"github.com/sluice-serving/sluice/internal/openai"
)

// The tags around a tool call in the form of Hermes and Qwen.
const (
	callOpen  = "<tool_call>"
	callClose = "</tool_call>"
)

// toolCalls takes the tool calls out of the text of an answer. A call is
//
//	<tool_call>{"name": …, "arguments": {…}}</tool_call>
//
// with white space as the model likes. It is handed out when it is complete, so
// what turns out to be no such JSON can still be text as the model wrote it, tags
// and all. One line end before a call, and white space behind it, belong to the
// form and to no text; chat templates write them too, so the next turn's prompt
// begins with the tokens of this answer.
type toolCalls struct {
	held   []byte // text that is not decided, or a call from its tag on
	open   int    // length of the tag that held begins with, and of the line end before it; 0: held is no call
	looked int    // bytes of held without a closing tag
	found  int
	after  bool // nothing but white space has come since a call
}

// push adds text and returns what of it is text, and the calls that it completes.
func (t *toolCalls) push(text string) (string, []openai.ToolCall) {
	t.held = append(t.held, text...)
	var out strings.Builder
	var calls []openai.ToolCall
	for {
		if t.open == 0 {
			if !t.outside(&out) {
				return out.String(), calls
			}
			continue
		}
		at := bytes.Index(t.held[t.looked:], []byte(callClose))
		if at < 0 {
			t.looked = max(t.open, len(t.held)-len(callClose)+1)
			return out.String(), calls
		}
		at += t.looked
		if call, ok := t.read(t.held[t.open:at]); ok {
			calls = append(calls, call)
			t.after = true
		} else {
			out.Write(t.held[:at+len(callClose)])
			t.after = false
		}
		t.drop(at + len(callClose))
		t.open = 0
	}
}

// outside hands out the text before the next call, and reports whether there is
// one. What may be the beginning of a tag stays.
func (t *toolCalls) outside(out *strings.Builder) bool {
	if t.after {
		t.held = bytes.TrimLeftFunc(t.held, unicode.IsSpace)
	}
	at := bytes.Index(t.held, []byte(callOpen))
	if at >= 0 {
		end := at + len(callOpen)
		at = len(bytes.TrimSuffix(t.held[:at], []byte("\n")))
		t.open, t.looked = end-at, end-at
	} else {
		at = len(t.held) - undecidedTag(t.held)
	}
	out.Write(t.held[:at])
	t.after = t.after && at == 0
	t.drop(at)
	return t.open > 0
}

// undecidedTag is the length of the longest end of text that may begin a call,
// with the line end before it.
func undecidedTag(text []byte) int {
	const begin = "\n" + callOpen
	for n := min(len(begin)-1, len(text)); n > 0; n-- {
		tail := string(text[len(text)-n:])
		if strings.HasPrefix(begin, tail) || strings.HasPrefix(callOpen, tail) {
			return n
		}
	}
	return 0
}

// flush returns what is held at the end of the answer: a call whose closing tag
// is missing counts if its JSON is whole.
func (t *toolCalls) flush() (string, []openai.ToolCall) {
	held := t.held
	t.held = nil
	if t.open > 0 {
		if call, ok := t.read(held[t.open:]); ok {
			return "", []openai.ToolCall{call}
		}
	}
	return string(held), nil
}

func (t *toolCalls) drop(n int) { t.held = append(t.held[:0], t.held[n:]...) }

// read is the call that stands between tags; false if there is none.
func (t *toolCalls) read(body []byte) (openai.ToolCall, bool) {
	var call struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	}
	if json.Unmarshal(body, &call) != nil || call.Name == "" {
		return openai.ToolCall{}, false
	}
	arguments := call.Arguments
	if len(arguments) == 0 {
		arguments = json.RawMessage("{}")
	}
	if arguments[0] != '{' {
		return openai.ToolCall{}, false
	}
	index := t.found
	t.found++
	return openai.ToolCall{
		Index: &index, ID: "call_" + newID(), Type: "function",
		Function: openai.FunctionCall{Name: call.Name, Arguments: string(arguments)},
	}, true
}

// tools are the functions that the prompt of a request shows, and whether calls
// are looked for in its answers. A choice that only constrained decoding could
// keep is refused.
func tools(q *openai.ChatRequest) (list json.RawMessage, calls bool, e *openai.Error) {
	list, choice, e := q.ToolList()
	switch {
	case e != nil:
		return nil, false, e
	case choice == openai.ToolsRequired || choice == openai.ToolsNamed:
		return nil, false, openai.BadRequest("tool_choice", "tool_choice %s is not supported: the model decides whether it calls (auto or none)", q.ToolChoice)
	}
	return list, choice == openai.ToolsAuto, nil
}

// wire is the calls as an answer's member, nil if there are none. Only deltas
// number them.
func wire(calls []openai.ToolCall, numbered bool) json.RawMessage {
	if len(calls) == 0 {
		return nil
	}
	out := append([]openai.ToolCall(nil), calls...)
	if !numbered {
		for i := range out {
			out[i].Index = nil
		}
	}
	raw, _ := json.Marshal(out) // strings and numbers always encode
	return raw
}
