package proxy

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/sluice-serving/sluice/internal/openai"
	"github.com/sluice-serving/sluice/proxy/route"
	"github.com/sluice-serving/sluice/proxy/splice"
)

// limitKey is the body member that bounds the output on the path of the legs
// under way.
func (x *exchange) limitKey() string {
	if x.path == completions.path { // also of a continuation
		return completions.limit
	}
	return x.at.limit
}

// rounds runs P/D rounds until one is answered or nothing is left to try.
func (x *exchange) rounds() {
	var problem *openai.Error
	for round := range x.p.cfg.MaxRetries {
		if round > 0 && !x.pause(route.RetryDelay(x.p.cfg.RetryDelay, round)) {
			return
		}
		res, tried := x.round()
		if !tried {
			break
		}
		switch res.verdict {
		case served, passedOn, cut, gone, given:
			return
		}
		problem = res.problem
	}
	if problem == nil {
		problem = openai.Unavailable(1, "no instance can take the request")
	}
	x.out.fail(problem)
}

// pause waits; false when the client went away meanwhile.
func (x *exchange) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-x.r.Context().Done():
		return false
	}
}

// round is one P/D round: the prompt on a Prefiller, the answer on a Decoder.
// tried is false when no instance is left that could take it.
func (x *exchange) round() (res result, tried bool) {
	now := time.Now()
	x.p.mu.Lock()
	target, ok := x.p.router.Decoder(now, x.turn)
	push := ok && x.p.pools[target.Decoder] != nil && x.p.pools[target.Decoder].Push
	var addr string
	if ok && !push {
		addr, ok = x.p.router.Prefiller(now, x.turn)
	}
	x.p.mu.Unlock()
	if !ok {
		return result{}, false
	}
	if there := x.claim(target); there != target {
		target = there
		push = x.p.backend(target.Decoder).Push
	}
	if push {
		res = x.pushRound(target)
		switch {
		case res.verdict == failed && res.reason == "error:prefill":
			// Every Prefiller that could be tried was; another Decoder changes nothing.
			x.out.fail(res.problem)
			res.verdict = passedOn
		case res.verdict == failed:
			x.exclude(target.Decoder)
		}
		return res, true
	}
	if res, ok := x.move(target); ok {
		return res, true
	}
	params, cached, res := x.prefill(addr, target.Decoder)
	if !res.unsent {
		x.before = nil // read, or what failed
	}
	if res.verdict != served {
		if res.verdict == failed {
			x.exclude(addr)
		}
		return res, true
	}
	x.p.mu.Lock()
	x.p.router.Prefilled(time.Now(), x.turn)
	x.p.mu.Unlock()
	for {
		res = x.decodeLeg(target, params, cached)
		if res.verdict != failed {
			return res, true
		}
		x.exclude(target.Decoder)
		if !res.unsent {
			return res, true
		}
		// Nothing has reached that Decoder, so the KV still waits on the
		// Prefiller: another Decoder can pull it.
		x.p.mu.Lock()
		next, ok := x.p.router.Decoder(time.Now(), x.turn)
		x.p.mu.Unlock()
		if !ok {
			return res, true
		}
		target = next
	}
}

func (x *exchange) exclude(addr string) {
	x.p.mu.Lock()
	x.p.router.Exclude(x.turn, addr)
	x.p.mu.Unlock()
}

func numbered(id, leg string, n int) string {
	if n > 1 {
		return id + "-" + leg + strconv.Itoa(n)
	}
	return id + "-" + leg
}

// Values that the legs set.
var (
	remoteDecode = []byte(`{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`)
	jsonOne      = []byte("1")
	jsonFalse    = []byte("false")
)

// notPrefilled are members of the client's body that no Prefiller is sent: what it
// has cached is no matter of the client's, and its answer, which no client sees, would
// repeat the prompt's tokens.
var notPrefilled = [...]string{"cache_hit_threshold", "return_token_ids"}

