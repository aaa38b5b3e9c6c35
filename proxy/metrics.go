package proxy

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// metrics are the proxy's Prometheus metrics, in a registry of their own. No
// label carries a session, a request or anything else a client chooses.
type metrics struct {
	registry  *prometheus.Registry
	requests  *prometheus.CounterVec   // route, status
	reasons   *prometheus.CounterVec   // route, reason
	attempts  *prometheus.CounterVec   // result
	first     *prometheus.HistogramVec // route
	total     *prometheus.HistogramVec // route
	fallback  prometheus.Histogram
	legs      *prometheus.CounterVec // leg, result
	tokens    *prometheus.CounterVec // kind
	store     *prometheus.CounterVec // call
	blocked   prometheus.Counter
	stopped   prometheus.Counter
	continued prometheus.Counter
}

func newMetrics(p *Proxy) *metrics {
	m := &metrics{registry: prometheus.NewRegistry()}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "sluice", Subsystem: "proxy", Name: name, Help: help}, labels)
		m.registry.MustRegister(c)
		return c
	}
	buckets := []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120}
	histogram := func(name, help string, labels ...string) *prometheus.HistogramVec {
		h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "sluice", Subsystem: "proxy", Name: name, Help: help, Buckets: buckets}, labels)
		m.registry.MustRegister(h)
		return h
	}
	m.requests = counter("requests_total", "Requests by route taken and HTTP status sent (499: the client went away first).", "route", "status")
	m.reasons = counter("decisions_total", "Routing decisions by route taken and reason.", "route", "reason")
	m.attempts = counter("local_attempts_total", "Local append-prefill attempts by result.", "result")
	m.legs = counter("legs_total", "Requests sent to instances, by leg and result.", "leg", "result")
	m.tokens = counter("tokens_total", "Tokens of local hits: cached, suffix; of all answers: prompt, output.", "kind")
	m.store = counter("store_failures_total", "Calls of the session store that failed, by call.", "call")
	m.first = histogram("ttft_seconds", "Time from a request's arrival to the first output sent.", "route")
	m.total = histogram("request_seconds", "Time from a request's arrival to the end of its answer.", "route")
	m.fallback = prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "sluice", Subsystem: "proxy", Name: "fallback_seconds",
		Help: "Time that a refused or failed local attempt took before the P/D round began.", Buckets: buckets})
	m.blocked = prometheus.NewCounter(prometheus.CounterOpts{Namespace: "sluice", Subsystem: "proxy", Name: "replay_blocked_total",
		Help: "Failures after output, where nothing is tried again."})
	m.stopped = prometheus.NewCounter(prometheus.CounterOpts{Namespace: "sluice", Subsystem: "proxy", Name: "not_refusing_total",
		Help: "Ranks where local attempts were stopped because they are answered without a cached prefix."})
	m.continued = prometheus.NewCounter(prometheus.CounterOpts{Namespace: "sluice", Subsystem: "proxy", Name: "continued_total",
		Help: "Answers that a Decoder gave up after output and that were continued from their token ids."})
	m.registry.MustRegister(m.fallback, m.blocked, m.stopped, m.continued, &collector{p: p})
	return m
}

func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
}

// collector gives the router's state as gauges when it is scraped.
type collector struct{ p *Proxy }

var (
	descSessions = prometheus.NewDesc("sluice_proxy_sessions", "Sessions in the owner table.", nil, nil)
	descDropped  = prometheus.NewDesc("sluice_proxy_sessions_dropped_total", "Sessions dropped from the owner table.", []string{"cause"}, nil)
	descTurns    = prometheus.NewDesc("sluice_proxy_open_requests", "Requests under way.", nil, nil)
	descInFlight = prometheus.NewDesc("sluice_proxy_instance_in_flight", "Requests under way on an instance.", []string{"role", "instance", "rank"}, nil)
	descScore    = prometheus.NewDesc("sluice_proxy_instance_score", "Reserved load: body bytes on Decoders, estimated milliseconds on Prefillers.", []string{"role", "instance", "rank"}, nil)
	descResident = prometheus.NewDesc("sluice_proxy_resident_tokens", "Tokens of the sessions bound to a rank.", []string{"instance", "rank"}, nil)
	descBreaker  = prometheus.NewDesc("sluice_proxy_breaker_state", "Breaker by instance and leg: 0 closed, 1 open, 2 half-open.", []string{"instance", "leg"}, nil)
)

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descSessions, descDropped, descTurns, descInFlight, descScore, descResident, descBreaker} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	s := c.p.Snapshot()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(descSessions, float64(s.Sessions))
	gauge(descTurns, float64(s.OpenTurns))
	ch <- prometheus.MustNewConstMetric(descDropped, prometheus.CounterValue, float64(s.Evicted), "size")
	ch <- prometheus.MustNewConstMetric(descDropped, prometheus.CounterValue, float64(s.Expired), "age")
	for _, d := range s.Decoders {
		for i, k := range d.Ranks {
			rank := strconv.Itoa(i)
			gauge(descInFlight, float64(k.InFlight), "decoder", d.Name, rank)
			gauge(descScore, float64(k.Bytes), "decoder", d.Name, rank)
			gauge(descResident, float64(k.ResidentTokens), d.Name, rank)
		}
		gauge(descBreaker, float64(d.Breakers[0]), d.Name, "local")
		gauge(descBreaker, float64(d.Breakers[1]), d.Name, "d")
	}
	for _, q := range s.Prefillers {
		gauge(descInFlight, float64(q.InFlight), "prefiller", q.Name, "0")
		gauge(descScore, q.Running+q.KV, "prefiller", q.Name, "0")
		gauge(descBreaker, float64(q.Breaker), q.Name, "p")
	}
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
