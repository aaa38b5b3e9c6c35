package engine

import (
	"cmp"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-serving/sluice/kvcache"
	"github.com/sluice-serving/sluice/kvcache/publish"
)

// KVEvents is the value of --kv-events-config; the member names are vLLM's, and
// a member that is absent means what it means there.
type KVEvents struct {
	Enable    bool   `json:"enable_kv_cache_events"`
	Publisher string `json:"publisher"`       // zmq, the default where events are enabled, or null
	Endpoint  string `json:"endpoint"`        // of rank 0, see attach; default tcp://*:5557. Rank r takes the r-th port after it
	Replay    string `json:"replay_endpoint"` // where rank 0 listens for requests of replays, and rank r r ports after it; default none
	Buffer    *int   `json:"buffer_steps"`    // batches that a replay can give; default 10,000
	HighWater *int   `json:"hwm"`             // batches that wait for one subscriber; default 100,000
	Queue     *int   `json:"max_queue_size"`  // batches that wait to be sent; default 100,000
	Topic     string `json:"topic"`           // first frame of every message
	Form      string `json:"event_form"`      // not vLLM's: maps, the default, or arrays, for subscribers of its older releases
}

const (
	publisherZMQ  = "zmq"
	publisherNull = "null"
	formMaps      = "maps"
	formArrays    = "arrays"

	defaultEventsEndpoint = "tcp://*:5557"
)

// ParseKVEvents reads the value of --kv-events-config. Unknown members are errors.
func ParseKVEvents(s string) (KVEvents, error) {
	var k KVEvents
	err := parseStrict("kv-events-config", s, &k)
	return k, err
}

// on reports whether events are recorded and sent.
func (k KVEvents) on() bool { return k.Enable && k.Publisher != publisherNull }

// idle reports whether members are given that have no effect.
func (k KVEvents) idle() bool {
	if k.Publisher == publisherNull {
		k.Publisher = ""
	}
	return !k.Enable && k != KVEvents{}
}

// attach is vLLM's rule: where an endpoint has a wildcard or "::", subscribers
// connect to it; another is that of a subscriber that listens. Here subscribers also
// connect to port 0 and to 0.0.0.0, where nobody could be connected to.
func attach(endpoint string) publish.Attach {
	if strings.Contains(endpoint, "*") || strings.Contains(endpoint, "::") || strings.Contains(endpoint, "//0.0.0.0:") || strings.HasSuffix(endpoint, ":0") {
		return publish.Bind
	}
	return publish.Connect
}

// publisher is the configuration of a rank's publisher.
func (k KVEvents) publisher(rank int, log *slog.Logger) publish.Config {
	c := publish.Config{Endpoint: cmp.Or(k.Endpoint, defaultEventsEndpoint), Replay: k.Replay, Topic: k.Topic, Rank: rank, Log: log}
	c.Attach = attach(c.Endpoint)
	take(&c.Buffer, k.Buffer)
	take(&c.HighWater, k.HighWater)
	take(&c.Queue, k.Queue)
	if k.Form == formArrays {
		c.Events = publish.EventArrays
	}
	return c
}

// validate reports everything that is wrong with the events of c.
func (k KVEvents) validate(c *Config) []error {
	const in = "kv-events-config."
	var errs []error
	for _, f := range []struct {
		name, v    string
		one, other string
	}{{"publisher", k.Publisher, publisherZMQ, publisherNull}, {"event_form", k.Form, formMaps, formArrays}} {
		if f.v != "" && f.v != f.one && f.v != f.other {
			errs = append(errs, &SettingError{in + f.name, strconv.Quote(f.v), f.one + " or " + f.other})
		}
	}
	for _, f := range []struct {
		name string
		v    *int
	}{{"buffer_steps", k.Buffer}, {"hwm", k.HighWater}, {"max_queue_size", k.Queue}} {
		if f.v != nil && (*f.v < 1 || *f.v > 1<<20) {
			errs = append(errs, within(in+f.name, *f.v, 1, 1<<20))
		}
	}
	last := max(0, c.DataParallel-1)
	endpoint := cmp.Or(k.Endpoint, defaultEventsEndpoint)
	for _, f := range []struct {
		name, v string
		c       publish.Config
	}{
		{"endpoint", endpoint, publish.Config{Endpoint: endpoint, Attach: attach(endpoint), Rank: last}},
		{"replay_endpoint", k.Replay, publish.Config{Replay: k.Replay, Rank: last}},
	} {
		if f.c.Validate() != nil {
			errs = append(errs, &SettingError{in + f.name, strconv.Quote(f.v), "tcp://host:port, with a port for each rank"})
		}
	}
	if len(errs) > 0 || !k.on() {
		return errs
	}
	return c.portsMeet()
}

