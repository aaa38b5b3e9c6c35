// Package splice edits JSON objects at byte offsets. A body is checked once,
// the offsets of its top-level members are noted, and members are replaced,
// added or removed by copying the bytes around them, so that unknown members,
// the spelling of numbers and the order of keys survive, and a long prompt is
// never decoded.
package splice

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"unicode/utf8"
)

// maxDepth is the deepest nesting of arrays and objects that Parse accepts.
const maxDepth = 256

// Errors that SyntaxError wraps.
var (
	ErrSyntax    = errors.New("malformed JSON")
	ErrNotObject = errors.New("the body is not a JSON object")
	ErrDuplicate = errors.New("duplicate key")
	ErrDepth     = errors.New("nesting is too deep")
	ErrUTF8      = errors.New("the body is not valid UTF-8")
)

// SyntaxError says where a body is at fault.
type SyntaxError struct {
	Offset int // byte
	Key    string
	Err    error
}

func (e *SyntaxError) Error() string {
	if e.Key != "" {
		return fmt.Sprintf("%v %q at byte %d", e.Err, e.Key, e.Offset)
	}
	return fmt.Sprintf("%v at byte %d", e.Err, e.Offset)
}

func (e *SyntaxError) Unwrap() error { return e.Err }

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// scanner walks one JSON text without building anything.
type scanner struct {
	src  []byte
	pos  int
	high uint64 // the bits of all string bytes, eight to a word
}

func (s *scanner) fail(err error) error { return &SyntaxError{Offset: s.pos, Err: err} }

func (s *scanner) space() {
	for s.pos < len(s.src) {
		switch s.src[s.pos] {
		case ' ', '\t', '\n', '\r':
			s.pos++
		default:
			return
		}
	}
}

// peek skips white space and gives the next byte, 0 at the end.
func (s *scanner) peek() byte {
	s.space()
	if s.pos == len(s.src) {
		return 0
	}
	return s.src[s.pos]
}

// str reads a string; escaped reports whether it holds a backslash. It looks at
// many bytes at a time for what ends an ordinary stretch: a quote, a backslash
// or a control character.
func (s *scanner) str() (escaped bool, err error) {
	src, i := s.src, s.pos
	if i == len(src) || src[i] != '"' {
		return false, s.fail(ErrSyntax)
	}
	high := s.high
	for i++; ; {
		for len(src)-i >= 32 {
			b := (*[32]byte)(src[i:])
			x0, x1 := binary.LittleEndian.Uint64(b[0:8]), binary.LittleEndian.Uint64(b[8:16])
			x2, x3 := binary.LittleEndian.Uint64(b[16:24]), binary.LittleEndian.Uint64(b[24:32])
			if (special(x0)|special(x1)|special(x2)|special(x3))&highs != 0 {
				break
			}
			high |= x0 | x1 | x2 | x3
			i += 32
		}
		for len(src)-i >= 8 {
			x := binary.LittleEndian.Uint64(src[i:])
			high |= x
			if m := special(x) & highs; m != 0 {
				i += bits.TrailingZeros64(m) / 8
				break
			}
			i += 8
		}
		if i == len(src) {
			s.pos = i
			return false, s.fail(ErrSyntax)
		}
		switch c := src[i]; {
		case c == '"':
			s.pos, s.high = i+1, high
			return escaped, nil
		case c == '\\':
			escaped = true
			if i+1 < len(src) && shortEscape[src[i+1]] {
				i += 2
				continue
			}
			if i, err = unicodeEscape(src, i); err != nil {
				return false, err
			}
		case c < 0x20:
			s.pos = i
			return false, s.fail(ErrSyntax)
		default: // one of the last seven bytes
			high |= uint64(c)
			i++
		}
	}
}

// special has the high bit of the first byte of x set that is a quote, a
// backslash or a control character, and of none before it.
func special(x uint64) uint64 {
	low := x ^ ones*2      // a quote becomes a space, control characters stay below it
	slash := x ^ ones*'\\' // a backslash becomes zero
	return ((low - ones*0x21) &^ low) | ((slash - ones) &^ slash)
}

// shortEscape holds the characters that may follow a backslash alone.
var shortEscape = [256]bool{'"': true, '\\': true, '/': true, 'b': true, 'f': true, 'n': true, 'r': true, 't': true}

// unicodeEscape reads a backslash, u and four hex digits and gives the place after them.
func unicodeEscape(src []byte, i int) (int, error) {
	if i+6 > len(src) || src[i+1] != 'u' {
		return 0, &SyntaxError{Offset: i, Err: ErrSyntax}
	}
	for _, c := range src[i+2 : i+6] {
		if (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'f') {
			return 0, &SyntaxError{Offset: i, Err: ErrSyntax}
		}
	}
	return i + 6, nil
}

