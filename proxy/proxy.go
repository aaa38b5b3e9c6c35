package proxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	spans "go.opentelemetry.io/otel/trace"

	"github.com/sluice-serving/sluice/internal/openai"
	"github.com/sluice-serving/sluice/proxy/route"
	"github.com/sluice-serving/sluice/proxy/socket"
	"github.com/sluice-serving/sluice/proxy/wire"
)

// Proxy is the front door. New makes it, Handler serves it, Close ends it
// after the HTTP server has been shut down.
type Proxy struct {
	cfg     Config
	pool    *wire.Pool
	metrics *metrics
	trace   *tracer
	spans   spans.Tracer // nil when spans are not recorded
	mux     *http.ServeMux
	posts   map[string]http.HandlerFunc // of the paths whose requests are turns

	mu     sync.Mutex // guards router, pools, joins, closed
	router *route.Router
	pools  map[string]*Backend // of the Decoders, by address
	joins  joins
	closed bool
	turns  sync.WaitGroup // requests inside the handler

	shared  *shared
	lookup  func(ctx context.Context, host string) ([]string, error)
	try     bool // follow-ups of unknown sessions are attempted
	gate    *gate
	pushes  pushes
	pumps   pumps
	kept    keptTurns
	last    decisions
	full    sync.Map // share of FULL graph steps by Decoder address, as scraped
	started time.Time

	ctx  context.Context // of the proxy's own goroutines
	stop context.CancelFunc
	own  sync.WaitGroup
}

// New makes a Proxy; the error joins all that is wrong with the configuration.
func New(cfg Config) (*Proxy, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if (cfg.StoreURL != "" && cfg.Store == nil) || (cfg.MembershipURL != "" && cfg.Membership == nil) {
		return nil, errors.New("a session store or membership is named and not opened")
	}
	cfg = cfg.withDefaults()
	p := &Proxy{cfg: cfg, pools: map[string]*Backend{}, joins: joins{}, started: time.Now(), lookup: net.DefaultResolver.LookupHost}
	try := cfg.Unknown == UnknownTry || (cfg.Unknown == UnknownAuto && cfg.Placement == route.PlaceHash)
	p.try = try
	p.router = route.New(route.Config{
		Append: cfg.Append, Placement: cfg.Placement, TryUnknown: try,
		MaxSessions: cfg.MaxSessions, SessionTTL: cfg.SessionTTL, Breaker: cfg.Breaker,
	})
	for _, addr := range cfg.Prefillers {
		if err := p.router.AddPrefiller(addr); err != nil {
			return nil, err
		}
	}
	for _, d := range cfg.Decoders {
		if err := p.addDecoder(d); err != nil {
			return nil, err
		}
	}
	p.pool = wire.New(wire.Config{Dial: cfg.ConnectTimeout, TLS: cfg.BackendTLS})
	if cfg.TraceFile != "" {
		t, err := newTracer(cfg.TraceFile)
		if err != nil {
			return nil, err
		}
		p.trace = t
	}
	p.metrics = newMetrics(p)
	if cfg.Store != nil {
		p.shared = &shared{p: p, store: cfg.Store, limit: cfg.StoreTimeout}
	}
	if cfg.Tracing != nil {
		p.spans = cfg.Tracing.Tracer("github.com/sluice-serving/sluice/proxy")
	}
	p.gate = newGate(cfg.TenantConcurrency, cfg.TenantQueue, cfg.QueueTimeout)
	p.ctx, p.stop = context.WithCancel(context.Background())
	p.routes()
	if cfg.ScrapeEvery > 0 {
		p.own.Go(func() { p.watchLoad(p.ctx) })
	}
	p.own.Go(func() { p.watchNames(p.ctx) })
	if cfg.InstancesFile != "" {
		p.own.Go(func() { p.watchFile(p.ctx) })
	}
	if cfg.Membership != nil {
		p.own.Go(func() { p.watchMembership(p.ctx) })
	}
	return p, nil
}

// addDecoder lets a Decoder join with the backend of its pool.
func (p *Proxy) addDecoder(d Decoder) error {
	b := &p.cfg.Backend
	if d.Pool != "" {
		pool, ok := p.cfg.Pools[d.Pool]
		if !ok {
			return fmt.Errorf("decoder %s: there is no pool %q", d.Addr, d.Pool)
		}
		b = &pool
	}
	if err := p.router.AddDecoder(route.DecoderSpec{Name: d.Addr, Ranks: d.Ranks, Guard: b.Guard}); err != nil {
		return err
	}
	p.pools[d.Addr] = b
	return nil
}

// backend is how the Decoder at that address is asked and refuses.
func (p *Proxy) backend(addr string) *Backend {
	p.mu.Lock()
	defer p.mu.Unlock()
	if b := p.pools[addr]; b != nil {
		return b
	}
	return &p.cfg.Backend
}

