package proxy

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/sluice-serving/sluice/proxy/route"
)

// Decoder is one Decoder address and the data-parallel ranks behind it.
type Decoder struct {
	Addr  string // host:port
	Ranks int    // 0 means 1
	Pool  string // name of its pool; empty means the default backend
}

// Config sets a Proxy. The zero value of every field but the instances means
// the default that its comment states.
type Config struct {
	Prefillers []string // host:port
	Decoders   []Decoder

	// Append switches Decoder Append-Prefill on.
	Append bool
	// Sources are the places that name a session, in order; nil means the
	// header X-Session-ID, then the body member conversation_id.
	Sources []route.Source
	// Placement chooses the rank of a session without an owner.
	Placement route.Placement
	// Unknown says what happens to follow-ups of unknown sessions.
	Unknown UnknownPolicy
	// Store keeps the owners of sessions for all replicas; nil keeps them in this
	// proxy alone. Its time to live should be SessionTTL.
	Store Store
	// StoreURL and MembershipURL name what Store and Membership are opened from.
	// New needs those; the URLs serve the configuration file and its check.
	StoreURL, MembershipURL string
	// StoreTimeout bounds one call of it; 0 means 250 ms. While it does not
	// answer sessions are placed by their hash.
	StoreTimeout time.Duration
	// SessionTTL is how long an unused session is remembered; 0 means 1 h.
	SessionTTL time.Duration
	// MaxSessions bounds the owner table; 0 means 1,000,000.
	MaxSessions int
	// Backend says how a Decoder without a pool is asked for an attempt and how
	// it refuses; the zero value means the preset "sluice".
	Backend Backend
	// Pools are the backends of the Decoders that name one.
	Pools   map[string]Backend
	Breaker route.BreakerConfig

	// Metaserver is the URL of the proxy's path /v1/metaserver as the Decoders of
	// pools in push mode reach it; needed when there is one.
	Metaserver string

	// APIKey is sent to the backends as a bearer token; empty sends none.
	APIKey string
	// PassAuthorization sends the client's Authorization header to the
	// backends instead.
	PassAuthorization bool

	// MaxRetries is the number of P/D rounds for one request, each on
	// instances that have not failed it; 0 means 3.
	MaxRetries int
	// RetryDelay is the wait before the second round, doubled for each later
	// one; 0 means 1 ms.
	RetryDelay time.Duration

	MaxBody        int64         // bytes of a request body; 0 means 32 MiB
	MaxAnswer      int64         // bytes of an answer that is not streamed, and of one event; 0 means 64 MiB
	MaxHeader      int           // bytes of a request's header; 0 means 64 KiB
	ConnectTimeout time.Duration // to a backend; 0 means 5 s
	PrefillTimeout time.Duration // until a Prefiller has answered; 0 means 10 min
	FirstTimeout   time.Duration // until a Decoder answers at all; 0 means 10 min
	IdleTimeout    time.Duration // between two reads of an answer; 0 means 5 min
	ClientTimeout  time.Duration // for one write to a slow client; 0 means 30 s
	BodyTimeout    time.Duration // until a request's header and body are read; 0 means 60 s

	// MaxConnections bounds the connections of clients; 0 bounds nothing.
	MaxConnections int
	// TenantConcurrency bounds the requests of one tenant that are under way,
	// TenantQueue those that wait, QueueTimeout how long: beyond it the answer
	// is a 429. A TenantConcurrency of 0 bounds nothing; a QueueTimeout of 0
	// means 30 s. A tenant is an API key, or all requests without one.
	TenantConcurrency, TenantQueue int
	QueueTimeout                   time.Duration
	// Clients are the API keys that may use the proxy; none means that keys are
	// not checked.
	Clients Clients
	// TLS serves clients over TLS; nil serves them in plain.
	TLS *tls.Config
	// BackendTLS speaks TLS to every instance; nil speaks plain HTTP.
	BackendTLS *tls.Config

	// ScrapeEvery is how often the load gauges of instances are read; 0 means
	// 1 s, negative never.
	ScrapeEvery time.Duration
	// ResolveEvery is how often the names of instances are looked up again; 0
	// means 30 s.
	ResolveEvery time.Duration
	// InstancesFile is watched for the set of instances, beside those of the
	// configuration at the start; empty means none.
	InstancesFile string
	// Membership tells the set of instances while the proxy runs; nil for none.
	Membership Membership
	// WatchEvery is how often it is looked at; 0 means 1 s.
	WatchEvery time.Duration
	// JoinInterval and JoinTries say how often and how many times an instance
	// that joins is asked whether it is ready; 0 means 10 s and 3.
	JoinInterval time.Duration
	JoinTries    int

	// Tracing records a span per request and one per leg; nil records none. The
	// trace context of the client goes to all legs in any case.
	Tracing trace.TracerProvider
	// AccessLog logs a line per request.
	AccessLog bool
	// TraceFile is appended a JSON line per request; empty means none.
	TraceFile string
	// RouteHeader adds X-Sluice-Route with route and reason to answers.
	RouteHeader bool
	// Logger receives the rare messages of a proxy; nil is silent.
	Logger *slog.Logger
}

