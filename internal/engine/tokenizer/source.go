package tokenizer

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
)

// jsonFilter is the name under which a template's tojson runs.
const jsonFilter = "json_text"

// prepare rewrites a Jinja template for the interpreter so that only its
// expressions and statements are left to it: white space around tags is decided
// here, by Jinja's rules with trim_blocks and lstrip_blocks set, as for all chat
// templates; text becomes string expressions; and the filter tojson gets the name
// of ours, which writes JSON as Python does.
func prepare(source string) (string, error) {
	source = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(source)
	source = strings.TrimSuffix(source, "\n")
	var out strings.Builder
	var last tag // before the text at hand
	lineStart := true
	for source != "" {
		open := tagStart(source)
		text := source[:open]
		source = source[open:]
		var next tag
		if source != "" {
			var err error
			if next, source, err = readTag(source); err != nil {
				return "", err
			}
		}
		if text = trimText(text, last, next, &lineStart); text != "" {
			fmt.Fprintf(&out, "{{ %s }}", literal(text))
		}
		switch next.kind {
		case '%':
			if strings.TrimSpace(next.body) == "raw" {
				return "", errors.New("the statement raw is not supported")
			}
			fmt.Fprintf(&out, "{%% %s %%}", rewrite(next.body))
		case '{':
			fmt.Fprintf(&out, "{{ %s }}", rewrite(next.body))
		}
		last = next
	}
	return out.String(), nil
}

// tag is one {% %}, {{ }} or {# #}.
type tag struct {
	kind        byte   // '%', '{', '#'; 0: none
	body        string // without the marks of white space
	left, right byte   // '-' or '+' if it has such a mark, else 0
}

// tagStart is where the first tag of a template begins, its length if it has none.
func tagStart(s string) int {
	for i := 0; i+1 < len(s); i++ {
		if s[i] == '{' && strings.IndexByte("%{#", s[i+1]) >= 0 {
			return i
		}
	}
	return len(s)
}

// readTag reads the tag that s begins with.
func readTag(s string) (t tag, rest string, err error) {
	t.kind = s[1]
	closing := map[byte]string{'%': "%}", '{': "}}", '#': "#}"}[t.kind]
	end, depth := -1, 0
	for i := 2; i < len(s) && end < 0; i++ {
		switch c := s[i]; {
		case depth <= 0 && strings.HasPrefix(s[i:], closing):
			end = i
		case t.kind == '#':
		case c == '"' || c == '\'':
			i += stringLength(s[i:]) - 1
		case strings.IndexByte("([{", c) >= 0:
			depth++
		case strings.IndexByte(")]}", c) >= 0:
			depth--
		}
	}
	if end < 0 {
		return t, "", fmt.Errorf("a tag that begins with %.20q does not end", s)
	}
	t.body, rest = s[2:end], s[end+len(closing):]
	if t.body != "" && (t.body[0] == '-' || t.body[0] == '+') {
		t.left, t.body = t.body[0], t.body[1:]
	}
	if n := len(t.body); n > 0 && (t.body[n-1] == '-' || t.body[n-1] == '+' && t.kind != '{') {
		t.right, t.body = t.body[n-1], t.body[:n-1]
	}
	return t, rest, nil
}

// stringLength is the length of the string literal that s begins with.
func stringLength(s string) int {
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case s[0]:
			return i + 1
		}
	}
	return len(s)
}

// trimText takes from the text between two tags the white space that belongs to
// them. lineStart reports whether the text stands at the start of a line.
func trimText(text string, last, next tag, lineStart *bool) string {
	switch {
	case last.right == '-':
		trimmed := strings.TrimLeftFunc(text, unicode.IsSpace)
		*lineStart = strings.HasSuffix(text[:len(text)-len(trimmed)], "\n")
		text = trimmed
	case last.right == 0 && (last.kind == '%' || last.kind == '#') && strings.HasPrefix(text, "\n"):
		text, *lineStart = text[1:], true
	}
	switch {
	case next.left == '-':
		text = strings.TrimRightFunc(text, unicode.IsSpace)
	case next.left == 0 && (next.kind == '%' || next.kind == '#'):
		line := strings.LastIndexByte(text, '\n') + 1
		if (line > 0 || *lineStart) && strings.TrimSpace(text[line:]) == "" {
			text = text[:line]
		}
	}
	*lineStart = false
	return text
}

// literal is a string expression. The interpreter takes every character but a
// backslash and the quote as it is.
func literal(text string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text) + `"`
}

// rewrite resolves the escapes of the strings in a tag, gives the name tojson the
// name of our filter, and sets closing braces apart, which the interpreter would
// take for the tag's end.
func rewrite(body string) string {
	const name = "tojson"
	var out strings.Builder
	for i := 0; i < len(body); {
		switch {
		case body[i] == '"' || body[i] == '\'':
			n := stringLength(body[i:])
			out.WriteString(literal(unescape(body[i+1 : i+n-1])))
			i += n
		case strings.HasPrefix(body[i:], name) && (i == 0 || !nameByte(body[i-1])) && (i+len(name) == len(body) || !nameByte(body[i+len(name)])):
			out.WriteString(jsonFilter)
			i += len(name)
		case body[i] == '}':
			out.WriteString("} ")
			i++
		default:
			out.WriteByte(body[i])
			i++
		}
	}
	return out.String()
}

// unescape is the text of a string literal's inside; a backslash before another
// character than Python's escapes stays.
func unescape(s string) string {
	var out strings.Builder
	for s != "" {
		if len(s) > 1 && s[0] == '\\' && (s[1] == '"' || s[1] == '\'') {
			s = s[1:]
		} else if r, _, tail, err := strconv.UnquoteChar(s, 0); err == nil {
			out.WriteRune(r)
			s = tail
			continue
		}
		out.WriteByte(s[0])
		s = s[1:]
	}
	return out.String()
}

func nameByte(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z'
}
