package pd

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"
)

const (
	maxControlConns = 512
	controlIdle     = 5 * time.Minute
)

// accept owns the listener until it is closed.
func (w *Worker) accept() {
	for {
		c, err := w.ln.Accept()
		if err != nil {
			if w.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			select { // out of descriptors, most likely
			case <-w.ctx.Done():
				return
			case <-time.After(50 * time.Millisecond):
			}
			continue
		}
		if w.cfg.ServerTLS != nil {
			c = tls.Server(c, w.cfg.ServerTLS)
		}
		w.mu.Lock()
		if w.ctx.Err() != nil || len(w.conns) >= maxControlConns {
			w.mu.Unlock()
			c.Close()
			continue
		}
		w.conns[c] = struct{}{}
		w.mu.Unlock()
		w.wg.Go(func() {
			w.serve(newChannel(c))
			c.Close()
			w.mu.Lock()
			delete(w.conns, c)
			w.mu.Unlock()
		})
	}
}

// serve answers one peer's control connection until it fails.
func (w *Worker) serve(c *channel) {
	var theirs *identity // of the hello
	for {
		var req request
		if err := c.read(&req, time.Now().Add(controlIdle)); err != nil {
			return
		}
		if req.Verb == verbHello {
			theirs = req.Hello
		}
		rep, ended := w.answer(&req, theirs)
		if err := c.write(rep, time.Now().Add(w.cfg.Call)); err != nil {
			rep = nil
		}
		for _, h := range ended { // after the answer: revoking may take a moment
			w.end(h)
		}
		if rep == nil || rep.Error != nil && rep.Error.Code == "protocol" {
			return
		}
	}
}

// answer decides a request. The leases returned were taken out of the table
// and are the caller's to end. theirs is what the peer said of itself, nil
// before its hello.
func (w *Worker) answer(req *request, theirs *identity) (*reply, []*held) {
	refuse := func(err error) (*reply, []*held) {
		return &reply{Error: replyErrorOf(err, w.cfg.EngineID)}, nil
	}
	if req.Version != controlVersion {
		return refuse(fmt.Errorf("control version %d, ours is %d", req.Version, controlVersion))
	}
	if req.Want != w.cfg.EngineID {
		return refuse(fmt.Errorf("%w: wanted %q, this is %q", ErrRestarted, req.Want, w.cfg.EngineID))
	}
	if len(req.Leases) > maxLeases {
		return refuse(fmt.Errorf("%d leases in one message, limit %d", len(req.Leases), maxLeases))
	}
	rep, now := &reply{}, time.Now()
	var ended []*held
	switch req.Verb {
	case verbHello:
		if req.Hello == nil {
			return refuse(errors.New("hello without an identity"))
		}
		if err := errors.Join(compare(&w.id, req.Hello), req.Hello.check()); err != nil {
			w.cfg.Log.Error("pd: peer refused", "error", err)
			return refuse(err)
		}
		rep.Hello = &w.id
	case verbRenew:
		for _, r := range req.Leases {
			rep.Leases = append(rep.Leases, w.leases.renew(r, now))
		}
	case verbConfirm:
		for _, r := range req.Leases {
			rep.Leases = append(rep.Leases, w.leases.confirm(r, now))
		}
	case verbRelease:
		for _, r := range req.Leases {
			h := w.leases.take(r)
			if h == nil {
				w.counters.unknown.Add(1)
			} else {
				w.counters.released.Add(1)
				ended = append(ended, h)
			}
			rep.Leases = append(rep.Leases, leaseState{Held: h != nil})
		}
	case verbMeet:
		if req.Offer == nil || req.From == nil {
			return refuse(errors.New("meet without a transfer or an endpoint"))
		}
		rep.Leases = []leaseState{{Held: w.meetings.deliver(req.Offer.Transfer, *req.From)}}
	case verbOffer, verbStanding, verbWithdraw:
		held, err := w.pushes.answer(req.Verb, req.Offer, theirs, now)
		if err != nil {
			return refuse(err)
		}
		rep.Leases = []leaseState{{Held: held}}
	default:
		return refuse(fmt.Errorf("unknown verb %q", req.Verb))
	}
	return rep, ended
}
