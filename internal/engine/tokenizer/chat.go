package tokenizer

import (
	"errors"
	"fmt"

	"github.com/ardanlabs/jinja"
)

// ErrNoTemplate: the model has no chat template.
var ErrNoTemplate = errors.New("the model has no chat template")

// TemplateError reports a conversation that the model's chat template refuses.
type TemplateError struct{ Err error }

func (e *TemplateError) Error() string { return "chat template: " + e.Err.Error() }

// Unwrap is what the template says.
func (e *TemplateError) Unwrap() error { return e.Err }

// chatTemplate is a model's own Jinja template, as its tokenizer_config.json or
// chat_template.jinja gives it.
type chatTemplate struct {
	plain, tools *jinja.Template
	variables    map[string]jinja.Value // those of the model: its special tokens
}

// compile takes a template, and another one for conversations with tools, which
// may be empty.
func (c *chatTemplate) compile(plain, tools string) (err error) {
	if c.plain, err = compileTemplate(plain); err != nil || tools == "" {
		return err
	}
	c.tools, err = compileTemplate(tools)
	return err
}

func compileTemplate(source string) (*jinja.Template, error) {
	source, err := prepare(source)
	if err != nil {
		return nil, err
	}
	return jinja.Compile(source)
}

// render is the text of a conversation. A panic of the interpreter is an error
// like any other.
func (c *chatTemplate) render(conv Conversation) (text string, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("the interpreter failed: %v", v)
		}
		if err != nil {
			err = &TemplateError{err}
		}
	}()
	template := c.plain
	variables := map[string]jinja.Value{
		"tools": jinja.None(), "documents": jinja.None(), "add_generation_prompt": jinja.NewBool(true), jsonFilter: jsonText,
	}
	for name, v := range c.variables {
		variables[name] = v
	}
	if len(conv.Tools) > 0 {
		if variables["tools"], err = value(conv.Tools); err != nil {
			return "", fmt.Errorf("tools: %w", err)
		}
		if c.tools != nil {
			template = c.tools
		}
	}
	list := make([]jinja.Value, len(conv.Messages))
	for i, m := range conv.Messages {
		if list[i], err = m.value(); err != nil {
			return "", fmt.Errorf("message %d: %w", i, err)
		}
	}
	variables["messages"] = jinja.NewList(list)
	for name, raw := range conv.Options {
		if variables[name], err = value(raw); err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
	}
	return template.RenderValues(variables)
}

// value is the message as templates expect it: members that it does not have are
// absent, and the arguments of tool calls, which are JSON in a string, are objects.
func (m Message) value() (jinja.Value, error) {
	v := jinja.NewDict()
	d := v.AsDict()
	d.Set("role", jinja.NewString(m.Role))
	d.Set("content", jinja.NewString(m.Content))
	for _, x := range [][2]string{{"name", m.Name}, {"reasoning_content", m.Reasoning}, {"tool_call_id", m.ToolCallID}} {
		if x[1] != "" {
			d.Set(x[0], jinja.NewString(x[1]))
		}
	}
	if len(m.ToolCalls) == 0 {
		return v, nil
	}
	calls, err := value(m.ToolCalls)
	switch {
	case err != nil:
		return v, fmt.Errorf("tool_calls: %w", err)
	case calls.IsNone():
		return v, nil
	case !calls.IsList():
		return v, errors.New("tool_calls is no list")
	}
	for i, call := range calls.AsList().Items {
		var function jinja.Value
		if call.IsDict() {
			function, _ = call.AsDict().Get("function")
		}
		if !function.IsDict() {
			return v, fmt.Errorf("tool_calls[%d] has no function", i)
		}
		arguments, _ := function.AsDict().Get("arguments")
		if !arguments.IsString() {
			continue
		}
		if object, err := value([]byte(arguments.AsString())); err == nil && object.IsDict() {
			function.AsDict().Set("arguments", object)
		}
	}
	if calls.AsList().Len() > 0 {
		d.Set("tool_calls", calls)
	}
	return v, nil
}