// UnknownPolicy says what happens to a follow-up, a body that holds an
// assistant message, whose session is unknown.
type UnknownPolicy uint8

// The policies.
const (
	// UnknownAuto is UnknownTry with PlaceHash and UnknownPD otherwise: only
	// the hash finds an owner that the table has forgotten.
	UnknownAuto UnknownPolicy = iota
	UnknownTry                // attempt it on the session's hash owner
	UnknownPD                 // ordinary P/D
)

func (c Config) withDefaults() Config {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	if c.Sources == nil {
		c.Sources = route.DefaultSources()
	}
	if c.Backend.Name == "" {
		b, err := Preset("sluice")
		if err != nil { // a preset of our own
			panic(err)
		}
		c.Backend = b
	}
	if c.MaxRetries == 0 {
		c.MaxRetries = route.DefaultRounds
	}
	if c.MaxBody == 0 {
		c.MaxBody = 32 << 20
	}
	if c.MaxAnswer == 0 {
		c.MaxAnswer = 64 << 20
	}
	if c.MaxHeader == 0 {
		c.MaxHeader = 64 << 10
	}
	if c.JoinTries == 0 {
		c.JoinTries = 3
	}
	if c.MaxSessions == 0 {
		c.MaxSessions = 1_000_000
	}
	c.Breaker = c.Breaker.WithDefaults()
	def(&c.SessionTTL, time.Hour)
	def(&c.ResolveEvery, 30*time.Second)
	def(&c.StoreTimeout, 250*time.Millisecond)
	def(&c.QueueTimeout, 30*time.Second)
	def(&c.ScrapeEvery, time.Second)
	def(&c.WatchEvery, time.Second)
	def(&c.JoinInterval, 10*time.Second)
	def(&c.RetryDelay, route.DefaultRetryDelay)
	def(&c.ConnectTimeout, 5*time.Second)
	def(&c.PrefillTimeout, 10*time.Minute)
	def(&c.FirstTimeout, 10*time.Minute)
	def(&c.IdleTimeout, 5*time.Minute)
	def(&c.ClientTimeout, 30*time.Second)
	def(&c.BodyTimeout, time.Minute)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// Validate joins everything that is wrong with the configuration.
func (c Config) Validate() error {
	var errs []error
	seen := map[string]string{}
	check := func(kind, addr string) {
		if err := CheckAddress(addr); err != nil {
			errs = append(errs, fmt.Errorf("%s %q: %w", kind, addr, err))
		}
		if seen[kind+addr] != "" {
			errs = append(errs, fmt.Errorf("%s %q is listed twice", kind, addr))
		}
		seen[kind+addr] = kind
	}
	if len(c.Prefillers) == 0 && c.InstancesFile == "" && c.Membership == nil && c.MembershipURL == "" {
		errs = append(errs, errors.New("no prefiller is given: name hosts and ports, an instances file or a membership"))
	}
	if len(c.Decoders) == 0 && c.InstancesFile == "" && c.Membership == nil && c.MembershipURL == "" {
		errs = append(errs, errors.New("no decoder is given: name hosts and ports, an instances file or a membership"))
	}
	for _, p := range c.Prefillers {
		check("prefiller", p)
	}
	for _, d := range c.Decoders {
		check("decoder", d.Addr)
		if d.Ranks < 0 {
			errs = append(errs, fmt.Errorf("decoder %q: %d ranks", d.Addr, d.Ranks))
		}
		if _, ok := c.Pools[d.Pool]; !ok && d.Pool != "" {
			errs = append(errs, fmt.Errorf("decoder %q: there is no pool %q", d.Addr, d.Pool))
		}
	}
	counts := map[string]int64{
		"max retries": int64(c.MaxRetries), "max body": c.MaxBody, "max answer": c.MaxAnswer, "max header": int64(c.MaxHeader), "max sessions": int64(c.MaxSessions),
		"max connections": int64(c.MaxConnections), "concurrency per tenant": int64(c.TenantConcurrency), "queue per tenant": int64(c.TenantQueue), "join tries": int64(c.JoinTries),
	}
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		if v := counts[name]; v < 0 {
			errs = append(errs, fmt.Errorf("%s is %d, must not be negative", name, v))
		}
	}
	times := map[string]time.Duration{
		"retry delay": c.RetryDelay, "session ttl": c.SessionTTL, "queue timeout": c.QueueTimeout, "watch interval": c.WatchEvery, "join interval": c.JoinInterval,
		"connect timeout": c.ConnectTimeout, "prefill timeout": c.PrefillTimeout, "first timeout": c.FirstTimeout, "idle timeout": c.IdleTimeout,
		"client timeout": c.ClientTimeout, "body timeout": c.BodyTimeout, "store timeout": c.StoreTimeout, "resolve interval": c.ResolveEvery,
	}
	for _, name := range slices.Sorted(maps.Keys(times)) {
		if v := times[name]; v < 0 {
			errs = append(errs, fmt.Errorf("%s is %v, must not be negative", name, v))
		}
	}
	push := c.Backend.Push
	for _, b := range c.Pools {
		push = push || b.Push
	}
	if err := checkMetaserver(c.Metaserver); err != nil && (push || c.Metaserver != "") {
		errs = append(errs, err)
	}
	if c.Backend.Name != "" {
		if err := c.Backend.Validate(); err != nil {
			errs = append(errs, fmt.Errorf("backend: %w", err))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Pools)) {
		b := c.Pools[name]
		if err := b.Validate(); err != nil {
			errs = append(errs, fmt.Errorf("pool %q: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// checkMetaserver reports what keeps Decoders from reaching a metaserver URL.
func checkMetaserver(s string) error {
	if s == "" {
		return errors.New("a pool in push mode needs the URL of the metaserver path")
	}
	u, err := url.Parse(s)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "" {
		return fmt.Errorf("metaserver %q is no URL that a decoder can reach", s)
	}
	host := u.Hostname()
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		return fmt.Errorf("metaserver %q: a decoder cannot reach an address that stands for all", s)
	}
	if strings.Trim(host, "0123456789.") == "" && net.ParseIP(host) == nil {
		return fmt.Errorf("metaserver %q: the host is digits but no address", s)
	}
	return nil
}

// CheckAddress reports what is wrong with a host:port; IPv6 literals stand in brackets.
func CheckAddress(addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return err
	}
	if host == "" {
		return errors.New("the host is empty")
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("port %q is not between 1 and 65535", port)
	}
	for _, c := range host {
		if c <= ' ' || c == '/' || c == '@' || c == '?' || c == '#' || c == '\\' || c > '~' {
			return fmt.Errorf("host %q holds %q", host, c)
		}
	}
	return nil
}
