package pd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sluice-serving/sluice/connector"
	"github.com/sluice-serving/sluice/connector/transport"
)

// pushes is P's side of layer-wise push: D opens its blocks under a transfer
// id, and P writes each layer's KV into them as soon as it is computed, so
// that the transfer overlaps the rest of the prompt's computation. Offer and
// request may come in either order.
//
// All writes of one transfer are made by one goroutine, one after the other,
// so a block that is computed once more overwrites what was sent before.
type pushes struct {
	w    *Worker
	ways ways

	mu    sync.Mutex
	byID  map[string]*outgoing
	byReq map[connector.RequestID]*outgoing
	ended map[string]time.Time // transfers that are over, until when it is worth knowing
	steps map[uint64][]stepRow
}

var _ connector.Layered = (*Worker)(nil)

// maxPushes bounds transfers, and offers whose request has not come.
const maxPushes = 4096

// stepRow is a row of a step, of a round of its transfer: when the request is
// computed once more meanwhile, the row says nothing about what is ready.
type stepRow struct {
	request connector.RequestID
	to      int
	round   int
}

// outgoing is one transfer. Its fields are guarded by pushes.mu.
type outgoing struct {
	id      string
	request connector.RequestID // zero: not here yet
	offer   *offer              // nil: not here yet
	theirs  *identity
	table   connector.Tables
	ready   []int // per region: tokens whose KV is in memory
	sent    []int // per region: block positions below this were written or are not wanted
	round   int   // counts resets, so that a write that ran meanwhile does not count
	total   int   // tokens, once the prompt is complete; 0: not yet
	missing map[int]bool
	err     error // ends the transfer
	over    time.Time
	running bool
	wake    chan struct{} // 1
}

func newPushes(w *Worker) *pushes {
	return &pushes{
		w: w, ways: ways{w: w, m: map[transportInfo]*way{}}, byID: map[string]*outgoing{}, byReq: map[connector.RequestID]*outgoing{}, ended: map[string]time.Time{},
		steps: map[uint64][]stepRow{},
	}
}

func (p *pushes) len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.byID)
}

// get returns the transfer, made now if there is room. The lock is held.
func (p *pushes) get(id string, now time.Time) *outgoing {
	o := p.byID[id]
	if o != nil {
		return o
	}
	for k, t := range p.ended {
		if now.After(t) {
			delete(p.ended, k)
		}
	}
	for k, x := range p.byID {
		if !x.running && x.request == 0 && now.After(x.over) { // an offer whose request never came
			delete(p.byID, k)
		}
	}
	if len(p.byID) >= maxPushes {
		return nil
	}
	o = &outgoing{id: id, over: now.Add(p.w.cfg.MaxHold), wake: make(chan struct{}, 1), missing: map[int]bool{}}
	n := len(p.w.id.Regions)
	o.ready, o.sent = make([]int, n), make([]int, n)
	p.byID[id] = o
	return o
}

