package tokenizer

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/sluice-serving/sluice/kvcache"
)

// added is a token outside of the merges, found by its spelling.
type added struct {
	ID         kvcache.Token `json:"id"`
	Content    string        `json:"content"`
	SingleWord bool          `json:"single_word"` // not within a word
	LStrip     bool          `json:"lstrip"`      // takes the white space before it
	RStrip     bool          `json:"rstrip"`      // and after it
	Normalized bool          `json:"normalized"`  // is looked for in normalised text
	Special    bool          `json:"special"`     // has no text in an answer
}

// matcher finds added tokens: at each place the longest.
type matcher struct {
	tokens []added
	nodes  []node // a trie of the contents; the first one is its root
}

type node struct {
	next  map[byte]int32
	token int32 // index of the token that ends here, -1 if none does
}

func (m *matcher) add(a added, content string) {
	if content == "" {
		return
	}
	if len(m.nodes) == 0 {
		m.nodes = []node{{token: -1}}
	}
	at := int32(0)
	for i := range len(content) {
		to, ok := m.nodes[at].next[content[i]]
		if !ok {
			to = int32(len(m.nodes))
			m.nodes = append(m.nodes, node{token: -1})
			if m.nodes[at].next == nil {
				m.nodes[at].next = map[byte]int32{}
			}
			m.nodes[at].next[content[i]] = to
		}
		at = to
	}
	m.nodes[at].token = int32(len(m.tokens))
	m.tokens = append(m.tokens, a)
}

// longest is the token that text begins with, and its length; -1 if with none.
func (m *matcher) longest(text string) (token int32, size int) {
	token = -1
	at := int32(0)
	for i := range len(text) {
		to, ok := m.nodes[at].next[text[i]]
		if !ok {
			break
		}
		at = to
		if t := m.nodes[at].token; t >= 0 {
			token, size = t, i+1
		}
	}
	return token, size
}

// split hands out what lies between added tokens, and the tokens, in order.
func (m *matcher) split(text string, plain func(string), token func(kvcache.Token)) {
	done := 0 // what is handed out
	for i := 0; i < len(text) && len(m.nodes) > 0; {
		t, size := m.longest(text[i:])
		if t < 0 {
			i++
			continue
		}
		a, start, end := m.tokens[t], i, i+size
		i = end
		if a.SingleWord && (endsInWord(text[:start]) || beginsWithWord(text[end:])) {
			continue
		}
		if a.LStrip {
			start = max(done, len(strings.TrimRightFunc(text[:start], unicode.IsSpace)))
		}
		if a.RStrip {
			end = len(text) - len(strings.TrimLeftFunc(text[end:], unicode.IsSpace))
		}
		if start > done {
			plain(text[done:start])
		}
		token(a.ID)
		done = end
		i = max(i, end)
	}
	if done < len(text) {
		plain(text[done:])
	}
}

func endsInWord(s string) bool {
	r, size := utf8.DecodeLastRuneInString(s)
	return size > 0 && wordRune(r)
}

func beginsWithWord(s string) bool {
	r, size := utf8.DecodeRuneInString(s)
	return size > 0 && wordRune(r)
}

// wordRune is \w of Unicode's expressions (UTS 18, annex C).
func wordRune(r rune) bool {
	return unicode.In(r, unicode.L, unicode.M, unicode.Nd, unicode.Pc, unicode.Other_Alphabetic, unicode.Nl, unicode.Join_Control)
}
