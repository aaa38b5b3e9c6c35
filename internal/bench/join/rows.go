package join

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// Row is one client request as the proxy, the scheduler and the connector saw it.
type Row struct {
	RequestID string `json:"request_id"`
	Session   string `json:"session"`
	FollowUp  bool   `json:"follow_up"`

	Route    string `json:"route"` // the proxy's decision
	Reason   string `json:"reason"`
	Decoder  string `json:"decoder"`
	Rank     int    `json:"rank"`
	Attempts []Leg  `json:"legs"`

	FallbackMs float64 `json:"fallback_ms,omitempty"` // what the refused attempt cost

	Admission *Admit  `json:"admission"` // on the Decoder, of the leg that answered
	Refusal   *Refuse `json:"refusal"`   // of the local attempt
	Read      *KVRead `json:"kv_read"`   // from the Prefiller, of the leg that answered

	legs map[string][]leg
}

type leg struct {
	Leg
	engine *Engine
}

// Rows joins the traces for the given requests, in their order. followUp says
// which of them continue a session. A request without a route line has an
// empty Route.
func (t *Traces) Rows(requests []string, followUp func(id string) bool) []Row {
	byID := make(map[string]*Route, len(t.Routes))
	for i := range t.Routes {
		byID[t.Routes[i].RequestID] = &t.Routes[i]
	}
	rows := make([]Row, 0, len(requests))
	for _, id := range requests {
		row := Row{RequestID: id, FollowUp: followUp(id), legs: make(map[string][]leg)}
		if r := byID[id]; r != nil {
			row.Session, row.Route, row.Reason = r.Session, r.Route, r.Reason
			row.Decoder, row.Rank, row.Attempts, row.FallbackMs = r.Decoder, r.Rank, r.Legs, r.FallbackMs
			for _, l := range r.Legs {
				row.legs[l.Leg] = append(row.legs[l.Leg], leg{Leg: l, engine: t.Engines[l.RequestID]})
			}
		}
		row.fill()
		rows = append(rows, row)
	}
	return rows
}

func (r *Row) fill() {
	answered := LegDecode
	if r.Route == RouteLocal {
		answered = LegLocal
	}
	if l := r.one(answered); l != nil && l.engine != nil {
		if len(l.engine.Admits) > 0 {
			r.Admission = &l.engine.Admits[0]
		}
		if len(l.engine.Reads) > 0 {
			r.Read = &l.engine.Reads[0]
		}
	}
	if l := r.one(LegLocal); l != nil && l.engine != nil && len(l.engine.Refusals) > 0 {
		r.Refusal = &l.engine.Refusals[0]
	}
}

// one is the first leg of a kind; nil without one.
func (r *Row) one(kind string) *leg {
	if ls := r.legs[kind]; len(ls) > 0 {
		return &ls[0]
	}
	return nil
}

// Hit reports whether the request was served by append-prefill.
func (r *Row) Hit() bool { return r.Route == RouteLocal }

// Fallback reports whether a local attempt was refused and the request went
// through the Prefiller.
func (r *Row) Fallback() bool { return r.Route == RouteFallback }

// Write writes the rows as one JSON object a line.
func Write(dst io.Writer, rows []Row) error {
	enc := json.NewEncoder(dst)
	enc.SetEscapeHTML(false)
	for i := range rows {
		if err := enc.Encode(&rows[i]); err != nil {
			return err
		}
	}
	return nil
}

// Expect says what the rows must show.
type Expect struct {
	// AppendPrefill: follow-ups try their owner first. Otherwise every request
	// must have gone through the Prefiller.
	AppendPrefill bool
	// BytesPerBlock is what one KV block weighs on the wire; 0: not checked.
	BytesPerBlock int64
}

// Check gives a line for everything that the rows contradict; none means that
// they hold together.
func Check(rows []Row, want Expect) []string {
	var wrong []string
	hits, fallbacks, followUps := 0, 0, 0
	for i := range rows {
		r := &rows[i]
		c := checker{row: r, want: want}
		c.check()
		wrong = append(wrong, c.wrong...)
		if r.FollowUp {
			followUps++
		}
		if r.Hit() {
			hits++
		}
		if r.Fallback() {
			fallbacks++
		}
	}
	if want.AppendPrefill && hits+fallbacks != followUps {
		wrong = append(wrong, fmt.Sprintf("%d hits and %d fallbacks are not the %d follow-ups", hits, fallbacks, followUps))
	}
	return wrong
}

type checker struct {
	row   *Row
	want  Expect
	wrong []string
}

