package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-serving/sluice/internal/openai"
	"github.com/sluice-serving/sluice/proxy/route"
	"github.com/sluice-serving/sluice/proxy/splice"
)

// In push mode the Decoder is asked first. It allocates its blocks and posts
// them to the proxy's metaserver path, under the request id of its own; the
// proxy then sends the prompt to a Prefiller, which pushes the KV into those
// blocks layer by layer.

// pushed is one decode leg that waits for its Prefiller to be started.
type pushed struct {
	x      *exchange
	leg    string                  // X-Request-Id of the decode leg
	source []byte                  // the body, which outlives the decode leg's own hold on it
	want   int                     // prompts in the request, each posted by a child of its own
	fail   context.CancelCauseFunc // ends the decode leg; set before it is sent
	cached atomic.Int64

	mu       sync.Mutex
	posted   map[string]json.RawMessage
	order    []string
	dispatch *dispatch
}

// dispatch is one start of a Prefiller, which duplicate posts share.
type dispatch struct {
	done chan struct{}
	err  *openai.Error // set before done is closed
}

// pushes finds decode legs by their ids.
type pushes struct {
	mu   sync.Mutex
	legs map[string]*pushed
}

func (p *pushes) add(q *pushed) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.legs == nil {
		p.legs = map[string]*pushed{}
	}
	p.legs[q.leg] = q
}

func (p *pushes) remove(q *pushed) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.legs, q.leg)
}

// find gives the leg that an engine's request id belongs to: the engine puts a
// prefix before the id and numbers or random marks after it.
func (p *pushes) find(id string) *pushed {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, prefix := range []string{"chatcmpl-", "cmpl-", ""} {
		rest, ok := strings.CutPrefix(id, prefix)
		for ok && rest != "" {
			if q := p.legs[rest]; q != nil {
				return q
			}
			cut := strings.LastIndexByte(rest, '-')
			if cut < 0 {
				break
			}
			rest = rest[:cut]
		}
	}
	return nil
}

// errPrefillFailed ends a decode leg whose Prefiller could not be started.
var errPrefillFailed = errors.New("the prefiller could not be started")

// pushRound is one P/D round in push mode. The leg's id ends with what only the
// Decoder is told: a client that knows its own request id cannot post blocks in
// the Decoder's place and so have the Prefiller send KV to where it likes.
func (x *exchange) pushRound(target route.Target) result {
	x.legsD++
	q := &pushed{x: x, leg: numbered(x.id, "d", x.legsD) + "-" + randomHex(16), want: x.prompts(), posted: map[string]json.RawMessage{}}
	q.source = x.body.Source()
	x.memory = nil // the body's memory may outlive this leg: it is not used again
	params, err := json.Marshal(map[string]any{"do_remote_decode": false, "do_remote_prefill": true, "metaserver": x.p.cfg.Metaserver})
	if err != nil { // texts always encode
		panic(err)
	}
	c := call{leg: route.LegDecode, id: q.leg, target: target, limit: x.p.cfg.PrefillTimeout + x.p.cfg.FirstTimeout, edits: []splice.Edit{splice.Set("kv_transfer_params", params)}}
	x.askTokens(x.p.backend(target.Decoder), &c)
	res := x.answerFrom(c, relayMode{rewriteCached: true, push: q})
	q.mu.Lock()
	d := q.dispatch
	q.mu.Unlock()
	if d != nil {
		select {
		case <-d.done:
			if d.err != nil && res.verdict == failed {
				res.problem, res.reason = d.err, "error:prefill"
			}
		default: // the Prefiller is still at work on what nobody waits for
		}
	}
	return res
}

// metaserver takes a Decoder's blocks and starts the Prefiller.
func (p *Proxy) metaserver(w http.ResponseWriter, r *http.Request) {
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 16<<20))
	if err != nil {
		openai.BodyTooLarge(16 << 20).Write(w)
		return
	}
	o, err := splice.Parse(raw)
	if err != nil {
		openai.BadRequest("", "the body cannot be read: %v", err).Write(w)
		return
	}
	id, _ := o.String("request_id")
	q := p.pushes.find(id)
	if q == nil {
		openai.NotFound("there is no such request").Write(w)
		return
	}
	if problem := q.post(r.Context(), id, o.Source()); problem != nil {
		problem.Write(w)
		return
	}
	openai.WriteJSON(w, http.StatusOK, map[string]string{"status": "ok"})
}

