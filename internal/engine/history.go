package engine

import (
	"container/list"
	"context"
	"encoding/binary"
	"hash/maphash"
	"log/slog"

	"github.com/sluice-serving/sluice/scheduler"
)

// history says how a session's turn goes on from the one before it.
type history uint8

const (
	historyNew       history = iota // nothing is known of an earlier turn
	historyIntact                   // its tokens extend those of the turn before
	historyRewritten                // they differ somewhere in what was cached
	historyShorter                  // it has fewer tokens than were cached
)

var historyNames = [...]string{historyNew: "new", historyIntact: "intact", historyRewritten: "rewritten", historyShorter: "shorter"}

func (h history) String() string { return historyNames[h] }

// digest follows the tokens of a turn: its sum is over whole blocks, and the
// last token, which has no KV, is in none.
type digest struct {
	hash maphash.Hash
	size int // tokens per block
	n    int // tokens in the sum
	tail []scheduler.Token
	text []byte // of a block
}

// add takes tokens in. It keeps no reference to them.
func (d *digest) add(tokens []scheduler.Token) {
	for len(d.tail)+len(tokens) > d.size {
		k := d.size - len(d.tail)
		d.text = d.text[:0]
		for _, part := range [][]scheduler.Token{d.tail, tokens[:k]} {
			for _, t := range part {
				d.text = binary.LittleEndian.AppendUint32(d.text, uint32(t))
			}
		}
		d.hash.Write(d.text) // never fails
		d.n += d.size
		tokens, d.tail = tokens[k:], d.tail[:0]
	}
	d.tail = append(d.tail, tokens...)
}

// lastTurn is what a session's last turn has left in the cache.
type lastTurn struct {
	session string
	tokens  int
	sum     uint64
}

// histories remembers the last turns of sessions, a bounded number of them: the
// ones longest unused are forgotten first.
type histories struct {
	seed   maphash.Seed
	size   int // tokens per block
	max    int
	by     map[string]*list.Element
	recent list.List // of *lastTurn, the one used last at the back
}

// maxHistories bounds the sessions of a rank of which the last turn is remembered.
const maxHistories = 1 << 16

func newHistories(blockSize int) *histories {
	return &histories{seed: maphash.MakeSeed(), size: blockSize, max: maxHistories, by: map[string]*list.Element{}}
}

// begin follows a turn's prompt and tells how it goes on from the last one, and
// how many of its tokens were cached then.
func (hs *histories) begin(session string, prompt []scheduler.Token) (d *digest, h history, expected int) {
	d = &digest{size: hs.size}
	d.hash.SetSeed(hs.seed)
	at := hs.by[session]
	if at == nil {
		d.add(prompt)
		return d, historyNew, 0
	}
	last := at.Value.(*lastTurn)
	if len(prompt) <= last.tokens {
		d.add(prompt)
		return d, historyShorter, last.tokens
	}
	d.add(prompt[:last.tokens+1]) // one more, so that all of the last turn's blocks are in the sum
	h = historyRewritten
	if d.hash.Sum64() == last.sum {
		h = historyIntact
	}
	d.add(prompt[last.tokens+1:])
	return d, h, last.tokens
}

// end remembers a turn that has ended and stays cached.
func (hs *histories) end(session string, d *digest) {
	at := hs.by[session]
	if at == nil {
		at = hs.recent.PushBack(&lastTurn{session: session})
		hs.by[session] = at
	}
	last := at.Value.(*lastTurn)
	last.tokens, last.sum = d.n, d.hash.Sum64()
	hs.recent.MoveToBack(at)
	if hs.recent.Len() > hs.max {
		hs.forget(hs.recent.Front().Value.(*lastTurn).session)
	}
}

func (hs *histories) forget(session string) {
	if at := hs.by[session]; at != nil {
		hs.recent.Remove(at)
		delete(hs.by, session)
	}
}

// noteHistory reports, at the first step of a session's turn, what of the turn
// before was expected to be cached and what was found.
func (r *rank) noteHistory(s *Stream) {
	if s.digest == nil {
		return
	}
	found := s.local
	if s.route != scheduler.RemotePrefill {
		found += s.external // from a host tier
	}
	m := r.metrics
	m.counter(m.m.turns, s.history.String()).Inc()
	m.counter(m.m.historyTokens, "expected").Add(float64(s.expected))
	m.counter(m.m.historyTokens, "found").Add(float64(min(found, s.expected)))
	ctx := context.Background()
	if r.log.Enabled(ctx, slog.LevelDebug) {
		r.log.LogAttrs(ctx, slog.LevelDebug, "session turn", slog.String("request", s.req.TraceID), slog.String("history", s.history.String()),
			slog.Int("expected_tokens", s.expected), slog.Int("found_tokens", found), slog.Int("prompt_tokens", s.prompt))
	}
}
