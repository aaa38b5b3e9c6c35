package tokenizer

import (
	"strings"
	"unicode/utf8"

	"github.com/sluice-serving/sluice/kvcache"
)

// Decode is the text of a whole answer.
func Decode(of Tokenizer, tokens []kvcache.Token) string {
	d := Decoder{Of: of}
	var out strings.Builder
	for _, t := range tokens {
		out.WriteString(d.Push(t))
	}
	out.WriteString(d.Flush())
	return out.String()
}

// Decoder turns tokens into text one at a time and never splits a character:
// the bytes of an unfinished one are held until it is complete, at most three of
// them, so a token costs what its own bytes cost. Bytes that are no UTF-8 become
// U+FFFD, one for each longest beginning of a character (Unicode 3.9, practice
// of substituting maximal subparts), as Hugging Face decodes them.
type Decoder struct {
	Of   Tokenizer // nil: Builtin
	held []byte
}

// Push adds a token and returns the text that it completes, possibly none.
func (d *Decoder) Push(t kvcache.Token) string {
	of := d.Of
	if of == nil {
		of = Builtin{}
	}
	d.held = append(d.held, of.Bytes(t)...)
	n := 0
	for n < len(d.held) && utf8.FullRune(d.held[n:]) {
		n += runeOrSubpart(d.held[n:])
	}
	return d.take(n)
}

// Flush returns what is still held; an unfinished character becomes U+FFFD.
func (d *Decoder) Flush() string { return d.take(len(d.held)) }

// take removes the first n bytes and returns them as text.
func (d *Decoder) take(n int) string {
	if n == 0 {
		return ""
	}
	head := d.held[:n]
	var text string
	if utf8.Valid(head) {
		text = string(head)
	} else {
		out := make([]byte, 0, n+2*utf8.UTFMax)
		for len(head) > 0 {
			r, size := utf8.DecodeRune(head)
			if r == utf8.RuneError {
				size = runeOrSubpart(head)
			}
			out = utf8.AppendRune(out, r)
			head = head[size:]
		}
		text = string(out)
	}
	d.held = append(d.held[:0], d.held[n:]...)
	return text
}

// runeOrSubpart is the length of the character that b starts with, or of the
// longest beginning of one, at least a byte.
func runeOrSubpart(b []byte) int {
	if r, size := utf8.DecodeRune(b); r != utf8.RuneError || size > 1 {
		return size
	}
	n := 1
	for n < len(b) && !utf8.FullRune(b[:n+1]) {
		n++
	}
	return n
}
