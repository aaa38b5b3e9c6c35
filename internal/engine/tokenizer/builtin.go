package tokenizer

import "github.com/sluice-serving/sluice/kvcache"

// Special tokens of the built-in model. They lie above the 256 bytes, so text
// never contains one.
const (
	EndOfText kvcache.Token = 256 // separates documents
	ImStart   kvcache.Token = 257 // opens a chat message
	ImEnd     kvcache.Token = 258 // closes a chat message; the model's end of sequence
)

// EOS ends an answer of the built-in model unless the request ignores it.
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

// Valid reports whether the id belongs to the built-in vocabulary.
func Valid(t kvcache.Token) bool { return t >= 0 && t < Vocab }

// Builtin is the tokenizer of the built-in model: one token per byte, and a few
// special tokens that no text can spell. Its chat template has no tools.
type Builtin struct{}

var _ Tokenizer = Builtin{}

// Encode is the bytes of text, one token each.
func (Builtin) Encode(text string) []kvcache.Token { return Encode(nil, text) }

// Chat renders the messages; it never fails.
func (Builtin) Chat(c Conversation) ([]kvcache.Token, error) { return Render(c.Messages), nil }

// Bytes is the byte that the token is.
func (Builtin) Bytes(t kvcache.Token) string {
	if t < 0 || t > 255 {
		return ""
	}
	return singles[t : t+1]
}

var singles = func() string {
	var b [256]byte
	for i := range b {
		b[i] = byte(i)
	}
	return string(b[:])
}()

// Encode appends the bytes of text to dst, one token of the built-in vocabulary
// each. The spelling of a special token in text is ordinary text.
func Encode(dst []kvcache.Token, text string) []kvcache.Token {
	for i := range len(text) {
		dst = append(dst, kvcache.Token(text[i]))
	}
	return dst
}