func (c *checker) failf(format string, args ...any) {
	c.wrong = append(c.wrong, c.row.RequestID+": "+fmt.Sprintf(format, args...))
}

func (c *checker) check() {
	switch r := c.row; r.Route {
	case RouteLocal:
		c.hit()
	case RouteFallback:
		c.miss()
		c.pd()
	case RoutePD:
		c.legs(LegLocal, 0)
		c.pd()
	case "":
		c.failf("the proxy wrote no route line")
	default:
		c.failf("unknown route %q", r.Route)
	}
	if c.row.Route != RoutePD && (!c.want.AppendPrefill || !c.row.FollowUp) {
		c.failf("route %s, but only follow-ups with append-prefill may try their owner", c.row.Route)
	}
	c.reads()
}

func (c *checker) legs(kind string, n int) bool {
	if got := len(c.row.legs[kind]); got != n {
		c.failf("%d %s legs, not %d", got, kind, n)
		return false
	}
	return true
}

// hit: admitted on a prefix that is cached or that a host tier brings back,
// nothing prefilled elsewhere, nothing read.
func (c *checker) hit() {
	c.legs(LegPrefill, 0)
	c.legs(LegDecode, 0)
	if !c.legs(LegLocal, 1) {
		return
	}
	l := c.row.one(LegLocal)
	if l.Status != 200 {
		c.failf("the hit's leg has status %d", l.Status)
	}
	a := c.row.Admission
	switch {
	case a == nil:
		c.failf("the hit has no scheduler admission")
	case a.CachedTokens+a.External <= 0:
		c.failf("the hit was admitted with no cached token")
	case a.External > restored(l):
		c.failf("the hit was admitted with %d tokens from outside, of which a host tier restored %d", a.External, restored(l))
	case a.Route != "append":
		c.failf("the hit was admitted as %q", a.Route)
	case a.Rank != c.row.Rank:
		c.failf("the proxy chose rank %d, rank %d admitted", c.row.Rank, a.Rank)
	}
	if l.engine != nil && len(l.engine.Reads) > 0 {
		c.failf("the hit read %d blocks from %s", l.engine.Reads[0].Blocks, l.engine.Reads[0].Peer)
	}
}

// restored is how many tokens a host tier brought back for a leg.
func restored(l *leg) int {
	n := 0
	if l.engine != nil {
		for _, r := range l.engine.Restores {
			n += r.Tokens
		}
	}
	return n
}

// miss: refused once, with no output.
func (c *checker) miss() {
	if !c.legs(LegLocal, 1) {
		return
	}
	l := c.row.one(LegLocal)
	if l.Output != 0 {
		c.failf("the refused attempt had output")
	}
	switch {
	case c.row.Refusal == nil:
		c.failf("the miss has no scheduler refusal")
	case c.row.Refusal.Reason != strings.TrimPrefix(c.row.Reason, "refused:"):
		c.failf("the scheduler refused with %q, the proxy noted %q", c.row.Refusal.Reason, c.row.Reason)
	}
	if l.engine == nil {
		return
	}
	if len(l.engine.Admits)+len(l.engine.Reads) > 0 {
		c.failf("the refused attempt was admitted or read KV")
	}
	for _, f := range l.engine.Finishes {
		if f.OutputTokens != 0 {
			c.failf("the refused attempt gave %d tokens", f.OutputTokens)
		}
	}
}

// pd: one Prefiller leg and one Decoder leg.
func (c *checker) pd() {
	if c.legs(LegPrefill, 1) {
		if l := c.row.one(LegPrefill); l.Status != 200 {
			c.failf("the Prefiller leg has status %d", l.Status)
		}
	}
	if !c.legs(LegDecode, 1) {
		return
	}
	if l := c.row.one(LegDecode); l.Status != 200 {
		c.failf("the Decoder leg has status %d", l.Status)
	}
	if c.row.Admission == nil {
		c.failf("the Decoder leg has no scheduler admission")
	}
	if !c.row.FollowUp && c.row.Read == nil {
		c.failf("the first turn read no KV from the Prefiller")
	}
}

func (c *checker) reads() {
	if c.want.BytesPerBlock == 0 {
		return
	}
	for _, ls := range c.row.legs {
		for _, l := range ls {
			if l.engine == nil {
				continue
			}
			for _, r := range l.engine.Reads {
				if r.Failed != "" {
					c.failf("a KV read from %s failed: %s", r.Peer, r.Failed)
				}
				if r.Bytes != int64(r.Blocks)*c.want.BytesPerBlock {
					c.failf("%d bytes were read for %d blocks of %d bytes", r.Bytes, r.Blocks, c.want.BytesPerBlock)
				}
			}
		}
	}
}
