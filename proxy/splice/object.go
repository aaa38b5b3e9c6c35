package splice

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Object is a checked JSON object and the place of its members. It refers to
// the text it was parsed from, which must not change while the Object is used.
type Object struct {
	src     []byte
	open    int // offset of the opening brace
	close   int // offset of the closing brace
	members []member
}

type member struct {
	key        string // decoded, when it is written with escapes
	escaped    bool
	start      int // of the key's quote
	close      int // after the key's closing quote
	value, end int
}

// is reports whether the member has that key.
func (o *Object) is(m *member, key string) bool {
	if m.escaped {
		return m.key == key
	}
	return string(o.src[m.start+1:m.close-1]) == key
}

// name is the member's key.
func (o *Object) name(m *member) string {
	if m.escaped {
		return m.key
	}
	return string(o.src[m.start+1 : m.close-1])
}

// same reports whether two members have the same key.
func (o *Object) same(a, b *member) bool {
	if !a.escaped && !b.escaped {
		return string(o.src[a.start+1:a.close-1]) == string(o.src[b.start+1:b.close-1])
	}
	return o.name(a) == o.name(b)
}

// Parse checks that src is one JSON object in UTF-8, at most maxDepth deep and
// without duplicate keys at the top, and notes where its members are. The
// error is a *SyntaxError.
func Parse(src []byte) (*Object, error) {
	o := &Object{}
	if err := o.Reset(src); err != nil {
		return nil, err
	}
	return o, nil
}

// Reset is Parse into an existing Object, whose memory it uses again.
func (o *Object) Reset(src []byte) error {
	if o.members == nil {
		o.members = make([]member, 0, 12)
	}
	o.src, o.members = src, o.members[:0]
	s := scanner{src: src}
	if s.peek() != '{' {
		return s.fail(ErrNotObject)
	}
	o.open = s.pos
	if err := s.members(1, o.member); err != nil {
		return err
	}
	o.close = s.pos - 1
	if s.peek() != 0 || s.pos != len(src) {
		return s.fail(ErrSyntax)
	}
	if s.high&highs == 0 {
		return nil // ASCII throughout
	}
	return validUTF8(src)
}

// member notes a top-level member.
func (o *Object) member(key span, escaped bool, value span) error {
	m := member{escaped: escaped, start: key.start, close: key.end, value: value.start, end: value.end}
	if escaped {
		var err error
		if m.key, err = text(o.src[key.start:key.end], true); err != nil {
			return &SyntaxError{Offset: key.start, Err: ErrSyntax}
		}
	}
	for i := range o.members {
		if o.same(&o.members[i], &m) {
			return &SyntaxError{Offset: key.start, Key: o.name(&m), Err: ErrDuplicate}
		}
	}
	if len(o.members) == maxMembers {
		return &SyntaxError{Offset: key.start, Err: ErrSyntax}
	}
	o.members = append(o.members, m)
	return nil
}

// maxMembers bounds the top-level members of an object, and with them the
// work of looking for duplicates.
const maxMembers = 1024

// text decodes a JSON string with its quotes.
func text(raw []byte, escaped bool) (string, error) {
	if !escaped {
		return string(raw[1 : len(raw)-1]), nil
	}
	var s string
	err := json.Unmarshal(raw, &s)
	return s, err
}

// Source is the text that the object was parsed from.
func (o *Object) Source() []byte { return o.src }

// Len is the number of top-level members.
func (o *Object) Len() int { return len(o.members) }

func (o *Object) find(key string) int {
	for i := range o.members {
		if o.is(&o.members[i], key) {
			return i
		}
	}
	return -1
}

// Raw is the value of a top-level member as it is written; nil when there is none.
func (o *Object) Raw(key string) []byte {
	if i := o.find(key); i >= 0 {
		return o.src[o.members[i].value:o.members[i].end]
	}
	return nil
}

// Has reports whether a top-level member exists.
func (o *Object) Has(key string) bool { return o.find(key) >= 0 }

// String is the value of a top-level member that is a string; false otherwise.
func (o *Object) String(key string) (string, bool) { return StringOf(o.Raw(key)) }

