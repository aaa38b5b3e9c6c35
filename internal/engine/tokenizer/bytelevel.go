package tokenizer

import (
	"strings"

	"github.com/dlclark/regexp2/v2"
	"golang.org/x/text/unicode/norm"

	"github.com/sluice-serving/sluice/kvcache"
)

// byteLevel is a byte-level BPE vocabulary, the kind that Qwen and Llama 3 have.
// A text is cut at added tokens, normalised, cut by expressions, and the bytes
// of each cut are merged pair by pair; so every text has tokens, and the bytes of
// its tokens are the text's, as normalised. The steps and their order are those
// of Hugging Face's tokenizers.
type byteLevel struct {
	pieces []string // of each id: its bytes; "" for special tokens and ids without a token
	known  []bool   // of each id: whether it has a token

	ids    map[string]kvcache.Token // tokens of the vocabulary by their bytes
	base   [256]kvcache.Token       // of single bytes
	merges map[uint64]merge         // by both ids
	whole  bool                     // a cut that is a token is not merged from its bytes

	raw, normal   matcher // added tokens that are looked for before and after normalising
	forms         []norm.Form
	cuts          []cut
	before, after []kvcache.Token // around a text that stands alone
}

type merge struct {
	rank uint32
	id   kvcache.Token
}

func pair(left, right kvcache.Token) uint64 { return uint64(uint32(left))<<32 | uint64(uint32(right)) }

// cut divides text at what an expression matches.
type cut struct {
	at   *regexp2.Regexp
	only bool // what lies between matches is dropped
}

// append adds the tokens of text to dst.
func (b *byteLevel) append(dst []kvcache.Token, text string) []kvcache.Token {
	text = strings.ToValidUTF8(text, "\ufffd")
	m := merger{b: b}
	token := func(t kvcache.Token) { dst = append(dst, t) }
	b.raw.split(text, func(plain string) {
		b.normal.split(b.normalize(plain), func(s string) { dst = b.words(dst, &m, s, b.cuts) }, token)
	}, token)
	return dst
}

func (b *byteLevel) normalize(s string) string {
	for _, f := range b.forms {
		s = f.String(s)
	}
	return s
}

// words cuts text by all expressions, one after the other, and merges the cuts.
func (b *byteLevel) words(dst []kvcache.Token, m *merger, text string, cuts []cut) []kvcache.Token {
	if text == "" {
		return dst
	}
	if len(cuts) == 0 {
		return m.word(dst, text)
	}
	c, rest := cuts[0], cuts[1:]
	found, err := c.at.FindAllStringIndex(text, -1)
	if err != nil {
		panic(err) // only a time limit fails, and there is none
	}
	at := 0
	for _, f := range found {
		if f[0] > at && !c.only {
			dst = b.words(dst, m, text[at:f[0]], rest)
		}
		dst = b.words(dst, m, text[f[0]:f[1]], rest)
		at = f[1]
	}
	if !c.only {
		dst = b.words(dst, m, text[at:], rest)
	}
	return dst
}
