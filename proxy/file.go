package proxy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/sluice-serving/sluice/proxy/route"
)

// File is the configuration file of a proxy, as YAML with strict keys. A key
// that is absent leaves the default.
type File struct {
	Listen        string     `yaml:"listen,omitempty"`         // host:port
	Metaserver    string     `yaml:"metaserver_url,omitempty"` // as Decoders in push mode reach it
	AppendPrefill bool       `yaml:"append_prefill"`
	Prefillers    []string   `yaml:"prefillers"` // host:port
	Decoders      []FilePool `yaml:"decoders"`

	Sessions FileSessions `yaml:"sessions,omitempty"`
	Retry    FileRetry    `yaml:"retry,omitempty"`
	Limits   FileLimits   `yaml:"limits,omitempty"`
	Timeouts FileTimeouts `yaml:"timeouts,omitempty"`
	Breaker  FileBreaker  `yaml:"breaker,omitempty"`
	Admin    FileAdmin    `yaml:"admin,omitempty"`
	TLS      FileTLS      `yaml:"tls,omitempty"`
	Keys     FileKeys     `yaml:"keys,omitempty"`

	InstancesFile string   `yaml:"instances_file,omitempty"` // watched
	Membership    string   `yaml:"membership,omitempty"`     // URL of a set of instances that is followed
	Join          FileJoin `yaml:"join,omitempty"`
	ResolveEvery  Duration `yaml:"resolve_every,omitempty"`
	ScrapeEvery   Duration `yaml:"scrape_every,omitempty"` // negative switches the load scrape off
	TraceFile     string   `yaml:"trace_file,omitempty"`
	RouteHeader   bool     `yaml:"route_header,omitempty"`
	LogLevel      string   `yaml:"log_level,omitempty"`
	AccessLog     bool     `yaml:"access_log,omitempty"`
	Drain         Duration `yaml:"drain_timeout,omitempty"`
}

// FilePool is one pool of Decoders.
type FilePool struct {
	Pool      string     `yaml:"pool,omitempty"` // name; empty for the default pool
	Backend   string     `yaml:"backend,omitempty"`
	Mode      string     `yaml:"mode,omitempty"` // pull or push
	Both      bool       `yaml:"bidirectional_kv_xfer,omitempty"`
	Instances []FileNode `yaml:"instances"`
	Ranks     int        `yaml:"ranks,omitempty"` // of instances that name none

	Attempt  *FileAttempt  `yaml:"attempt,omitempty"`  // replaces the preset's
	Prefill  *FilePrefill  `yaml:"prefill,omitempty"`  // replaces the preset's
	Refusals []FileRefusal `yaml:"refusals,omitempty"` // replace the preset's
	Guard    *FileGuard    `yaml:"guard,omitempty"`    // replaces the preset's, key by key
	Continue *bool         `yaml:"continue_recomputed,omitempty"`
	Broken   *bool         `yaml:"continue_broken,omitempty"`
}

// FileNode is one Decoder: an address, or an address with its ranks.
type FileNode struct {
	Addr  string `yaml:"addr"`
	Ranks int    `yaml:"ranks,omitempty"`
}

