package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/ardanlabs/jinja"
)

// value reads JSON for a template; objects keep the order of their members.
func value(raw []byte) (jinja.Value, error) {
	var whole json.RawMessage
	if err := json.Unmarshal(raw, &whole); err != nil { // bounds its depth too
		return jinja.Value{}, err
	}
	d := json.NewDecoder(bytes.NewReader(whole))
	d.UseNumber()
	return readValue(d)
}

func readValue(d *json.Decoder) (jinja.Value, error) {
	t, err := d.Token()
	if err != nil {
		return jinja.Value{}, err
	}
	switch t {
	case json.Delim('{'):
		object := jinja.NewDict()
		for d.More() {
			name, err := d.Token()
			if err != nil {
				return jinja.Value{}, err
			}
			v, err := readValue(d)
			if err != nil {
				return jinja.Value{}, err
			}
			object.AsDict().Set(name.(string), v) // the decoder takes only strings for names
		}
		_, err = d.Token()
		return object, err
	case json.Delim('['):
		var list []jinja.Value
		for d.More() {
			v, err := readValue(d)
			if err != nil {
				return jinja.Value{}, err
			}
			list = append(list, v)
		}
		_, err = d.Token()
		return jinja.NewList(list), err
	}
	return jinja.FromGoValue(t), nil
}

// jsonText is the filter tojson of chat templates, which is Python's json.dumps:
// members in their order, all characters as they are, a space after commas and
// colons.
var jsonText = jinja.NewCallable(jsonFilter, func(args []jinja.Value, named map[string]jinja.Value) (jinja.Value, error) {
	w := jsonWriter{comma: ", ", colon: ": "}
	if named == nil {
		named = map[string]jinja.Value{}
	}
	for i, name := range []string{"ensure_ascii", "indent", "separators", "sort_keys"} { // their order without names
		if i+1 < len(args) {
			named[name] = args[i+1]
		}
	}
	if len(args) == 0 {
		return jinja.Value{}, errors.New("tojson: nothing to write")
	}
	if n := named["indent"]; n.IsInt() {
		w.indent, w.indented, w.comma = strings.Repeat(" ", int(min(max(n.AsInt(), 0), 64))), true, ","
	}
	if s := named["separators"]; s.IsList() && s.AsList().Len() == 2 && s.AsList().Get(0).IsString() && s.AsList().Get(1).IsString() {
		w.comma, w.colon = s.AsList().Get(0).AsString(), s.AsList().Get(1).AsString()
	}
	w.sorted = named["sort_keys"].IsTruthy()
	w.ascii = named["ensure_ascii"].IsTruthy()
	if err := w.write(args[0], ""); err != nil {
		return jinja.Value{}, fmt.Errorf("tojson: %w", err)
	}
	return jinja.NewString(w.String()), nil
})

type jsonWriter struct {
	strings.Builder
	comma, colon, indent    string
	indented, sorted, ascii bool
}

func (w *jsonWriter) write(v jinja.Value, margin string) error {
	switch {
	case v.IsNone():
		w.WriteString("null")
	case v.IsBool():
		w.WriteString(strconv.FormatBool(v.AsBool()))
	case v.IsInt():
		w.WriteString(strconv.FormatInt(v.AsInt(), 10))
	case v.IsFloat():
		w.WriteString(pythonFloat(v.AsFloat()))
	case v.IsString():
		w.text(v.AsString())
	case v.IsList():
		return w.items('[', ']', v.AsList().Len(), margin, func(i int, inner string) error {
			return w.write(v.AsList().Get(i), inner)
		})
	case v.IsDict():
		names := v.AsDict().OrderedKeys()
		if w.sorted {
			slices.Sort(names)
		}
		return w.items('{', '}', len(names), margin, func(i int, inner string) error {
			w.text(names[i])
			w.WriteString(w.colon)
			member, _ := v.AsDict().Get(names[i])
			return w.write(member, inner)
		})
	default:
		return errors.New("the value is undefined or a function")
	}
	return nil
}

// items writes n items between brackets.
func (w *jsonWriter) items(open, close byte, n int, margin string, item func(i int, inner string) error) error {
	inner := margin + w.indent
	line := func(margin string) {
		if w.indented && n > 0 {
			w.WriteString("\n" + margin)
		}
	}
	w.WriteByte(open)
	for i := range n {
		if i > 0 {
			w.WriteString(w.comma)
		}
		line(inner)
		if err := item(i, inner); err != nil {
			return err
		}
	}
	line(margin)
	w.WriteByte(close)
	return nil
}

func (w *jsonWriter) text(s string) {
	w.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			w.WriteByte('\\')
			w.WriteRune(r)
		case r >= '\b' && r <= '\r' && r != '\v':
			w.WriteByte('\\')
			w.WriteByte("btn?fr"[r-'\b'])
		case r < ' ' || w.ascii && r > '~' && r < 0x10000:
			fmt.Fprintf(w, `\u%04x`, r)
		case w.ascii && r >= 0x10000:
			fmt.Fprintf(w, `\u%04x\u%04x`, 0xd800+(r-0x10000)>>10, 0xdc00+(r-0x10000)&0x3ff)
		default:
			w.WriteRune(r)
		}
	}
	w.WriteByte('"')
}

// pythonFloat writes a number as Python's repr does: the shortest digits, always
// with a point or an exponent, the latter below 1e-4 and from 1e16 on.
func pythonFloat(f float64) string {
	if size := math.Abs(f); size != 0 && (size < 1e-4 || size >= 1e16) {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}
