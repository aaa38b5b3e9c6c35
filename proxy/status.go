package proxy

import (
	_ "embed"
	"net/http"
	"sync"
	"time"

	"github.com/sluice-serving/sluice/internal/openai"
)

// decisions keeps the last decisions and what they came to, for the status page.
type decisions struct {
	mu     sync.Mutex
	ring   [64]Decided
	n      uint64 // noted in all
	counts map[string]uint64
	misses map[string]uint64
}

// Decided is one finished request on the status page. It names no session.
type Decided struct {
	At      time.Time `json:"at"`
	Route   string    `json:"route"`
	Reason  string    `json:"reason"`
	Decoder string    `json:"decoder"`
	Rank    int       `json:"rank"`
	Status  int       `json:"status"`
	Prompt  int       `json:"prompt_tokens"`
	Cached  int       `json:"cached_tokens"`
	Output  int       `json:"output_tokens"`
	First   float64   `json:"ttft_ms"`
	Total   float64   `json:"total_ms"`
}

func (d *decisions) note(now time.Time, l *RouteTrace, output int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ring[d.n%uint64(len(d.ring))] = Decided{now, l.Route, l.Reason, l.Decoder, l.Rank, l.Status, l.Prompt, l.Cached, output, l.FirstMillis, l.Millis}
	d.n++
	if d.counts == nil {
		d.counts, d.misses = map[string]uint64{}, map[string]uint64{}
	}
	d.counts[l.Route]++
	if l.Route == "fallback" {
		d.misses[l.Reason]++
	}
}

// Status is what the status page shows.
type Status struct {
	At         time.Time         `json:"at"`
	Started    time.Time         `json:"started"`
	Append     bool              `json:"append_prefill"`
	Sessions   int               `json:"sessions"`
	Evicted    uint64            `json:"sessions_evicted"`
	Expired    uint64            `json:"sessions_expired"`
	Open       int               `json:"open_requests"`
	Routes     map[string]uint64 `json:"routes"`    // finished requests by route
	Fallbacks  map[string]uint64 `json:"fallbacks"` // by reason
	Prefillers []StatusPrefiller `json:"prefillers"`
	Decoders   []StatusDecoder   `json:"decoders"`
	Last       []Decided         `json:"last"` // newest first
}

// StatusPrefiller is one Prefiller on the status page.
type StatusPrefiller struct {
	Addr     string  `json:"addr"`
	Draining bool    `json:"draining"`
	Breaker  string  `json:"breaker"`
	InFlight int     `json:"in_flight"`
	Score    float64 `json:"score"`
	Waiting  int     `json:"waiting"` // as it reports
	Running  int     `json:"running"`
}

// StatusDecoder is one Decoder on the status page.
type StatusDecoder struct {
	Addr     string       `json:"addr"`
	Pool     string       `json:"pool"`
	Draining bool         `json:"draining"`
	Breakers [2]string    `json:"breakers"` // of local attempts and of decode legs
	FULL     float64      `json:"full_share"`
	Ranks    []StatusRank `json:"ranks"`
}

// StatusRank is one rank on the status page.
type StatusRank struct {
	InFlight int     `json:"in_flight"`
	Attempts int     `json:"local_attempts"`
	Append   int64   `json:"append_tokens"`
	Resident int64   `json:"resident_tokens"`
	Waiting  int     `json:"waiting"` // as it reports
	Running  int     `json:"running"`
	KVUsage  float64 `json:"kv_usage"`
	Pace     float64 `json:"tpot_ms"`
	Suspect  bool    `json:"suspect"`
	Blocked  bool    `json:"blocked"`
}

// Status collects the present state.
func (p *Proxy) Status() Status {
	s := p.Snapshot()
	out := Status{
		At: time.Now(), Started: p.started, Append: p.cfg.Append, Sessions: s.Sessions, Evicted: s.Evicted, Expired: s.Expired, Open: s.OpenTurns,
		Routes: map[string]uint64{}, Fallbacks: map[string]uint64{}, Prefillers: []StatusPrefiller{}, Decoders: []StatusDecoder{}, Last: []Decided{},
	}
	for _, q := range s.Prefillers {
		out.Prefillers = append(out.Prefillers, StatusPrefiller{q.Name, q.Draining, q.Breaker.String(), q.InFlight, q.Running + q.KV, q.Reported.Waiting, q.Reported.Running})
	}
	for _, d := range s.Decoders {
		sd := StatusDecoder{Addr: d.Name, Pool: p.backend(d.Name).Name, Draining: d.Draining, Breakers: [2]string{d.Breakers[0].String(), d.Breakers[1].String()}, FULL: -1}
		if share, ok := p.full.Load(d.Name); ok {
			sd.FULL, _ = share.(float64)
		}
		for _, k := range d.Ranks {
			sd.Ranks = append(sd.Ranks, StatusRank{k.InFlight, k.LocalAttempts, k.AppendTokens, k.ResidentTokens, k.Reported.Waiting, k.Reported.Running, k.Reported.KVUsage, millis(k.Pace), k.Suspect, k.Blocked})
		}
		out.Decoders = append(out.Decoders, sd)
	}
	p.last.mu.Lock()
	defer p.last.mu.Unlock()
	for k, v := range p.last.counts {
		out.Routes[k] = v
	}
	for k, v := range p.last.misses {
		out.Fallbacks[k] = v
	}
	size := uint64(len(p.last.ring))
	for i := range min(p.last.n, size) {
		out.Last = append(out.Last, p.last.ring[(p.last.n-1-i)%size])
	}
	return out
}

func (p *Proxy) status(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	openai.WriteJSON(w, http.StatusOK, p.Status())
}

//go:embed status.html
var statusPage []byte

// page serves the status page: one file without data, which asks for the
// token and fetches the status with it.
func page() http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Cache-Control", "no-cache")
		h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		_, _ = w.Write(statusPage) // a browser that has gone away needs no page
	}
}
