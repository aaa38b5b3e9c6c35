package pd

import (
	"fmt"
	"time"

	"github.com/sluice-serving/sluice/connector"
)

// ReverseConfig is the pull in the other direction: at the end of a turn D
// keeps the session's blocks and names them in its response, and whoever
// computes the next turn's prompt, P or another D, reads them from there.
// vLLM calls the switch bidirectional_kv_xfer.
type ReverseConfig struct {
	Enable    bool
	Threshold int           // fewer tokens are computed rather than read; default 64
	Keep      time.Duration // of a turn's blocks at D; default 480 s
	// Blocks that D may keep so, over all KV groups; the oldest turn is given
	// up for a new one. 0: no bound.
	Blocks int
	// PrefillRate is what this engine computes, in tokens per second, for the
	// prediction whether reading is faster. 0: reading always is.
	PrefillRate float64
}

func (c ReverseConfig) withDefaults() ReverseConfig {
	if c.Threshold == 0 {
		c.Threshold = 64
	}
	if c.Keep == 0 {
		c.Keep = 480 * time.Second
	}
	return c
}

func (c ReverseConfig) validate() error {
	if c.Threshold < 0 || c.Keep < 0 || c.Blocks < 0 || c.PrefillRate < 0 {
		return fmt.Errorf("pd: reverse pull: negative value in %+v", c)
	}
	return nil
}

// speed is how fast loads were, as a moving average.
type speed struct{ perToken float64 } // seconds; 0: nothing measured

// note weighs the latest load with a fifth. Small loads are all latency and
// say little about large ones, so those below 64 tokens are left out.
func (s *speed) note(t Transfer) {
	if t.Blocks == 0 || t.Tokens < 64 || t.Took <= 0 {
		return
	}
	x := t.Took.Seconds() / float64(t.Tokens)
	if s.perToken == 0 {
		s.perToken = x
		return
	}
	s.perToken += (x - s.perToken) / 5
}

// SetPrefillRate replaces the configured rate by a measured one, in tokens per
// second.
func (s *Scheduler) SetPrefillRate(tokens float64) { s.cfg.Reverse.PrefillRate = tokens }

// worthwhile says whether reading n tokens is predicted to beat computing them.
func (s *Scheduler) worthwhile(q *pull, n int) bool {
	if n < s.cfg.Reverse.Threshold {
		return false
	}
	if rate := s.cfg.Reverse.PrefillRate; rate > 0 && s.speed.perToken*rate >= 1 {
		if !q.slower {
			s.stats.Slower++
		}
		q.slower = true
		return false
	}
	return true
}

// keptTurns are the turns whose blocks D keeps, oldest first.
type keptTurns struct {
	list   []keptTurn
	blocks int
}

type keptTurn struct {
	id      connector.RequestID
	session string
	blocks  int
}

func (o *keptTurns) forget(id connector.RequestID) {
	for i, x := range o.list {
		if x.id == id {
			o.blocks -= x.blocks
			o.list = append(o.list[:i], o.list[i+1:]...)
			return
		}
	}
}

// offerTurn keeps a finished turn's blocks for whoever computes the next one.
func (s *Scheduler) offerTurn(r *connector.Request, tables connector.Tables, end connector.End) connector.Hold {
	n := tables.Blocks()
	if limit := s.cfg.Reverse.Blocks; limit > 0 {
		if n > limit {
			return connector.Hold{}
		}
		for s.turns.blocks+n > limit {
			s.endOffer(s.turns.list[0].id)
		}
	}
	s.stats.Offered++
	out := s.hold(r, tables, end, s.cfg.Reverse.Keep, "")
	out.DoRemoteDecode = true
	out.NumTokens = min(end.Computed, len(r.Tokens))
	out.prefix = s.prefixOf(r, out.NumTokens)
	s.turns.list = append(s.turns.list, keptTurn{r.ID, r.Session, n})
	s.turns.blocks += n
	return connector.Hold{Delay: true, Timeout: max(s.cfg.MaxHold, s.cfg.Reverse.Keep) + s.cfg.Lease, Params: out}
}

// endTurn gives up the offer of a session whose next turn came here.
func (s *Scheduler) endTurn(session string) {
	if session == "" {
		return
	}
	for i := len(s.turns.list) - 1; i >= 0; i-- {
		if s.turns.list[i].session == session {
			s.endOffer(s.turns.list[i].id)
		}
	}
}

// EndSession gives up what is kept of a session's last turn: no other comes.
func (s *Scheduler) EndSession(session string) { s.endTurn(session) }

// EndOffers gives up all turns that are kept, because this engine ends.
func (s *Scheduler) EndOffers() {
	for len(s.turns.list) > 0 {
		s.endOffer(s.turns.list[0].id)
	}
}

func (s *Scheduler) endOffer(id connector.RequestID) {
	s.turns.forget(id)
	s.ops = append(s.ops, connector.Op{Kind: connector.OpRelease, Request: id, Payload: ownPayload{id}})
}
