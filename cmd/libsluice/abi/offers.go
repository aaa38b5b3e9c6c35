package abi

import (
	"time"

	"github.com/sluice-serving/sluice/connector"
)

// offerKind says what a request's lookups are answered with.
type offerKind uint8

const (
	offerNothing offerKind = iota
	offerPending
	offerTokens
)

// offer is what can be loaded for a request.
type offer struct {
	kind    offerKind
	upTo    int // tokens from the start of the sequence
	beyond  int // first of them that can be loaded
	async   bool
	repeat  bool
	timeout time.Duration
}

// transferKind says what a transfer does with the blocks.
type transferKind uint8

const (
	sendBlocks transferKind = iota + 1
	saveBlocks
)

// transfer is work for the caller.
type transfer struct {
	kind    transferKind
	request connector.RequestID
	tokens  int
	blocks  connector.Tables
}

// loading is what the connector knows of a live request.
type loading struct {
	offer offer
	hold  bool
	local int // of the last lookup

	saving bool // until saved or lost
	saved  int  // tokens that can be brought back
	acks   []bool
	acked  int
}

// offers is a connector whose decisions are data: what requests can load is
// told beforehand, and what is to be saved or sent is collected for the caller.
type offers struct {
	connector.Base
	cfg       connectorConfig
	blockSize int
	workers   int
	requests  map[connector.RequestID]*loading
	staged    []transfer
}

var (
	_ connector.Scheduler  = (*offers)(nil)
	_ connector.Recovering = (*offers)(nil)
	_ connector.Delivery   = (*offers)(nil)
	_ connector.Resetter   = (*offers)(nil)
)

func newOffers(cfg connectorConfig, blockSize, workers int) *offers {
	return &offers{cfg: cfg, blockSize: blockSize, workers: workers, requests: map[connector.RequestID]*loading{}}
}

// set replaces what is offered for a request; false if it does not live.
func (c *offers) set(id connector.RequestID, o offer) bool {
	l := c.requests[id]
	if l == nil {
		return false
	}
	l.offer = o
	return true
}

// byDefault is the offer of a request that brings none.
func (c *offers) byDefault() offer {
	if c.cfg.Lookup == lookupAsk {
		return offer{kind: offerPending}
	}
	return offer{}
}

// hold says whether a request's blocks are kept at its end.
func (c *offers) hold(id connector.RequestID, yes bool) {
	if l := c.requests[id]; l != nil {
		l.hold = yes
	}
}

// local is the local hit of a request's last lookup.
func (c *offers) local(id connector.RequestID) int {
	if l := c.requests[id]; l != nil {
		return l.local
	}
	return 0
}

// RequiresDelivery implements connector.Delivery.
func (c *offers) RequiresDelivery() bool { return c.cfg.Delivery == deliveryRequired }

// Added implements connector.Scheduler.
func (c *offers) Added(r *connector.Request) { c.requests[r.ID] = &loading{offer: c.byDefault()} }

// Lookup answers with a save of the request's own KV first, then with its offer.
func (c *offers) Lookup(r *connector.Request, local int) connector.Answer {
	l := c.requests[r.ID]
	if l == nil {
		return connector.Answer{}
	}
	l.local = local
	switch {
	case l.saving:
		return connector.Answer{Pending: true}
	case l.saved > local:
		return connector.Answer{Tokens: l.saved - local, Async: true}
	case l.offer.kind == offerPending, l.offer.kind == offerTokens && local < l.offer.beyond:
		return connector.Answer{Pending: true, Timeout: l.offer.timeout}
	case l.offer.kind == offerTokens && l.offer.async:
		return connector.Answer{Tokens: max(0, l.offer.upTo-local), Async: true, Timeout: l.offer.timeout}
	case l.offer.kind == offerTokens:
		return connector.Answer{Tokens: min(max(0, l.offer.upTo-local), len(r.Tokens)-1-local)}
	}
	return connector.Answer{}
}

// Allocated uses up what was offered.
func (c *offers) Allocated(r *connector.Request, _ connector.Tables, _, external int) {
	l := c.requests[r.ID]
	if l == nil || external == 0 {
		return
	}
	if l.saved > 0 {
		l.saved = 0
	} else if !l.offer.repeat {
		l.offer = c.byDefault()
	}
}

// Preempting stages a save of the blocks that hold computed tokens.
func (c *offers) Preempting(r *connector.Request, tables connector.Tables, computed int) bool {
	l := c.requests[r.ID]
	if l == nil || c.cfg.Preempted != preemptedSave || computed == 0 {
		return false
	}
	if l.saving {
		return true
	}
	cut := make(connector.Tables, len(tables))
	for g, t := range tables {
		cut[g] = t[:min(len(t), (computed+c.blockSize-1)/c.blockSize)]
	}
	if cut.Blocks() == 0 {
		return false
	}
	l.saving, l.saved = true, computed
	l.acks, l.acked = make([]bool, c.workers), 0
	c.staged = append(c.staged, transfer{saveBlocks, r.ID, computed, cut.Clone()})
	return true
}

// Recovering implements connector.Recovering.
func (c *offers) Recovering(id connector.RequestID) bool {
	l := c.requests[id]
	return l != nil && (l.saving || l.saved > 0)
}

// Finished stages a send where the request's blocks are to be kept.
func (c *offers) Finished(r *connector.Request, tables connector.Tables, end connector.End) connector.Hold {
	l := c.requests[r.ID]
	delete(c.requests, r.ID)
	if l == nil || !l.hold || !end.Reason.Complete() || tables.Blocks() == 0 {
		return connector.Hold{}
	}
	c.staged = append(c.staged, transfer{sendBlocks, r.ID, end.Computed, tables.Clone()})
	return connector.Hold{Delay: true}
}

// Completed hears of saves: they count when every worker has reported, and are
// lost when one has failed.
func (c *offers) Completed(ev connector.Event) {
	l := c.requests[ev.Request]
	if l == nil || !l.saving {
		return
	}
	switch ev.Kind {
	case connector.Failed:
		l.saving, l.saved = false, 0
	case connector.Saved:
		if ev.Worker < 0 || ev.Worker >= len(l.acks) || l.acks[ev.Worker] {
			return
		}
		l.acks[ev.Worker] = true
		if l.acked++; l.acked == len(l.acks) {
			l.saving = false
		}
	}
}

// ResetCache forgets the saves; they are of weights that are no more.
func (c *offers) ResetCache() bool {
	for _, l := range c.requests {
		l.saving, l.saved = false, 0
	}
	return true
}

// take hands the staged transfers over. They are valid until the next call
// that stages some.
func (c *offers) take() []transfer {
	t := c.staged
	c.staged = c.staged[:0]
	return t
}