// prefill sends the prompt to a Prefiller, in pull mode. The Decoder that will
// answer may want members of its own in the leg.
func (x *exchange) prefill(addr, decoder string) (params json.RawMessage, cached int, res result) {
	x.legsP++
	extra := x.p.backend(decoder).PrefillMembers
	edits := append(make([]splice.Edit, 0, 8+len(extra)), splice.Set("kv_transfer_params", x.computes())) // with those of prefillLeg
	for _, key := range sortedKeys(extra) {
		edits = append(edits, splice.Set(key, extra[key]))
	}
	for _, key := range notPrefilled {
		if extra[key] == nil {
			edits = append(edits, splice.Delete(key))
		}
	}
	return x.prefillLeg(addr, numbered(x.id, "p", x.legsP), edits)
}

// prefillLeg sends the prompt to a Prefiller: one token, not streamed, KV kept
// for a Decoder or pushed to it. It gives the transfer parameters of the
// answer and the prompt tokens that the Prefiller had cached.
func (x *exchange) prefillLeg(addr, id string, edits []splice.Edit) (params json.RawMessage, cached int, res result) {
	c := call{leg: route.LegPrefill, id: id, target: route.Target{Decoder: addr}, limit: x.p.cfg.PrefillTimeout}
	c.edits = append(edits, splice.Set("stream", jsonFalse), splice.Set(x.limitKey(), jsonOne), splice.Set("min_tokens", jsonOne),
		splice.Replace("max_completion_tokens", jsonOne), splice.Delete("stream_options"))
	x.line.Prefiller = addr
	line := LegTrace{Leg: c.leg.String(), RequestID: c.id, Instance: addr}
	x.trace.leg(&c)
	defer func() {
		line.Reason = res.reason
		c.end(&line, res.verdict)
		x.line.Legs = append(x.line.Legs, line)
	}()
	ctx, cancel := x.legContext()
	defer cancel(nil)
	w := newWatch(cancel, c.limit)
	defer w.stop()
	resp, err := x.send(ctx, c)
	if err != nil {
		x.learn(c, nil, err)
		return nil, 0, x.transportFailure(ctx, c, err)
	}
	defer resp.Close()
	line.Status = resp.Status
	if problem := coded(resp, c.leg); problem != nil {
		return nil, 0, result{verdict: failed, reason: "error:encoding", problem: problem}
	}
	kept := takeScratch()
	defer kept.giveBack() // of the answer only copies are kept
	body, err := readAll(kept.raw[:0], io.LimitReader(w.follow(resp, x.p.cfg.IdleTimeout), x.p.cfg.MaxAnswer+1), 0)
	kept.raw = body
	x.learn(c, resp, err)
	switch {
	case err != nil:
		return nil, 0, x.transportFailure(ctx, c, err)
	case resp.Status != http.StatusOK:
		return nil, 0, x.errorAnswer(c, resp, body)
	}
	o := &kept.object
	if o.Reset(body) != nil {
		return nil, 0, result{verdict: failed, reason: "error:answer", problem: openai.BadGateway("the prefiller's answer cannot be read")}
	}
	f := inspect(o, resp.Status)
	line.Output = f.completion
	if raw := o.Raw("kv_transfer_params"); len(raw) > 2 && raw[0] == '{' && filled(raw) {
		params = bytes.Clone(raw)
	}
	return params, f.cached, result{verdict: served}
}

// decodeLeg sends the client's body with the Prefiller's parameters to a Decoder.
func (x *exchange) decodeLeg(target route.Target, params json.RawMessage, cached int) result {
	x.legsD++
	c := call{leg: route.LegDecode, id: numbered(x.id, "d", x.legsD), target: target, limit: x.p.cfg.FirstTimeout}
	if params != nil {
		c.edits = []splice.Edit{splice.Set("kv_transfer_params", params)}
	} else {
		c.edits = []splice.Edit{splice.Delete("kv_transfer_params")}
	}
	x.askTokens(x.p.backend(target.Decoder), &c)
	return x.answerFrom(c, relayMode{cached: cached, rewriteCached: true})
}