// portsMeet reports settings by which two ranks would listen at one port.
func (c *Config) portsMeet() (errs []error) {
	type ports struct {
		name, host string
		first      int
	}
	var all []ports
	add := func(name, host, port string) {
		if first, err := strconv.Atoi(port); err == nil && first != 0 {
			all = append(all, ports{name, strings.NewReplacer("*", "", "0.0.0.0", "", "::", "").Replace(host), first})
		}
	}
	for _, e := range []struct{ name, endpoint string }{
		{"kv-events-config.endpoint", cmp.Or(c.KVEvents.Endpoint, defaultEventsEndpoint)}, {"kv-events-config.replay_endpoint", c.KVEvents.Replay},
	} {
		if host, port, err := net.SplitHostPort(strings.TrimPrefix(e.endpoint, "tcp://")); err == nil && (e.endpoint == c.KVEvents.Replay || attach(e.endpoint) == publish.Bind) {
			add(e.name, host, port)
		}
	}
	if c.KVTransfer.part(ConnectorPD) != nil {
		add("kv-port", c.KVTransfer.IP, strconv.Itoa(c.KVPort))
	}
	for i, a := range all {
		for _, b := range all[:i] {
			if a.host != "" && b.host != "" && a.host != b.host || max(a.first, b.first) >= min(a.first, b.first)+c.DataParallel {
				continue
			}
			errs = append(errs, &ConflictError{b.name, a.name, fmt.Sprintf("rank r takes the r-th port after the one that is given, and %d ranks meet at port %d", c.DataParallel, max(a.first, b.first))})
		}
	}
	return errs
}

// cacheEvents is what the caches record.
func (c Config) cacheEvents() kvcache.Events {
	if !c.KVEvents.on() {
		return kvcache.Events{}
	}
	return kvcache.Events{Mode: kvcache.EventsOn, Seed: c.HashSeed}
}

// openEvents opens the sockets by which the rank's events go out.
func (r *rank) openEvents() error {
	if !r.cfg.KVEvents.on() {
		return nil
	}
	p, err := publish.New(r.cfg.KVEvents.publisher(r.index, r.log))
	if err != nil {
		return fmt.Errorf("kv-events-config: %w", err)
	}
	r.pub = p
	r.closers = append(r.closers, func() {
		if err := p.Close(); err != nil {
			r.log.Warn("publisher of KV events did not close", "error", err)
		}
	})
	r.metrics.publishes(p)
	r.log.Info("KV events", "endpoint", cmp.Or(r.cfg.KVEvents.Endpoint, defaultEventsEndpoint), "address", p.Addr(), "replay", p.ReplayAddr())
	return nil
}

// tell sends what has happened to the cache up to the step that was applied. A
// batch that finds no room is dropped and counted.
func (r *rank) tell() {
	if r.pub == nil {
		return
	}
	var events []kvcache.Event
	if r.links.offload != nil { // in front: a reset clears whatever was told before
		events = r.links.offload.TakeEvents(nil)
	}
	_ = r.pub.Publish(r.sched.TakeEvents(events))
}

// publishes shows what a publisher counts, as it stands when somebody looks.
func (r *rankMetrics) publishes(p *publish.Publisher) {
	counter := func(name, help string, v func(publish.Stats) uint64, labels ...string) {
		l := prometheus.Labels{"model_name": r.m.model, "engine": r.engine}
		for i := 0; i < len(labels); i += 2 {
			l[labels[i]] = labels[i+1]
		}
		r.m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: l}, func() float64 { return float64(v(p.Stats())) }))
	}
	const dropped, why = "sluice_kv_events_dropped_total", "Batches of KV events that were dropped, by where there was no room: the publisher's queue, or that of a subscriber."
	counter("sluice_kv_events_total", "KV events that were published.", func(s publish.Stats) uint64 { return s.Events })
	counter("sluice_kv_events_batches_total", "Batches of KV events that were published, one a step that had any.", func(s publish.Stats) uint64 { return s.Batches })
	counter(dropped, why, func(s publish.Stats) uint64 { return s.Overflow }, "where", "queue")
	counter(dropped, why, func(s publish.Stats) uint64 { return s.Dropped }, "where", "subscriber")
	r.m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "sluice_kv_events_subscribers", Help: "Subscribers of KV events that are connected.",
		ConstLabels: prometheus.Labels{"model_name": r.m.model, "engine": r.engine},
	}, func() float64 { return float64(p.Stats().Subscribers) }))
}
