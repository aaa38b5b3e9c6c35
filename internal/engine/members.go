package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// memberError says of an error of decoding into v which member it is about, and
// of a misspelled member what was meant: whoever writes JSON into a flag does
// not know the struct behind it.
func memberError(err error, v any) error {
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && wrong.Field != "" {
		return &typeError{fmt.Sprintf("%s is a JSON %s, must be %s", wrong.Field, wrong.Value, kindWord(wrong.Type)), wrong}
	}
	name, ok := strings.CutPrefix(err.Error(), "json: unknown field ") // the library has no type for it
	if !ok {
		return err
	}
	name = strings.Trim(name, `"`)
	known := slices.Sorted(maps.Keys(members(reflect.TypeOf(v), map[string]bool{}, map[reflect.Type]bool{})))
	best, least := "", len(name)/3+1
	for _, k := range known {
		if d := editDistance(name, k); d < least {
			best, least = k, d
		}
	}
	if best != "" {
		return fmt.Errorf("there is no member %q; did you mean %q?", name, best)
	}
	return fmt.Errorf("there is no member %q; there are %s", name, strings.Join(known, ", "))
}

// kindWord names a type as JSON does.
func kindWord(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a string"
	case reflect.Slice, reflect.Array:
		return "an array"
	case reflect.Map, reflect.Struct:
		return "an object"
	case reflect.Pointer:
		return kindWord(t.Elem())
	case reflect.Float32, reflect.Float64:
		return "a number"
	}
	return "a whole number"
}

// members collects the names of a struct's members and of those within them.
func members(t reflect.Type, names map[string]bool, seen map[reflect.Type]bool) map[string]bool {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || seen[t] {
		return names
	}
	seen[t] = true // a connector may hold connectors
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "-" || !f.IsExported() {
			continue
		}
		if name != "" {
			names[name] = true
		}
		members(f.Type, names, seen)
	}
	return names
}

// editDistance is the least number of letters to insert, delete or replace.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		corner := row[0]
		row[0] = i + 1
		for j := range len(b) {
			d := corner
			if a[i] != b[j] {
				d++
			}
			corner = row[j+1]
			row[j+1] = min(d, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// typeError says of a member what it must be; the decoder's error stays its cause.
type typeError struct {
	text  string
	cause *json.UnmarshalTypeError
}

func (e *typeError) Error() string { return e.text }

func (e *typeError) Unwrap() error { return e.cause }
