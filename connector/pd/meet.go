package pd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"
)

// A push whose P is not chosen yet: D has its blocks and asks a metaserver, a
// path of the proxy, for a P. That P is given D's endpoint and the transfer's
// name, tells D where it is, and from there on the push is as any other.

// metaserver is where a metaserver's URL leads, as an endpoint that is allowed or
// not.
func metaserver(s string) (Endpoint, error) {
	u, err := url.Parse(s)
	if err != nil {
		return Endpoint{}, err
	}
	port := u.Port()
	switch {
	case u.Scheme != "http" && u.Scheme != "https", u.Hostname() == "", u.User != nil:
		return Endpoint{}, fmt.Errorf("metaserver %q is no URL of http or https", s)
	case port == "" && u.Scheme == "http":
		port = "80"
	case port == "":
		port = "443"
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return Endpoint{}, err
	}
	return Endpoint{EngineID: "metaserver", Host: u.Hostname(), Port: int(n)}, nil
}

// meetings are D's loads that wait to hear of their P, by transfer.
type meetings struct {
	mu sync.Mutex
	m  map[string]chan Endpoint
}

func (m *meetings) expect(transfer string) <-chan Endpoint {
	c := make(chan Endpoint, 1)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.m == nil {
		m.m = map[string]chan Endpoint{}
	}
	m.m[transfer] = c
	return c
}

func (m *meetings) forget(transfer string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.m, transfer)
}

// deliver tells a waiting load of its P; the first one counts. It reports
// whether the transfer is known.
func (m *meetings) deliver(transfer string, p Endpoint) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := m.m[transfer]
	if c != nil {
		select {
		case c <- p:
		default:
		}
	}
	return c != nil
}

// asked is what D posts: the transfer parameters of P's request, with what
// other engines' proxies look at.
type asked struct {
	RequestID     string  `json:"request_id"`
	TokenIDs      []int32 `json:"token_ids"`
	RemotePrefill bool    `json:"do_remote_prefill"`
	RemoteDecode  bool    `json:"do_remote_decode"`
	Mode          string  `json:"transfer_mode"`
	Transfer      string  `json:"transfer_id"`
	EngineID      string  `json:"remote_engine_id"`
	Host          string  `json:"remote_host"`
	Port          int     `json:"remote_port"`
	BlockIDs      any     `json:"remote_block_ids"`
	BlockSize     int     `json:"remote_block_size"`
	Cached        int     `json:"remote_cached_tokens"`
	TP            int     `json:"remote_tp_size"`
	PCP           int     `json:"remote_pcp_size"`
	DCP           int     `json:"remote_dcp_size"`
}

// meet asks for a P and waits until it says where it is. The metaserver's answer
// comes when P has computed the prompt, or says why it does not; the question is
// given up when ctx ends.
func (l *load) meet(ctx context.Context) (Endpoint, error) {
	heard := l.w.meetings.expect(l.what.transfer)
	defer l.w.meetings.forget(l.what.transfer)
	self := l.w.Endpoint()
	body, err := json.Marshal(asked{
		RequestID: fmt.Sprintf("%s-%v", l.what.name, l.op.Request), TokenIDs: []int32{}, RemoteDecode: true, Mode: "push", Transfer: l.what.transfer,
		EngineID: self.EngineID, Host: self.Host, Port: self.Port, BlockIDs: l.what.positions, BlockSize: l.w.id.BlockSize,
		Cached: l.op.Tokens.From, TP: 1, PCP: 1, DCP: 1,
	})
	if err != nil {
		return Endpoint{}, err
	}
	answer := make(chan error, 1)
	if !l.w.spawn(func() { answer <- post(ctx, l.what.metaserver, body) }) {
		return Endpoint{}, errors.New("pd: worker is closed")
	}
	var late <-chan time.Time
	for {
		select {
		case p := <-heard:
			return p, nil
		case err := <-answer:
			if err != nil {
				return Endpoint{}, fmt.Errorf("metaserver %s: %w", l.what.metaserver, err)
			}
			answer, late = nil, time.After(l.w.cfg.Call)
		case <-late:
			return Endpoint{}, fmt.Errorf("metaserver %s: no prefiller has come for transfer %s", l.what.metaserver, l.what.transfer)
		case <-ctx.Done():
			return Endpoint{}, context.Cause(ctx)
		}
	}
}

// post sends one question; whatever is not a 200 is an error.
func post(ctx context.Context, to string, body []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, to, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	c := http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d: %q", resp.StatusCode, text)
	}
	return err
}

// meet tells D, which waits for a push, where this engine is.
func (w *Worker) meet(what trackPayload) {
	p, err := w.peer(what.decoder)
	if err != nil {
		w.pushes.abort(what.transfer)
		return
	}
	started := w.spawn(func() {
		defer p.leave()
		ctx, cancel := context.WithTimeout(w.ctx, w.cfg.Call)
		defer cancel()
		self := w.Endpoint()
		rep, err := p.call(ctx, &request{Verb: verbMeet, Offer: &offer{Transfer: what.transfer}, From: &self})
		if err == nil && len(rep.Leases) == 1 && rep.Leases[0].Held {
			return
		}
		w.cfg.Log.Warn("pd: the decoder of a push was not met", "decoder", what.decoder.EngineID, "error", err)
		w.pushes.abort(what.transfer)
	})
	if !started {
		p.leave()
	}
}
