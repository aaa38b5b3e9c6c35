package proxy

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/sluice-serving/sluice/internal/openai"
	"github.com/sluice-serving/sluice/proxy/route"
)

// change is the body of the instance calls.
type change struct {
	Type      string    `json:"type"` // prefill or decode
	Instances addresses `json:"instances"`
	Ranks     int       `json:"ranks"`
	Pool      string    `json:"pool"`
}

// addresses is one address or a list of them.
type addresses []string

// UnmarshalJSON accepts a string or a list of strings.
func (a *addresses) UnmarshalJSON(b []byte) error {
	var one string
	if json.Unmarshal(b, &one) == nil {
		*a = addresses{one}
		return nil
	}
	return json.Unmarshal(b, (*[]string)(a))
}

// Admin is the HTTP surface of the admin listener. Every path but the status
// page itself, which holds no data, asks for the token.
func (p *Proxy) Admin(token string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /instances/add", p.changeInstances(p.add))
	mux.HandleFunc("POST /instances/remove", p.changeInstances(p.remove))
	mux.HandleFunc("POST /instances/drain", p.changeInstances(p.drain))
	mux.HandleFunc("GET /status", p.status)
	mux.Handle("GET /metrics", p.metrics.handler())
	want := sha256.Sum256([]byte(token))
	ui := page()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && (r.URL.Path == "/ui" || r.URL.Path == "/ui/") {
			ui(w, r)
			return
		}
		scheme, given, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		got := sha256.Sum256([]byte(given))
		if token == "" || !strings.EqualFold(scheme, "bearer") || subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
			w.Header().Set("WWW-Authenticate", "Bearer")
			openai.Unauthorized().Write(w)
			return
		}
		if _, pattern := mux.Handler(r); pattern == "" {
			openai.NotFound("there is no %s %s here", r.Method, printable(r.URL.Path, 100)).Write(w)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

func (p *Proxy) changeInstances(do func(change, string) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var c change
		dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&c); err != nil {
			openai.BadRequest("", "the body cannot be read: %v", err).Write(w)
			return
		}
		if c.Type != "prefill" && c.Type != "decode" {
			openai.BadRequest("type", "type %q: give prefill or decode", printable(c.Type, 40)).Write(w)
			return
		}
		if len(c.Instances) == 0 {
			openai.BadRequest("instances", "no instance is given").Write(w)
			return
		}
		for _, addr := range c.Instances {
			if err := CheckAddress(addr); err != nil {
				openai.BadRequest("instances", "%s: %v", printable(addr, 100), err).Write(w)
				return
			}
		}
		var errs []error
		for _, addr := range c.Instances {
			errs = append(errs, do(c, addr))
		}
		prefillers, decoders := p.instances()
		if err := errors.Join(errs...); err != nil {
			status := openai.BadRequest("instances", "%v", err)
			if errors.Is(err, route.ErrInstanceUnknown) {
				status = openai.NotFound("%v", err)
			}
			status.Write(w)
			return
		}
		openai.WriteJSON(w, http.StatusOK, struct {
			Message    string   `json:"message"`
			Prefillers []string `json:"current_prefill_instances"`
			Decoders   []string `json:"current_decode_instances"`
		}{"ok", prefillers, decoders})
	}
}

func (p *Proxy) add(c change, addr string) error {
	if _, ok := p.cfg.Pools[c.Pool]; !ok && c.Pool != "" {
		return fmt.Errorf("there is no pool %q", printable(c.Pool, 40))
	}
	if c.Ranks < 0 || c.Ranks > 1024 {
		return fmt.Errorf("%d ranks", c.Ranks)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return errors.New("the proxy is shutting down")
	}
	p.own.Go(func() { p.join(p.ctx, c.Type, Decoder{Addr: addr, Ranks: c.Ranks, Pool: c.Pool}) })
	return nil
}

func (p *Proxy) remove(c change, addr string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.Type == "prefill" {
		return p.router.RemovePrefiller(addr)
	}
	return p.router.RemoveDecoder(addr)
}

func (p *Proxy) drain(c change, addr string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.Type == "prefill" {
		return p.router.DrainPrefiller(addr)
	}
	return p.router.DrainDecoder(addr)
}
