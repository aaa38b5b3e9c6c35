package server

import (
	"strings"

	"github.com/sluice-serving/sluice/internal/engine/tokenizer"
	"github.com/sluice-serving/sluice/scheduler"
)

// text turns the tokens of one answer into text and looks for stop strings.
// Text that may be the beginning of a stop string is held back until it is
// decided; so what is looked through for a token is its own text and at most the
// longest stop string, however long the answer is.
type text struct {
	silent bool // tokens have no text here
	stops  []string
	min    int // tokens before stop strings count
	dec    tokenizer.Decoder
	tokens int
	held   string
}

// newText is for one answer of a model, whose tokens have no text if of is nil.
func newText(of tokenizer.Tokenizer, stops []string, min int) text {
	return text{silent: of == nil, stops: stops, min: min, dec: tokenizer.Decoder{Of: of}}
}

// push adds tokens and returns the text that is certain to be part of the
// answer, and how many of the tokens belong to it. hit is the stop string that
// ends the answer, empty if none does; the string itself is not part of it.
func (t *text) push(tokens []scheduler.Token) (_ string, used int, hit string) {
	if t.silent {
		t.tokens += len(tokens)
		return "", len(tokens), ""
	}
	var out strings.Builder
	for i, tok := range tokens {
		t.tokens++
		t.held += t.dec.Push(tok)
		if t.tokens >= t.min {
			if at, stop := t.find(); stop != "" {
				out.WriteString(t.held[:at])
				t.held = ""
				return out.String(), i + 1, stop
			}
		}
		keep := t.undecided()
		out.WriteString(t.held[:len(t.held)-keep])
		t.held = t.held[len(t.held)-keep:]
	}
	return out.String(), len(tokens), ""
}

// flush returns what is held at the end of the answer.
func (t *text) flush() string {
	out := t.held + t.dec.Flush()
	t.held = ""
	return out
}

// find is the first place of a stop string in the held text.
func (t *text) find() (at int, stop string) {
	at = -1
	for _, s := range t.stops {
		if i := strings.Index(t.held, s); i >= 0 && (at < 0 || i < at) {
			at, stop = i, s
		}
	}
	return at, stop
}

// undecided is the length of the longest end of the held text that begins a stop string.
func (t *text) undecided() int {
	most := 0
	for _, s := range t.stops {
		for n := min(len(s)-1, len(t.held)); n > most; n-- {
			if strings.HasSuffix(t.held, s[:n]) {
				most = n
				break
			}
		}
	}
	return most
}