func (s *scanner) digits() bool {
	start := s.pos
	for s.pos < len(s.src) && s.src[s.pos]-'0' <= 9 {
		s.pos++
	}
	return s.pos > start
}

func (s *scanner) number() error {
	if s.src[s.pos] == '-' {
		s.pos++
	}
	zero := s.pos < len(s.src) && s.src[s.pos] == '0'
	start := s.pos
	if !s.digits() || (zero && s.pos-start > 1) {
		return s.fail(ErrSyntax)
	}
	if s.pos < len(s.src) && s.src[s.pos] == '.' {
		s.pos++
		if !s.digits() {
			return s.fail(ErrSyntax)
		}
	}
	if s.pos < len(s.src) && s.src[s.pos]|0x20 == 'e' {
		s.pos++
		if s.pos < len(s.src) && (s.src[s.pos] == '+' || s.src[s.pos] == '-') {
			s.pos++
		}
		if !s.digits() {
			return s.fail(ErrSyntax)
		}
	}
	return nil
}

func (s *scanner) word(w string) error {
	if len(s.src)-s.pos < len(w) || string(s.src[s.pos:s.pos+len(w)]) != w {
		return s.fail(ErrSyntax)
	}
	s.pos += len(w)
	return nil
}

// value reads one value whose first byte is next; depth is the nesting it stands in.
func (s *scanner) value(depth int) error {
	switch c := s.peek(); c {
	case '"':
		_, err := s.str()
		return err
	case '{':
		return s.members(depth+1, nil)
	case '[':
		return s.array(depth + 1)
	case 't':
		return s.word("true")
	case 'f':
		return s.word("false")
	case 'n':
		return s.word("null")
	default:
		if c == '-' || c-'0' <= 9 {
			return s.number()
		}
		return s.fail(ErrSyntax)
	}
}

func (s *scanner) array(depth int) error {
	if depth > maxDepth {
		return s.fail(ErrDepth)
	}
	s.pos++
	if s.peek() == ']' {
		s.pos++
		return nil
	}
	for {
		s.integers()
		if err := s.value(depth); err != nil {
			return err
		}
		switch s.peek() {
		case ',':
			s.pos++
		case ']':
			s.pos++
			return nil
		default:
			return s.fail(ErrSyntax)
		}
	}
}

// integers skips elements of an array that are integers without a sign, each with
// a comma right behind it, as lists of token ids have them: eight bytes at a time.
// It stops at the start of the first other element, and of the last one.
func (s *scanner) integers() {
	src, i := s.src, s.pos
	for {
		start := i
		for len(src)-i >= 8 {
			x := binary.LittleEndian.Uint64(src[i:]) ^ ones*'0' // digits become 0 to 9
			if m := (x + ones*(0x80-10) | x) & highs; m != 0 {
				i += bits.TrailingZeros64(m) / 8
				break
			}
			i += 8
		}
		for len(src)-i < 8 && i < len(src) && src[i]-'0' <= 9 {
			i++
		}
		if i == start || i == len(src) || src[i] != ',' || (src[start] == '0' && i-start > 1) {
			s.pos = start
			return
		}
		i++
	}
}

// members reads an object whose opening brace is next. When visit is not nil
// it is called for each member with the offsets of the key in its quotes and of
// the value; its error ends the reading.
func (s *scanner) members(depth int, visit func(key span, escaped bool, value span) error) error {
	if depth > maxDepth {
		return s.fail(ErrDepth)
	}
	s.pos++
	if s.peek() == '}' {
		s.pos++
		return nil
	}
	for {
		s.space()
		key := span{start: s.pos}
		escaped, err := s.str()
		if err != nil {
			return err
		}
		key.end = s.pos
		if s.peek() != ':' {
			return s.fail(ErrSyntax)
		}
		s.pos++
		s.space()
		value := span{start: s.pos}
		if err := s.value(depth); err != nil {
			return err
		}
		value.end = s.pos
		if visit != nil {
			if err := visit(key, escaped, value); err != nil {
				return err
			}
		}
		switch s.peek() {
		case ',':
			s.pos++
		case '}':
			s.pos++
			return nil
		default:
			return s.fail(ErrSyntax)
		}
	}
}

// span is a range of bytes: start included, end not.
type span struct{ start, end int }

func validUTF8(src []byte) error {
	if utf8.Valid(src) {
		return nil
	}
	at := 0
	for at < len(src) {
		r, n := utf8.DecodeRune(src[at:])
		if r == utf8.RuneError && n == 1 {
			break
		}
		at += n
	}
	return &SyntaxError{Offset: at, Err: ErrUTF8}
}