// StringOf decodes a checked JSON value when it is a string.
func StringOf(raw []byte) (string, bool) {
	if len(raw) < 2 || raw[0] != '"' {
		return "", false
	}
	s, err := text(raw, slices.Contains(raw, '\\'))
	return s, err == nil
}

// IsString reports whether raw is a JSON string in UTF-8, and nothing else.
func IsString(raw []byte) bool {
	s := scanner{src: raw}
	if _, err := s.str(); err != nil || s.pos != len(raw) {
		return false
	}
	return s.high&highs == 0 || utf8.Valid(raw)
}

// Members calls visit with each top-level member in order until it gives false.
func (o *Object) Members(visit func(key string, raw []byte) bool) {
	for i := range o.members {
		if !visit(o.name(&o.members[i]), o.src[o.members[i].value:o.members[i].end]) {
			return
		}
	}
}

// Elements calls visit with each element of a checked JSON array until it
// gives false. Anything but an array has no elements.
func Elements(array []byte, visit func(raw []byte) bool) {
	s := scanner{src: array}
	if s.peek() != '[' {
		return
	}
	s.pos++
	if s.peek() == ']' {
		return
	}
	for {
		s.space()
		start := s.pos
		if s.value(0) != nil || !visit(array[start:s.pos]) || s.peek() != ',' {
			return
		}
		s.pos++
	}
}

// Records calls begin with each element of a checked JSON array, and visit with each
// member of those that are objects, as Each does, in one pass. Anything but an array
// has no elements.
func Records(array []byte, begin func(), visit func(key, value []byte)) {
	s := scanner{src: array}
	if s.peek() != '[' {
		return
	}
	s.pos++
	for c := s.peek(); c != ']' && c != 0; c = s.peek() {
		begin()
		var err error
		if c == '{' {
			err = s.members(1, func(k span, _ bool, v span) error {
				visit(array[k.start+1:k.end-1], array[v.start:v.end])
				return nil
			})
		} else {
			err = s.value(0)
		}
		if err != nil || s.peek() != ',' {
			return
		}
		s.pos++
	}
}

// Field is a member of a checked JSON object, found without noting the others;
// of duplicates the first. Nil when there is none or the value is no object.
func Field(object []byte, key string) []byte {
	s := scanner{src: object}
	if s.peek() != '{' {
		return nil
	}
	var found []byte
	_ = s.members(1, func(k span, escaped bool, v span) error {
		raw := object[k.start:k.end]
		if escaped {
			if name, err := text(raw, true); err != nil || name != key {
				return nil
			}
		} else if string(raw[1:len(raw)-1]) != key {
			return nil
		}
		found = object[v.start:v.end]
		return errFound
	})
	return found
}

var errFound = &SyntaxError{Err: ErrSyntax}

// Each calls visit with each member of a checked JSON object: the key as
// written between its quotes, and the value. Anything but an object has none.
func Each(object []byte, visit func(key, value []byte)) {
	s := scanner{src: object}
	if s.peek() != '{' {
		return
	}
	_ = s.members(1, func(k span, _ bool, v span) error {
		visit(object[k.start+1:k.end-1], object[v.start:v.end])
		return nil
	})
}

// Pointer follows a JSON pointer (RFC 6901) through checked JSON and gives the
// value as written; nil when it leads nowhere. The empty pointer is the whole.
func Pointer(value []byte, pointer string) []byte {
	for pointer != "" {
		if pointer[0] != '/' {
			return nil
		}
		step, rest := pointer[1:], ""
		if i := strings.IndexByte(step, '/'); i >= 0 {
			step, rest = step[:i], step[i:]
		}
		step = strings.ReplaceAll(strings.ReplaceAll(step, "~1", "/"), "~0", "~")
		pointer = rest
		s := scanner{src: value}
		switch s.peek() {
		case '{':
			value = Field(value, step)
		case '[':
			n, err := strconv.ParseUint(step, 10, 31)
			if err != nil || strconv.FormatUint(n, 10) != step {
				return nil
			}
			value = element(value, int(n))
		default:
			return nil
		}
		if value == nil {
			return nil
		}
	}
	return value
}

func element(array []byte, n int) (found []byte) {
	Elements(array, func(raw []byte) bool {
		if n == 0 {
			found = raw
		}
		n--
		return n >= 0
	})
	return found
}
