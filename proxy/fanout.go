package proxy

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/sluice-serving/sluice/internal/openai"
	"github.com/sluice-serving/sluice/proxy/route"
	"github.com/sluice-serving/sluice/proxy/wire"
)

// probeTimeout bounds each of the small requests to backends that are no legs.
const probeTimeout = 3 * time.Second

// instances lists the addresses of all instances, Prefillers first.
func (p *Proxy) instances() (prefillers, decoders []string) {
	s := p.Snapshot()
	for _, q := range s.Prefillers {
		prefillers = append(prefillers, q.Name)
	}
	for _, d := range s.Decoders {
		decoders = append(decoders, d.Name)
	}
	return prefillers, decoders
}

// small sends a request without a body. It carries the proxy's key, or, where
// clients' keys are passed on, that of the client that asked; nil is none.
func (p *Proxy) small(ctx context.Context, from *http.Request, method, addr, path, query string) (*wire.Response, error) {
	req := &wire.Request{Method: method, Addr: addr, Path: path}
	if query != "" {
		req.Path += "?" + query
	}
	key := ""
	switch {
	case p.cfg.PassAuthorization:
		if from != nil {
			key = from.Header.Get("Authorization")
		}
	case p.cfg.APIKey != "":
		key = "Bearer " + p.cfg.APIKey
	}
	if key != "" {
		req.Header = append(req.Header, wire.Field{Name: "Authorization", Value: key})
	}
	return p.pool.Do(ctx, req)
}

// models answers with the list of the first instance that gives one.
func (p *Proxy) models(w http.ResponseWriter, r *http.Request) {
	if _, problem := p.tenant(r); problem != nil {
		problem.Write(w)
		return
	}
	prefillers, decoders := p.instances()
	for _, addr := range append(prefillers, decoders...) {
		if body, status := p.modelsOf(r.Context(), r, addr); status == http.StatusOK {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(body) // a client that has gone away needs no answer
			return
		}
	}
	openai.Unavailable(1, "no instance answers").Write(w)
}

// modelsOf gives an instance's list and the status of its answer; 0 is none.
func (p *Proxy) modelsOf(ctx context.Context, from *http.Request, addr string) ([]byte, int) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	resp, err := p.small(ctx, from, http.MethodGet, addr, "/v1/models", "")
	if err != nil {
		return nil, 0
	}
	defer resp.Close()
	body, err := io.ReadAll(io.LimitReader(resp, 1<<20))
	if err != nil {
		return nil, 0
	}
	return body, resp.Status
}

// health answers 200 while the proxy serves; it asks no backend.
func (p *Proxy) health(w http.ResponseWriter, _ *http.Request) {
	w.WriteHeader(http.StatusOK)
}

// metricsPage names instances: where keys are checked it asks for one.
func (p *Proxy) metricsPage(w http.ResponseWriter, r *http.Request) {
	if _, problem := p.tenant(r); problem != nil {
		problem.Write(w)
		return
	}
	p.metrics.handler().ServeHTTP(w, r)
}

// healthcheck answers with counts; it asks no backend.
func (p *Proxy) healthcheck(w http.ResponseWriter, _ *http.Request) {
	s := p.Snapshot()
	openai.WriteJSON(w, http.StatusOK, struct {
		Status    string `json:"status"`
		Prefill   int    `json:"prefill_instances"`
		Decode    int    `json:"decode_instances"`
		RequestNo int    `json:"request_num"`
	}{"ok", len(s.Prefillers), len(s.Decoders), s.OpenTurns})
}

// resetPrefixCache fans out to all instances with the client's query: 200 when
// all did it, else 500 with those that failed.
func (p *Proxy) resetPrefixCache(w http.ResponseWriter, r *http.Request) {
	if _, problem := p.tenant(r); problem != nil {
		problem.Write(w)
		return
	}
	prefillers, decoders := p.instances()
	all := append(prefillers, decoders...)
	ok := make([]bool, len(all))
	ctx, cancel := context.WithTimeout(r.Context(), 10*probeTimeout)
	defer cancel()
	var group sync.WaitGroup
	for i, addr := range all {
		group.Go(func() {
			resp, err := p.small(ctx, r, http.MethodPost, addr, "/reset_prefix_cache", r.URL.RawQuery)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, io.LimitReader(resp, 64<<10)) // so that the connection can be used again
			resp.Close()
			ok[i] = resp.Status/100 == 2
		})
	}
	group.Wait()
	failed := []string{}
	for i, addr := range all {
		if !ok[i] {
			failed = append(failed, "http://"+addr+"/reset_prefix_cache")
		}
	}
	if len(failed) > 0 {
		openai.WriteJSON(w, http.StatusInternalServerError, map[string][]string{"failed": failed})
		return
	}
	w.WriteHeader(http.StatusOK)
}

// endSession forgets a session of the caller's tenant, and tells its owner.
func (p *Proxy) endSession(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	if id == "" {
		openai.BadRequest("id", "the session id is empty").Write(w)
		return
	}
	tenant, problem := p.tenant(r)
	if problem != nil {
		problem.Write(w)
		return
	}
	key := route.KeyOf(tenant, id)
	p.mu.Lock()
	owner, _, owned := p.router.Owner(key)
	known := p.router.EndSession(key)
	p.mu.Unlock()
	if p.shared != nil { // another replica may know it
		known = p.shared.ask(r.Context(), "delete", func(ctx context.Context) error { return p.shared.store.Delete(ctx, storeKey(key)) }) || known
	}
	if owned && p.backend(owner.Decoder).Name == "sluice" { // others have no such path
		p.tellEnd(r, owner.Decoder, scopedSession(tenant, id, key))
	}
	if !known {
		openai.NotFound("the session is not known").Write(w)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// tellEnd tells a Decoder that a session is over, so that it keeps nothing for
// its next turn. One that does not hear it does so when its lease ends.
func (p *Proxy) tellEnd(from *http.Request, decoder, session string) {
	ctx, cancel := context.WithTimeout(from.Context(), probeTimeout)
	defer cancel()
	resp, err := p.small(ctx, from, http.MethodDelete, decoder, "/v1/sessions/"+url.PathEscape(session), "")
	if err != nil {
		return
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(resp, 64<<10)) // so that the connection can be used again
	resp.Close()
}
