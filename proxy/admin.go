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
	return p.begin(c.Type, Decoder{Addr: addr, Ranks: c.Ranks, Pool: c.Pool}, someTries)
}

// begin checks what is said of an instance and asks it until it is ready.
func (p *Proxy) begin(kind string, d Decoder, how patience) error {
	if _, ok := p.cfg.Pools[d.Pool]; !ok && d.Pool != "" {
		return fmt.Errorf("there is no pool %q", printable(d.Pool, 40))
	}
	if d.Ranks < 0 || d.Ranks > 1024 {
		return fmt.Errorf("%d ranks", d.Ranks)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return errors.New("the proxy is shutting down")
	}
	if j := p.joins[[2]string{kind, d.Addr}]; j != nil && j.d == d && j.how == whileInSet {
		return nil // it is being asked
	}
	p.startJoin(kind, d, how)
	return nil
}

// remove also ends the wait for an instance that is not ready yet.
func (p *Proxy) remove(c change, addr string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := [2]string{c.Type, addr}
	j := p.joins[key]
	if j != nil {
		j.cancel()
		delete(p.joins, key)
	}
	var err error
	if c.Type == "prefill" {
		err = p.router.RemovePrefiller(addr)
	} else {
		err = p.router.RemoveDecoder(addr)
	}
	if j != nil && errors.Is(err, route.ErrInstanceUnknown) {
		return nil
	}
	return err
}

func (p *Proxy) drain(c change, addr string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.Type == "prefill" {
		return p.router.DrainPrefiller(addr)
	}
	return p.router.DrainDecoder(addr)
}
