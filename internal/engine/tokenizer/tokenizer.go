// Package tokenizer turns text into tokens and back for the built-in model:
// one token per byte, and a few special tokens that no text can spell. It also
// holds the chat template.
package tokenizer

import (
	"unicode/utf8"

	"github.com/sluice-serving/sluice/kvcache"
)

// Special tokens. They lie above the 256 bytes, so text never contains one.
const (
	EndOfText kvcache.Token = 256 // separates documents
	ImStart   kvcache.Token = 257 // opens a chat message
	ImEnd     kvcache.Token = 258 // closes a chat message; the model's end of sequence
)

// EOS ends an answer unless the request ignores it.
const EOS = ImEnd

// Vocab counts the ids of the built-in vocabulary; those above the special
// tokens are spare.
const Vocab = 272

// Speakable reports whether the built-in model's answers may contain the token:
// printable ASCII and the end of sequence. Answers therefore survive the way
// through JSON text and back into tokens unchanged.
func Speakable(token int) bool {
	return token >= ' ' && token <= '~' || token == int(EOS)
}

// Valid reports whether the id belongs to the vocabulary.
func Valid(t kvcache.Token) bool { return t >= 0 && t < Vocab }

// Encode appends the bytes of text to dst, one token each. The spelling of a
// special token in text is ordinary text.
func Encode(dst []kvcache.Token, text string) []kvcache.Token {
	for i := range len(text) {
		dst = append(dst, kvcache.Token(text[i]))
	}
	return dst
}

// Decode is the text of a whole sequence; special tokens have none, and bytes
// that are no UTF-8 become U+FFFD.
func Decode(tokens []kvcache.Token) string {
	var d Decoder
	out := ""
	for _, t := range tokens {
		out += d.Push(t)
	}
	return out + d.Flush()
}

// Decoder turns tokens into text one at a time and never splits a character:
// the bytes of an unfinished one are held until it is complete.
type Decoder struct{ held []byte }

// Push adds a token and returns the text that it completes, possibly none.
func (d *Decoder) Push(t kvcache.Token) string {
	if t < 0 || t > 255 {
		return d.Flush()
	}
	d.held = append(d.held, byte(t))
	n := 0
	for n < len(d.held) && utf8.FullRune(d.held[n:]) {
		_, size := utf8.DecodeRune(d.held[n:])
		n += size
	}
	return d.take(n)
}

// Flush returns what is still held; an unfinished character becomes U+FFFD.
func (d *Decoder) Flush() string { return d.take(len(d.held)) }

func (d *Decoder) take(n int) string {
	if n == 0 {
		return ""
	}
	out := make([]byte, 0, n)
	for b := d.held[:n]; len(b) > 0; {
		r, size := utf8.DecodeRune(b)
		out = utf8.AppendRune(out, r)
		b = b[size:]
	}
	d.held = append(d.held[:0], d.held[n:]...)
	return string(out)
}