// Close ends the proxy's goroutines and connections; it waits for the requests
// that are still inside the handler. Requests that come later get a 503.
func (p *Proxy) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.stop()
	p.turns.Wait()
	p.own.Wait()
	p.pool.CloseIdle()
	p.pumps.close()
	return p.trace.close()
}

// enter admits a request to the handler; false once the proxy is closed.
func (p *Proxy) enter() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.turns.Add(1)
	return true
}

func (p *Proxy) routes() {
	p.mux = http.NewServeMux()
	p.posts = map[string]http.HandlerFunc{}
	for _, at := range []endpoint{completions, chat, responses, messages} {
		p.posts[at.path] = p.turn(at)
	}
	p.mux.HandleFunc("GET /v1/models", p.models)
	p.mux.HandleFunc("DELETE /v1/sessions/{id...}", p.endSession)
	p.mux.HandleFunc("GET /health", p.health)
	p.mux.HandleFunc("GET /healthcheck", p.healthcheck)
	p.mux.HandleFunc("POST /reset_prefix_cache", p.resetPrefixCache)
	p.mux.HandleFunc("GET /metrics", p.metricsPage)
	if p.cfg.Metaserver != "" {
		p.mux.HandleFunc("POST /v1/metaserver", p.metaserver)
	}
}

// methods are the allowed methods of the paths that have a route.
var methods = map[string]string{
	"/v1/completions": "POST", "/v1/chat/completions": "POST", "/v1/responses": "POST", "/v1/messages": "POST", "/v1/models": "GET", "/health": "GET",
	"/healthcheck": "GET", "/reset_prefix_cache": "POST", "/metrics": "GET",
}

// Handler is the HTTP surface. Unknown paths and wrong methods are answered in
// the OpenAI error shape.
func (p *Proxy) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !p.enter() {
			openai.Unavailable(1, "the proxy is shutting down").Write(w)
			return
		}
		defer p.turns.Done()
		if h := p.posts[r.URL.Path]; h != nil && r.Method == http.MethodPost {
			h(w, r)
			return
		}
		if _, pattern := p.mux.Handler(r); pattern == "" {
			if allow, ok := methods[r.URL.Path]; ok && r.Method != allow {
				w.Header().Set("Allow", allow)
				openai.MethodNotAllowed(r.Method, r.URL.Path).Write(w)
				return
			}
			openai.NotFound("there is no %s here", printable(r.URL.Path, 100)).Write(w)
			return
		}
		p.mux.ServeHTTP(w, r)
	})
}

// Server is an http.Server for the proxy with its limits set. The caller
// serves and shuts it down, then calls Close.
func (p *Proxy) Server() *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Protocols:         protocols,
		TLSConfig:         p.cfg.TLS,
		ErrorLog:          slog.NewLogLogger(p.cfg.Logger.Handler(), slog.LevelDebug),
		Handler:           p.Handler(),
		MaxHeaderBytes:    p.cfg.MaxHeader,
		ReadHeaderTimeout: p.cfg.BodyTimeout,
		IdleTimeout:       3 * time.Minute,
		ConnContext:       withConn,
	}
}

// Serve serves on the listener until the context ends, then stops taking
// connections, gives running requests the time grace to finish and closes the
// proxy.
func (p *Proxy) Serve(ctx context.Context, l net.Listener, grace time.Duration) error {
	srv := p.Server()
	l = socket.Listen(l)
	if p.cfg.MaxConnections > 0 {
		l = newSeats(l, p.cfg.MaxConnections)
	}
	failed := make(chan error, 1)
	go func() {
		if p.cfg.TLS != nil {
			failed <- srv.ServeTLS(l, "", "")
		} else {
			failed <- srv.Serve(shaping{l})
		}
	}()
	var err error
	select {
	case err = <-failed:
	case <-ctx.Done():
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
		if shut := srv.Shutdown(limit); shut != nil {
			p.cfg.Logger.Warn("requests were cut at shutdown", "grace", grace)
			_ = srv.Close() // what is left was given its time
		}
		cancel()
		err = <-failed
	}
	if errors.Is(err, http.ErrServerClosed) {
		err = nil
	}
	return errors.Join(err, p.Close())
}

// Snapshot is the router's state.
func (p *Proxy) Snapshot() route.Snapshot {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.router.Snapshot(time.Now())
}

// printable is a text cut to n bytes without control characters, for messages.
func printable(s string, n int) string {
	cut := len(s) > n
	if cut {
		s = s[:n]
	}
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == '\uFFFD' {
			return '?'
		}
		return r
	}, s)
	if cut {
		s += "…"
	}
	return s
}