// UnmarshalYAML accepts a plain address too.
func (n *FileNode) UnmarshalYAML(node *yaml.Node) error {
	if node.Kind == yaml.ScalarNode {
		return node.Decode(&n.Addr)
	}
	if node.Kind != yaml.MappingNode {
		return fmt.Errorf("line %d: an instance is an address, or addr and ranks", node.Line)
	}
	for i := 0; i < len(node.Content); i += 2 {
		var err error
		switch key, value := node.Content[i].Value, node.Content[i+1]; key {
		case "addr":
			err = value.Decode(&n.Addr)
		case "ranks":
			err = value.Decode(&n.Ranks)
		default:
			err = fmt.Errorf("line %d: an instance has no %q", node.Content[i].Line, key)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// FileAttempt is what a local attempt carries.
type FileAttempt struct {
	Headers map[string]string `yaml:"headers,omitempty"`
	Params  map[string]any    `yaml:"params,omitempty"`     // kv_transfer_params
	ETA     bool              `yaml:"remote_eta,omitempty"` // add remote_eta_ms to them
	Members map[string]any    `yaml:"members,omitempty"`
}

// FilePrefill is what a prefill leg carries besides the usual.
type FilePrefill struct {
	Members map[string]any `yaml:"members,omitempty"`
}

// FileRefusal is one refusal rule.
type FileRefusal struct {
	Status       int    `yaml:"status,omitempty"`
	FinishReason string `yaml:"finish_reason,omitempty"`
	StopReason   string `yaml:"stop_reason,omitempty"`
	ErrorType    string `yaml:"error_type,omitempty"`
	ErrorCode    string `yaml:"error_code,omitempty"`
	Pointer      string `yaml:"pointer,omitempty"`
	Equals       string `yaml:"equals,omitempty"`
	Empty        bool   `yaml:"empty,omitempty"`
}

// FileGuard bounds local attempts. Zero switches a bound off; absent keeps the preset's.
type FileGuard struct {
	MaxSuffixTokens         *int      `yaml:"max_suffix_tokens,omitempty"`
	MaxAppendTokensInFlight *int      `yaml:"max_append_tokens_in_flight,omitempty"`
	MaxLocalAttempts        *int      `yaml:"max_local_attempts,omitempty"`
	TPOTTarget              *Duration `yaml:"tpot_target,omitempty"`
	RequireResident         *bool     `yaml:"require_resident,omitempty"`
}

// FileSessions sets how sessions are named, remembered and placed.
type FileSessions struct {
	Sources   []string `yaml:"sources,omitempty"`
	TTL       Duration `yaml:"ttl,omitempty"`
	Max       int      `yaml:"max,omitempty"`
	Store     string   `yaml:"store,omitempty"` // URL of a store that all replicas share
	StoreWait Duration `yaml:"store_timeout,omitempty"`
	Unknown   string   `yaml:"unknown_followups,omitempty"` // auto, try or pd
	Placement string   `yaml:"placement,omitempty"`         // load, hash or room
}

// FileRetry sets how often a request is tried.
type FileRetry struct {
	Max   int      `yaml:"max,omitempty"`
	Delay Duration `yaml:"delay,omitempty"`
}

// FileLimits bounds what clients may take.
type FileLimits struct {
	MaxBody        int64    `yaml:"max_body_bytes,omitempty"`
	MaxAnswer      int64    `yaml:"max_answer_bytes,omitempty"`
	MaxHeader      int      `yaml:"max_header_bytes,omitempty"`
	MaxConnections int      `yaml:"max_connections,omitempty"`
	PerTenant      int      `yaml:"concurrency_per_tenant,omitempty"`
	Queue          int      `yaml:"queue_per_tenant,omitempty"`
	QueueTimeout   Duration `yaml:"queue_timeout,omitempty"`
}

// FileTimeouts are the timeouts of Config.
type FileTimeouts struct {
	Connect Duration `yaml:"connect,omitempty"`
	Prefill Duration `yaml:"prefill,omitempty"`
	First   Duration `yaml:"first,omitempty"`
	Idle    Duration `yaml:"idle,omitempty"`
	Client  Duration `yaml:"client,omitempty"`
	Body    Duration `yaml:"body,omitempty"`
}

// FileBreaker sets the breakers.
type FileBreaker struct {
	Failures    int      `yaml:"failures,omitempty"`
	Cooldown    Duration `yaml:"cooldown,omitempty"`
	MaxCooldown Duration `yaml:"max_cooldown,omitempty"`
}

// FileAdmin sets the admin listener.
type FileAdmin struct {
	Listen    string `yaml:"listen,omitempty"` // host:port; empty means none
	TokenFile string `yaml:"token_file,omitempty"`
}

// FileJoin says how an instance that joins at run time is asked whether it is ready.
type FileJoin struct {
	Tries    int      `yaml:"tries,omitempty"`
	Interval Duration `yaml:"interval,omitempty"`
}

// FileTLS makes the proxy speak TLS to clients, and to backends with their authority.
type FileTLS struct {
	Cert      string `yaml:"cert,omitempty"`
	Key       string `yaml:"key,omitempty"`
	BackendCA string `yaml:"backend_ca,omitempty"`
}

// FileKeys sets how API keys are treated.
type FileKeys struct {
	ClientsFile string `yaml:"clients_file,omitempty"` // a key a line, or name=key
	Pass        bool   `yaml:"pass_authorization,omitempty"`
}

// Duration is a time.Duration written as 1s or 250ms.
type Duration time.Duration

// UnmarshalYAML reads a duration with its unit.
func (d *Duration) UnmarshalYAML(node *yaml.Node) error {
	v, err := time.ParseDuration(node.Value)
	if err != nil {
		return fmt.Errorf("line %d: %q is no duration such as 250ms or 1h", node.Line, node.Value)
	}
	*d = Duration(v)
	return nil
}

// MarshalYAML writes a duration with its unit.
func (d Duration) MarshalYAML() (any, error) { return time.Duration(d).String(), nil }

// ReadFile decodes a configuration file; a key that it does not know is an error.
func ReadFile(src io.Reader) (File, error) {
	dec := yaml.NewDecoder(src)
	dec.KnownFields(true)
	var f File
	if err := dec.Decode(&f); err != nil {
		if errors.Is(err, io.EOF) {
			return f, errors.New("the configuration is empty")
		}
		return f, fmt.Errorf("configuration: %w", err)
	}
	var more any
	if err := dec.Decode(&more); !errors.Is(err, io.EOF) {
		return f, errors.New("configuration: one document is expected")
	}
	return f, nil
}

// Config is the configuration that a file says; the error joins all that is
// wrong with it. The logger and the API keys are the caller's.
func (f File) Config() (Config, error) {
	var errs []error
	keep := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	c := Config{
		Metaserver: f.Metaserver, Prefillers: f.Prefillers, Append: f.AppendPrefill, Pools: map[string]Backend{},
		SessionTTL: time.Duration(f.Sessions.TTL), MaxSessions: f.Sessions.Max,
		StoreURL: f.Sessions.Store, StoreTimeout: time.Duration(f.Sessions.StoreWait), MembershipURL: f.Membership,
		MaxRetries: f.Retry.Max, RetryDelay: time.Duration(f.Retry.Delay),
		MaxBody: f.Limits.MaxBody, MaxAnswer: f.Limits.MaxAnswer, MaxHeader: f.Limits.MaxHeader,
		MaxConnections: f.Limits.MaxConnections, TenantConcurrency: f.Limits.PerTenant, TenantQueue: f.Limits.Queue, QueueTimeout: time.Duration(f.Limits.QueueTimeout),
		ConnectTimeout: time.Duration(f.Timeouts.Connect), PrefillTimeout: time.Duration(f.Timeouts.Prefill), FirstTimeout: time.Duration(f.Timeouts.First),
		IdleTimeout: time.Duration(f.Timeouts.Idle), ClientTimeout: time.Duration(f.Timeouts.Client), BodyTimeout: time.Duration(f.Timeouts.Body),
		Breaker:       route.BreakerConfig{Failures: f.Breaker.Failures, Cooldown: time.Duration(f.Breaker.Cooldown), MaxCooldown: time.Duration(f.Breaker.MaxCooldown)},
		InstancesFile: f.InstancesFile, ScrapeEvery: time.Duration(f.ScrapeEvery), ResolveEvery: time.Duration(f.ResolveEvery), JoinTries: f.Join.Tries, JoinInterval: time.Duration(f.Join.Interval),
		TraceFile: f.TraceFile, RouteHeader: f.RouteHeader, AccessLog: f.AccessLog, PassAuthorization: f.Keys.Pass,
	}
	for _, name := range f.Sessions.Sources {
		s, err := route.ParseSource(name)
		keep(err)
		c.Sources = append(c.Sources, s)
	}
	var err error
	c.Placement, err = parsePlacement(f.Sessions.Placement)
	keep(err)
	c.Unknown, err = parseUnknown(f.Sessions.Unknown)
	keep(err)
	seen := map[string]bool{}
	for i, pool := range f.Decoders {
		b, err := pool.backend()
		if err != nil {
			keep(fmt.Errorf("decoders %d: %w", i+1, err))
			continue
		}
		if seen[pool.Pool] {
			keep(fmt.Errorf("decoders %d: the pool %q is there twice", i+1, pool.Pool))
		}
		seen[pool.Pool] = true
		if pool.Pool == "" {
			c.Backend = b
		} else {
			c.Pools[pool.Pool] = b
		}
		for _, n := range pool.Instances {
			d := Decoder{Addr: n.Addr, Ranks: n.Ranks, Pool: pool.Pool}
			if d.Ranks == 0 {
				d.Ranks = pool.Ranks
			}
			c.Decoders = append(c.Decoders, d)
		}
	}
	if len(errs) == 0 {
		keep(c.Validate())
	}
	return c, errors.Join(errs...)
}

func (p FilePool) backend() (Backend, error) {
	name := p.Backend
	if name == "" {
		name = "sluice"
	}
	b, err := Preset(name)
	if err != nil {
		return b, err
	}
	var errs []error
	object := func(m map[string]any) map[string]json.RawMessage {
		out := map[string]json.RawMessage{}
		for _, k := range slices.Sorted(maps.Keys(m)) {
			raw, err := json.Marshal(m[k])
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", k, err))
			}
			out[k] = raw
		}
		return out
	}
	if a := p.Attempt; a != nil {
		b.Headers, b.Members, b.Params, b.RemoteETA = a.Headers, object(a.Members), nil, a.ETA
		if a.Params != nil {
			raw, err := json.Marshal(a.Params)
			if err != nil {
				errs = append(errs, fmt.Errorf("params: %w", err))
			}
			b.Params = raw
		}
	}
	if p.Prefill != nil {
		b.PrefillMembers = object(p.Prefill.Members)
	}
	if p.Refusals != nil {
		b.Refusals = nil
		for _, r := range p.Refusals {
			b.Refusals = append(b.Refusals, RefusalRule(r))
		}
	}
	switch p.Mode {
	case "", "pull":
	case "push":
		b.Push = true
	default:
		errs = append(errs, fmt.Errorf("mode %q: give pull or push", p.Mode))
	}
	b.Bidirectional = p.Both
	set(&b.Continue, p.Continue)
	set(&b.ContinueBroken, p.Broken)
	if g := p.Guard; g != nil {
		set(&b.Guard.MaxSuffixTokens, g.MaxSuffixTokens)
		set(&b.Guard.MaxAppendTokensInFlight, g.MaxAppendTokensInFlight)
		set(&b.Guard.MaxLocalAttempts, g.MaxLocalAttempts)
		set(&b.Guard.RequireResident, g.RequireResident)
		if g.TPOTTarget != nil {
			b.Guard.PaceTarget = time.Duration(*g.TPOTTarget)
		}
	}
	return b, errors.Join(errs...)
}

func set[T any](to *T, from *T) {
	if from != nil {
		*to = *from
	}
}

// parsePlacement reads "load", "hash" or "room"; empty means load.
func parsePlacement(s string) (route.Placement, error) {
	switch s {
	case "", "load":
		return route.PlaceLoad, nil
	case "hash":
		return route.PlaceHash, nil
	case "room":
		return route.PlaceRoom, nil
	}
	return 0, fmt.Errorf("placement %q: give load, hash or room", s)
}

// parseUnknown reads "auto", "try" or "pd"; empty means auto.
func parseUnknown(s string) (UnknownPolicy, error) {
	switch s {
	case "", "auto":
		return UnknownAuto, nil
	case "try":
		return UnknownTry, nil
	case "pd":
		return UnknownPD, nil
	}
	return 0, fmt.Errorf("unknown follow-ups %q: give auto, try or pd", s)
}

// Effective writes a configuration with its defaults filled in, as a file that
// would give it again. Keys and tokens are not part of it.
func Effective(c Config, listen string) ([]byte, error) {
	c = c.withDefaults()
	f := File{
		Listen: listen, Metaserver: c.Metaserver, AppendPrefill: c.Append, Prefillers: c.Prefillers,
		Membership:    redacted(c.MembershipURL),
		Sessions:      FileSessions{TTL: Duration(c.SessionTTL), Max: c.MaxSessions, Store: redacted(c.StoreURL), StoreWait: Duration(c.StoreTimeout), Unknown: [...]string{"auto", "try", "pd"}[c.Unknown], Placement: c.Placement.String()},
		Retry:         FileRetry{Max: c.MaxRetries, Delay: Duration(c.RetryDelay)},
		Limits:        FileLimits{c.MaxBody, c.MaxAnswer, c.MaxHeader, c.MaxConnections, c.TenantConcurrency, c.TenantQueue, Duration(c.QueueTimeout)},
		Timeouts:      FileTimeouts{Duration(c.ConnectTimeout), Duration(c.PrefillTimeout), Duration(c.FirstTimeout), Duration(c.IdleTimeout), Duration(c.ClientTimeout), Duration(c.BodyTimeout)},
		Breaker:       FileBreaker{c.Breaker.Failures, Duration(c.Breaker.Cooldown), Duration(c.Breaker.MaxCooldown)},
		InstancesFile: c.InstancesFile, Join: FileJoin{c.JoinTries, Duration(c.JoinInterval)}, ScrapeEvery: Duration(c.ScrapeEvery), ResolveEvery: Duration(c.ResolveEvery), TraceFile: c.TraceFile, RouteHeader: c.RouteHeader, AccessLog: c.AccessLog,
		Keys: FileKeys{Pass: c.PassAuthorization},
	}
	for _, s := range c.Sources {
		f.Sessions.Sources = append(f.Sessions.Sources, s.String())
	}
	names := append([]string{""}, slices.Sorted(maps.Keys(c.Pools))...)
	for _, name := range names {
		b := c.Backend
		if name != "" {
			b = c.Pools[name]
		}
		pool, err := filePool(name, b)
		if err != nil {
			return nil, err
		}
		for _, d := range c.Decoders {
			if d.Pool == name {
				pool.Instances = append(pool.Instances, FileNode{Addr: d.Addr, Ranks: max(d.Ranks, 1)})
			}
		}
		if name != "" || len(pool.Instances) > 0 {
			f.Decoders = append(f.Decoders, pool)
		}
	}
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	if err := errors.Join(enc.Encode(f), enc.Close()); err != nil {
		return nil, fmt.Errorf("effective configuration: %w", err)
	}
	return out.Bytes(), nil
}

// redacted is a URL without its password.
func redacted(text string) string {
	if u, err := url.Parse(text); err == nil {
		return u.Redacted()
	}
	return ""
}

func filePool(name string, b Backend) (FilePool, error) {
	var errs []error
	plain := func(m map[string]json.RawMessage) map[string]any {
		out := map[string]any{}
		for k, raw := range m {
			var v any
			errs = append(errs, json.Unmarshal(raw, &v))
			out[k] = v
		}
		return out
	}
	pace := Duration(b.Guard.PaceTarget)
	pool := FilePool{
		Pool: name, Backend: b.Name, Attempt: &FileAttempt{Headers: b.Headers, Members: plain(b.Members), ETA: b.RemoteETA}, Prefill: &FilePrefill{Members: plain(b.PrefillMembers)},
		Guard:    &FileGuard{&b.Guard.MaxSuffixTokens, &b.Guard.MaxAppendTokensInFlight, &b.Guard.MaxLocalAttempts, &pace, &b.Guard.RequireResident},
		Refusals: []FileRefusal{}, Continue: &b.Continue, Broken: &b.ContinueBroken,
	}
	pool.Mode, pool.Both = "pull", b.Bidirectional
	if b.Push {
		pool.Mode = "push"
	}
	if b.Params != nil {
		errs = append(errs, json.Unmarshal(b.Params, &pool.Attempt.Params))
	}
	for _, r := range b.Refusals {
		pool.Refusals = append(pool.Refusals, FileRefusal(r))
	}
	return pool, errors.Join(errs...)
}