// post notes one child's blocks. The one that completes the set starts the
// Prefiller; all wait for how that ends.
func (q *pushed) post(ctx context.Context, id string, params []byte) *openai.Error {
	q.mu.Lock()
	if q.posted[id] == nil {
		q.order = append(q.order, id)
	}
	q.posted[id] = params
	if len(q.posted) < q.want {
		q.mu.Unlock()
		return nil
	}
	d := q.dispatch
	mine := d == nil || d.failed()
	if mine {
		d = &dispatch{done: make(chan struct{})}
		q.dispatch = d
	}
	edits := q.params()
	q.mu.Unlock()
	if mine {
		d.err = q.start(edits)
		close(d.done)
		if d.err != nil {
			q.fail(errPrefillFailed) // the Decoder would wait for ever
		}
		return d.err
	}
	select {
	case <-d.done:
		return d.err
	case <-ctx.Done():
		return openai.BadGateway("the wait was given up")
	}
}

// failed reports whether the dispatch has ended without success.
func (d *dispatch) failed() bool {
	select {
	case <-d.done:
		return d.err != nil
	default:
		return false
	}
}

// params are the transfer parameters of the prefill leg: those of the one
// child, or of the first with those of all beside them.
func (q *pushed) params() []splice.Edit {
	edits := []splice.Edit{splice.Set("kv_transfer_params", q.posted[q.order[0]]), splice.Delete("return_token_ids")} // see notPrefilled
	if len(q.order) > 1 {
		all, err := json.Marshal(q.posted)
		if err != nil { // checked JSON always encodes
			panic(err)
		}
		edits = append(edits, splice.Set("batch_kv_transfer_params", all))
	}
	return edits
}

// start sends the prompt to a Prefiller and waits until it is computed.
func (q *pushed) start(params []splice.Edit) *openai.Error {
	p, t := q.x.p, q.x.turn
	body, err := splice.Parse(q.source)
	if err != nil { // it was checked when it came
		panic(err)
	}
	problem := openai.Unavailable(1, "no prefiller can take the request")
	for try := range p.cfg.MaxRetries {
		p.mu.Lock()
		addr, ok := p.router.Prefiller(time.Now(), t)
		p.mu.Unlock()
		if !ok {
			return problem
		}
		id := numbered(q.x.id, "p", try+1)
		leg := &exchange{p: p, r: q.x.r, at: q.x.at, path: q.x.path, body: body, session: q.x.session, key: q.x.key, tenant: q.x.tenant, trace: q.x.trace, turn: t, id: q.x.id}
		leg.out = answer{w: discard{http.Header{}}, flush: http.NewResponseController(discard{})}
		leg.w = leg.out.w
		_, cached, res := leg.prefillLeg(addr, id, params)
		q.cached.Store(int64(cached))
		p.mu.Lock()
		q.x.pushLegs = append(q.x.pushLegs, leg.line.Legs...)
		q.x.pushP = addr
		p.mu.Unlock()
		switch res.verdict {
		case served:
			p.mu.Lock()
			p.router.Prefilled(time.Now(), t)
			p.mu.Unlock()
			return nil
		case failed:
			problem = res.problem
			leg.exclude(addr)
		default:
			return openai.BadGateway("the prefiller refused the request with status %d", leg.out.status)
		}
	}
	return problem
}

// discard is the answer of a leg that no client waits for.
type discard struct{ h http.Header }

// Header implements http.ResponseWriter.
func (d discard) Header() http.Header { return d.h }

// Write implements http.ResponseWriter.
func (d discard) Write(p []byte) (int, error) { return len(p), nil }

// WriteHeader implements http.ResponseWriter.
func (d discard) WriteHeader(int) {}
