package proxy

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/sluice-serving/sluice/internal/openai"
	"github.com/sluice-serving/sluice/proxy/route"
)

// Members is a set of instances, as the watched file holds it.
type Members struct {
	Prefillers []string       `yaml:"prefillers"`
	Decoders   []MemberNumber `yaml:"decoders"`
}

// MemberNumber is one Decoder of a set.
type MemberNumber struct {
	Addr  string `yaml:"addr"`
	Ranks int    `yaml:"ranks,omitempty"`
	Pool  string `yaml:"pool,omitempty"`
}

// readyTimeout bounds one readiness request to an instance that joins.
const readyTimeout = 5 * time.Second

// join lets an instance join once it is ready: it answers GET /v1/models. It
// is asked again at the interval of the configuration and given up after the
// configured number of tries.
func (p *Proxy) join(ctx context.Context, kind string, d Decoder) {
	for try := range p.cfg.JoinTries {
		if try > 0 && !sleep(ctx, p.cfg.JoinInterval) {
			return
		}
		ready, cancel := context.WithTimeout(ctx, readyTimeout)
		_, ok := p.modelsOf(ready, d.Addr)
		cancel()
		if !ok {
			continue
		}
		p.mu.Lock()
		var err error
		if kind == "prefill" {
			err = p.router.AddPrefiller(d.Addr)
		} else {
			err = p.addDecoder(d)
		}
		p.mu.Unlock()
		if err != nil {
			p.cfg.Logger.Warn("an instance could not join", "kind", kind, "instance", d.Addr, "err", err)
			return
		}
		p.cfg.Logger.Info("an instance joined", "kind", kind, "instance", d.Addr)
		return
	}
	p.cfg.Logger.Warn("an instance did not become ready and is dropped", "kind", kind, "instance", d.Addr)
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

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

// watchFile follows the instances file: who is new joins when ready, who is no
// longer there is removed. A file that cannot be read changes nothing.
func (p *Proxy) watchFile(ctx context.Context) {
	var last string
	for {
		raw, err := os.ReadFile(p.cfg.InstancesFile)
		if text := string(raw); err == nil && text != last {
			last = text
			if m, err := ReadMembers(strings.NewReader(text)); err != nil {
				p.cfg.Logger.Error("the instances file is not used", "file", p.cfg.InstancesFile, "err", err)
			} else {
				p.reconcile(m)
			}
		}
		if !sleep(ctx, p.cfg.WatchEvery) {
			return
		}
	}
}

// ReadMembers reads and checks a set of instances.
func ReadMembers(src io.Reader) (Members, error) {
	dec := yaml.NewDecoder(src)
	dec.KnownFields(true)
	var m Members
	if err := dec.Decode(&m); err != nil && !errors.Is(err, io.EOF) {
		return m, err
	}
	var errs []error
	for _, a := range m.Prefillers {
		if err := CheckAddress(a); err != nil {
			errs = append(errs, fmt.Errorf("prefiller %q: %w", a, err))
		}
	}
	for _, d := range m.Decoders {
		if err := CheckAddress(d.Addr); err != nil {
			errs = append(errs, fmt.Errorf("decoder %q: %w", d.Addr, err))
		}
	}
	return m, errors.Join(errs...)
}

// reconcile makes the fleet that of the set.
func (p *Proxy) reconcile(m Members) {
	s := p.Snapshot()
	have := map[string]bool{}
	for _, q := range s.Prefillers {
		have["prefill "+q.Name] = !q.Draining
		if !slices.Contains(m.Prefillers, q.Name) && !q.Draining {
			p.logged("remove", p.remove(change{Type: "prefill"}, q.Name))
		}
	}
	for _, d := range s.Decoders {
		have["decode "+d.Name] = !d.Draining
		if !slices.ContainsFunc(m.Decoders, func(n MemberNumber) bool { return n.Addr == d.Name }) && !d.Draining {
			p.logged("remove", p.remove(change{Type: "decode"}, d.Name))
		}
	}
	for _, a := range m.Prefillers {
		if !have["prefill "+a] {
			p.logged("add", p.add(change{Type: "prefill"}, a))
		}
	}
	for _, n := range m.Decoders {
		if !have["decode "+n.Addr] {
			p.logged("add", p.add(change{Type: "decode", Ranks: n.Ranks, Pool: n.Pool}, n.Addr))
		}
	}
}

func (p *Proxy) logged(what string, err error) {
	if err != nil {
		p.cfg.Logger.Warn("an instance of the file could not be changed", "change", what, "err", err)
	}
}
