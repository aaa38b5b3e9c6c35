package workload

import (
	"fmt"
	"math"
	"time"
)

// Recording is a recorded load, as a reader of traces gives it: conversations
// in the order of their starts, whose prompts stand alone.
type Recording interface {
	Sessions() int
	Turns(session int) int
	Name(session int) string // "" for none
	Parent(session int) int  // that it was forked from; -1 for none
	Start(session int) time.Duration
	Think(session, turn int) time.Duration // from the end of a turn to the next
	Output(session, turn int) int          // tokens of the answer
	// Prompt is the whole prompt, as numbers whose equality says which prefixes
	// prompts share. It may use the memory of dst.
	Prompt(session, turn int, dst []int32) []int32
	// Block is the number of tokens by which prompts share, 0 where nothing
	// says that they do.
	Block() int
}

// distinct is the least number of different blocks that ids must be able to make.
const distinct = 1 << 48

// Recorded freezes a recording: the prompts of its turns are made of ids of the
// vocabulary, and share their prefixes as the recording's do. Every turn says
// how much of the prompt before it stays; the answers that come while it is
// replayed are no part of later prompts, for the recording says what these hold.
func Recorded(name string, r Recording, vocab Range) (*Workload, error) {
	if vocab == (Range{}) {
		vocab = TokenRange
	}
	if err := vocab.validate("token range", 0); err != nil {
		return nil, err
	}
	size := int32(vocab.High - vocab.Low + 1)
	if b := r.Block(); b > 0 && math.Pow(float64(size), float64(b)) < distinct {
		return nil, fmt.Errorf("blocks of %d tokens from %d ids cannot be told apart: a larger token scale or range is needed", b, size)
	}
	w := &Workload{Version: Version, Name: name}
	ids := make([]string, r.Sessions())
	var before, now []int32
	for i := range ids {
		ids[i] = fmt.Sprintf("c%05d", i)
		if n := r.Name(i); plain(n) {
			ids[i] += "-" + n
		}
		s := Session{ID: ids[i], Arrival: r.Start(i)}
		if p := r.Parent(i); p >= 0 {
			s.Parent = ids[p]
		}
		before = before[:0]
		for t := range r.Turns(i) {
			now = r.Prompt(i, t, now[:0])
			for k, id := range now {
				now[k] = int32(vocab.Low) + id%size
			}
			keep := 0
			for keep < len(now) && keep < len(before) && now[keep] == before[keep] {
				keep++
			}
			turn := Turn{Keep: &keep, Tokens: append([]int32(nil), now[keep:]...), MaxTokens: r.Output(i, t)}
			if t > 0 {
				turn.Think = r.Think(i, t-1)
			}
			s.Turns = append(s.Turns, turn)
			before, now = now, before
		}
		w.Sessions = append(w.Sessions, s)
	}
	return w, w.Validate()
}

// plain reports whether a name may be part of an id on the wire.
func plain(name string) bool {
	if name == "" || len(name) > 64 {
		return false
	}
	for _, c := range []byte(name) {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.') {
			return false
		}
	}
	return true
}
