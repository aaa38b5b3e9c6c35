// Package draft proposes tokens that a model may say next, for it to verify
// several at once.
package draft

import (
	"slices"

	"github.com/sluice-serving/sluice/kvcache"
)

// NGram guesses that a sequence goes on as it did before: it looks for the
// longest end of the sequence, of Min to Max tokens, that occurs earlier too, and
// proposes what followed the first such place.
type NGram struct {
	Min, Max int // tokens of the end; 1 <= Min <= Max
	Tokens   int // K, the drafts of a proposal
}

// Propose appends K drafts to dst. What would lie behind the end of the sequence
// continues the proposal itself, so a sequence in a loop goes on looping. Where
// nothing occurs earlier the drafts are the last token: every row then has K, and
// the batch the one width that decode graphs have. An empty history has none.
func (g NGram) Propose(dst, history []kvcache.Token) []kvcache.Token {
	if len(history) == 0 {
		return dst
	}
	from := g.find(history)
	first := len(dst)
	for j := range g.Tokens {
		switch at := from + j; {
		case from < 0:
			dst = append(dst, history[len(history)-1])
		case at < len(history):
			dst = append(dst, history[at])
		default:
			dst = append(dst, dst[first+at-len(history)])
		}
	}
	return dst
}

// find is where the proposal begins, -1 for nowhere.
func (g NGram) find(history []kvcache.Token) int {
	for n := min(g.Max, len(history)-1); n >= g.Min; n-- {
		end := history[len(history)-n:]
		for i := 0; i+n < len(history); i++ {
			if history[i] == end[0] && slices.Equal(history[i:i+n], end) {
				return i + n
			}
		}
	}
	return -1
}