// answer takes D's word about a transfer.
func (p *pushes) answer(v verb, of *offer, theirs *identity, now time.Time) (bool, error) {
	if of == nil || of.Transfer == "" || len(of.Transfer) > maxTransferID {
		return false, errors.New("no transfer is named")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	o := p.byID[of.Transfer]
	switch v {
	case verbStanding:
		return o != nil && o.err == nil && o.offer != nil && o.offer.Nonce == of.Nonce, nil
	case verbWithdraw:
		if o == nil {
			p.ended[of.Transfer] = now.Add(p.w.cfg.MaxHold) // its request may be on the way
		} else if o.offer == nil || o.offer.Nonce == of.Nonce {
			p.fail(o, errWithdrawn)
		}
		return o != nil, nil
	}
	if theirs == nil {
		return false, errors.New("offer before hello")
	}
	if err := checkOffer(of, len(p.w.id.Groups)); err != nil {
		return false, err
	}
	if _, over := p.ended[of.Transfer]; over {
		return false, nil
	}
	if o = p.get(of.Transfer, now); o == nil || o.offer != nil && o.offer.Nonce != of.Nonce {
		return false, nil
	}
	if o.offer == nil {
		o.offer, o.theirs = of, theirs
		if o.request == 0 {
			o.over = now.Add(min(time.Duration(of.WaitMS)*time.Millisecond, p.w.cfg.MaxHold))
		}
		for i := range o.sent {
			o.sent[i] = of.From
		}
		p.start(o)
	}
	return true, nil
}

func checkOffer(of *offer, groups int) error {
	if of.From < 0 || of.From > 1<<30 || of.WaitMS < 0 || len(of.Blocks) != groups || len(of.Open) != groups {
		return fmt.Errorf("offer of %d KV groups with %d capabilities from position %d, ours has %d groups", len(of.Blocks), len(of.Open), of.From, groups)
	}
	for _, list := range of.Blocks {
		for _, b := range list {
			if b < 0 {
				return fmt.Errorf("offer of block %d", b)
			}
		}
	}
	return nil
}

var errWithdrawn = errors.New("the decoder has withdrawn its offer")

// track names the request of a transfer.
func (p *pushes) track(id connector.RequestID, transfer string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	o := p.get(transfer, time.Now())
	if o == nil {
		return
	}
	o.request = id
	p.byReq[id] = o
	if _, over := p.ended[transfer]; over {
		o.err = errWithdrawn
	}
	p.start(o)
}

// start gives a transfer its goroutine when both sides have met. The lock is
// held.
func (p *pushes) start(o *outgoing) {
	if o.running || o.offer == nil || o.request == 0 {
		return
	}
	o.running = p.w.spawn(func() { p.run(o) })
}

// fail ends a transfer. The lock is held.
func (p *pushes) fail(o *outgoing, err error) {
	if o.err == nil {
		o.err = err
	}
	poke(o.wake)
	if !o.running {
		p.remove(o)
	}
}

// remove forgets a transfer, but not that there was one, and ends the lease of
// a finished prompt. The lock is held.
func (p *pushes) remove(o *outgoing) {
	if p.byID[o.id] != o {
		return
	}
	delete(p.byID, o.id)
	p.ended[o.id] = time.Now().Add(p.w.cfg.MaxHold)
	if o.request == 0 {
		return
	}
	delete(p.byReq, o.request)
	if h := p.w.leases.own(o.request); h != nil {
		p.w.counters.released.Add(1)
		p.w.spawn(func() { p.w.end(h) })
	}
}

// abort ends the transfer of a request that will not be complete.
func (p *pushes) abort(transfer string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if o := p.byID[transfer]; o != nil {
		p.fail(o, errors.New("the prompt was not completed"))
	}
}

// forget ends the transfer of a request whose lease has ended.
func (p *pushes) forget(id connector.RequestID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if o := p.byReq[id]; o != nil {
		p.fail(o, errors.New("the lease ran out"))
	}
}

// finish says that a prompt is complete: all its KV is in memory.
func (p *pushes) finish(op *connector.Op, transfer string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	o := p.byID[transfer]
	if o == nil || o.err != nil { // withdrawn or without room: nobody waits for it
		if h := p.w.leases.own(op.Request); h != nil {
			p.w.spawn(func() { p.w.end(h) })
		}
		return
	}
	o.table, o.total = op.Blocks, op.Tokens.To
	for i := range o.ready {
		o.ready[i] = o.total
	}
	poke(o.wake)
}

// Wants is true for requests whose KV is pushed.
func (w *Worker) Wants(id connector.RequestID) bool {
	w.pushes.mu.Lock()
	defer w.pushes.mu.Unlock()
	return w.pushes.byReq[id] != nil
}

// Computing notes what a step computes.
func (w *Worker) Computing(step uint64, rows []connector.Computing) {
	p := w.pushes
	p.mu.Lock()
	defer p.mu.Unlock()
	var kept []stepRow
	for _, r := range rows {
		o := p.byReq[r.Request]
		if o == nil || o.total > 0 {
			continue
		}
		o.table = r.Tables
		p.rewind(o, r.From)
		kept = append(kept, stepRow{r.Request, r.To, o.round})
	}
	if len(kept) > 0 {
		p.steps[step] = kept
	}
}

// rewind takes back what is ready from a position on, where it is computed
// once more, perhaps in other blocks. The lock is held.
func (p *pushes) rewind(o *outgoing, from int) {
	again := false
	for i, n := range o.ready {
		if n > from {
			again = true
			o.ready[i], o.sent[i] = from, min(o.sent[i], max(from/p.w.id.BlockSize, o.from()))
		}
	}
	if again {
		o.round++
	}
}

func (o *outgoing) from() int {
	if o.offer == nil {
		return 0
	}
	return o.offer.From
}

// LayerDone lets a layer of the step's rows go out.
func (w *Worker) LayerDone(step uint64, layer int) {
	w.pushes.done(step, func(r regionInfo) bool { return r.Layer == layer })
}

// StepDone lets all layers go out.
func (w *Worker) StepDone(step uint64) {
	w.pushes.done(step, func(regionInfo) bool { return true })
	w.pushes.mu.Lock()
	defer w.pushes.mu.Unlock()
	delete(w.pushes.steps, step)
	for s := range w.pushes.steps { // failed steps are never done
		if s+16 < step {
			delete(w.pushes.steps, s)
		}
	}
}

func (p *pushes) done(step uint64, which func(regionInfo) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.steps[step] {
		o := p.byReq[r.request]
		if o == nil || o.total > 0 || o.round != r.round {
			continue
		}
		for i, info := range p.w.id.Regions {
			if which(info) {
				o.ready[i] = max(o.ready[i], r.to)
			}
		}
		poke(o.wake)
	}
}

// run is a transfer's goroutine.
func (p *pushes) run(o *outgoing) {
	err := p.push(o)
	p.mu.Lock()
	defer p.mu.Unlock()
	o.running = false
	if err != nil {
		p.w.counters.pushesFailed.Add(1)
		p.w.cfg.Log.Warn("pd: push failed", "transfer", o.id, "error", err)
		p.fail(o, err)
		return
	}
	p.remove(o)
}

// push writes what is ready until all is, and tells D how it ended.
func (p *pushes) push(o *outgoing) error {
	ctx, cancel := context.WithTimeout(p.w.ctx, p.w.cfg.MaxHold)
	defer cancel()
	way, err := p.ways.use(ctx, o.theirs.Transport)
	if err != nil {
		return err
	}
	broken := false
	defer func() { p.ways.leave(way, broken) }()
	end := pushed{Nonce: o.offer.Nonce}
	for {
		w, more, err := p.next(o)
		if err == nil && more {
			err = p.write(ctx, way.tp, o, w)
			broken = err != nil && !errors.Is(err, transport.ErrDenied)
		}
		if err != nil {
			end.Error = err.Error()
			break
		}
		if more {
			continue
		}
		if w.total > 0 {
			end.Tokens, end.Missing = w.total, w.missing
			break
		}
		select {
		case <-o.wake:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	msg, err := json.Marshal(end)
	if err != nil {
		return err
	}
	notice, stop := context.WithTimeout(ctx, p.w.cfg.Call)
	defer stop()
	if err := way.tp.Notify(notice, msg); err != nil {
		broken = true
		return err
	}
	if end.Error != "" {
		return errors.New(end.Error)
	}
	return nil
}
