package server

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/sluice-serving/sluice/internal/openai"
)

// takeCalls runs pieces of text through a fresh parser.
func takeCalls(pieces ...string) (string, []openai.FunctionCall) {
	var t toolCalls
	var text strings.Builder
	var found []openai.FunctionCall
	take := func(s string, calls []openai.ToolCall) {
		text.WriteString(s)
		for _, c := range calls {
			found = append(found, c.Function)
		}
	}
	for _, p := range pieces {
		take(t.push(p))
	}
	take(t.flush())
	return text.String(), found
}

func TestToolCalls(t *testing.T) {
	type calls = []openai.FunctionCall
	f := openai.FunctionCall{Name: "f", Arguments: `{"a": 1}`}
	g := openai.FunctionCall{Name: "g", Arguments: `{}`}
	const callF, callG = `<tool_call>` + "\n" + `{"name": "f", "arguments": {"a": 1}}` + "\n" + `</tool_call>`, `<tool_call>{"name":"g"}</tool_call>`
	for _, x := range []struct {
		name, in, text string
		calls          calls
	}{
		{"none", "plain text\n", "plain text\n", nil},
		{"one alone", callF, "", calls{f}},
		{"behind text", "I look.\n" + callF, "I look.", calls{f}},
		{"behind an empty line", "I look.\n\n" + callF, "I look.\n", calls{f}},
		{"two", callF + "\n" + callG + "\n", "", calls{f, g}},
		{"text between and behind", "a" + callF + "\n b \n" + callG + "\n c\n", "ab c\n", calls{f, g}},
		{"arguments as written", `<tool_call>{"arguments": {"x":1.0,  "y":"<\/tool_call>"}, "name": "h"}</tool_call>`, "", calls{{Name: "h", Arguments: `{"x":1.0,  "y":"<\/tool_call>"}`}}},
		{"no JSON", "a\n<tool_call>{f(1)}</tool_call>", "a\n<tool_call>{f(1)}</tool_call>", nil},
		{"no name", `<tool_call>{"arguments": {}}</tool_call> `, `<tool_call>{"arguments": {}}</tool_call> `, nil},
		{"arguments that are no object", `<tool_call>{"name": "f", "arguments": [1]}</tool_call>`, `<tool_call>{"name": "f", "arguments": [1]}</tool_call>`, nil},
		{"a broken one, then a good one", "\n<tool_call>{</tool_call>\n" + callG, "\n<tool_call>{</tool_call>", calls{g}},
		{"a good one, a broken one, then text", callG + "\n<tool_call>{</tool_call>\ntext", "<tool_call>{</tool_call>\ntext", calls{g}},
		{"the closing tag is missing", `x<tool_call>{"name": "g", "arguments": {}}`, "x", calls{g}},
		{"cut off", `x<tool_call>{"name": "g", "argum`, `x<tool_call>{"name": "g", "argum`, nil},
		{"the beginning of a tag", "a <tool_cal", "a <tool_cal", nil},
		{"another tag", "a <tool_calm>", "a <tool_calm>", nil},
		{"a closing tag alone", "a </tool_call> b", "a </tool_call> b", nil},
	} {
		t.Run(x.name, func(t *testing.T) {
			text, found := takeCalls(x.in)
			require.Equal(t, x.text, text)
			require.Equal(t, x.calls, found)
		})
	}
}

// However the text is cut, the outcome is the same, and text before a call is
// handed out as soon as it cannot be the beginning of one.
func TestToolCallsAtEveryCut(t *testing.T) {
	part := rapid.SampledFrom([]string{
		"text", "\n", " ", "<", "<tool", "<tool_call>", "</tool_call>", `{"name": "f", "arguments": {"a": "b"}}`, `{"name": "f"`, "<tool_call>{\"name\": \"g\"}\n</tool_call>", "é",
	})
	rapid.Check(t, func(rt *rapid.T) {
		in := strings.Join(rapid.SliceOfN(part, 0, 10).Draw(rt, "in"), "")
		text, calls := takeCalls(in)
		var pieces []string
		for rest := in; rest != ""; {
			n := rapid.IntRange(1, len(rest)).Draw(rt, "n")
			pieces, rest = append(pieces, rest[:n]), rest[n:]
		}
		gotText, gotCalls := takeCalls(pieces...)
		a, _ := json.Marshal(calls)
		b, _ := json.Marshal(gotCalls)
		if gotText != text || string(a) != string(b) {
			rt.Fatalf("%q at once: %q %s; in pieces %q: %q %s", in, text, a, pieces, gotText, b)
		}
	})
}

func TestToolText(t *testing.T) {
	var x toolCalls
	for _, step := range []struct{ in, out string }{
		{"I", "I"}, {" see\n", " see"}, {"<tool", ""}, {"s>", "\n<tools>"}, {"\n", ""}, {"\n", "\n"}, {"<tool_call>{", ""}, {`"name":"f"}</tool_`, ""}, {"call>\n", ""}, {"so", "so"},
	} {
		out, _ := x.push(step.in)
		require.Equal(t, step.out, out, "%q", step.in)
	}
	require.Equal(t, 1, x.found)
}
