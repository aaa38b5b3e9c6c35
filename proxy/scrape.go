package proxy

import (
	"context"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-serving/sluice/proxy/route"
)

// scraped is what an instance's metrics say, by rank.
type scraped struct {
	ranks map[int]*route.Load
	start float64 // process start in seconds since 1970; 0 unknown
	steps float64 // graph steps counted
	full  float64 // of them FULL
}

// maxScrape bounds the metrics that are read from one instance.
const maxScrape = 4 << 20

// parseMetrics reads the few gauges that routing uses from a Prometheus text:
// waiting, running and KV usage by the label engine, and the process start.
func parseMetrics(text string, now time.Time) scraped {
	s := scraped{ranks: map[int]*route.Load{}}
	for len(text) > 0 {
		var line string
		line, text, _ = strings.Cut(text, "\n")
		if line == "" || line[0] == '#' {
			continue
		}
		name, labels, value, ok := sample(line)
		if !ok {
			continue
		}
		if name == "process_start_time_seconds" {
			s.start = value
			continue
		}
		if name == "sluice_graph_steps_total" {
			s.steps += value
			if strings.EqualFold(label(labels, "mode"), "full") {
				s.full += value
			}
			continue
		}
		if !strings.HasPrefix(name, "vllm:") || value < 0 || value > 1e9 {
			continue
		}
		rank, err := strconv.Atoi(label(labels, "engine"))
		if err != nil || rank < 0 || rank > 1024 {
			rank = 0
		}
		l := s.ranks[rank]
		if l == nil {
			l = &route.Load{At: now}
			s.ranks[rank] = l
		}
		switch name {
		case "vllm:num_requests_waiting":
			l.Waiting += int(value)
		case "vllm:num_requests_running":
			l.Running += int(value)
		case "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc":
			l.KVUsage = max(l.KVUsage, value)
		}
	}
	return s
}

// sample splits one line of the text format.
func sample(line string) (name, labels string, value float64, ok bool) {
	end := strings.IndexAny(line, "{ ")
	if end <= 0 {
		return "", "", 0, false
	}
	name, rest := line[:end], line[end:]
	if rest[0] == '{' {
		stop := strings.LastIndexByte(rest, '}')
		if stop < 0 {
			return "", "", 0, false
		}
		labels, rest = rest[1:stop], rest[stop+1:]
	}
	number, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
	value, err := strconv.ParseFloat(number, 64)
	return name, labels, value, err == nil
}

// label gives the value of a label that holds no escapes.
func label(labels, name string) string {
	for rest := labels; rest != ""; {
		key, after, found := strings.Cut(rest, `="`)
		if !found {
			return ""
		}
		value, next, _ := strings.Cut(after, `"`)
		if strings.TrimLeft(key, ", ") == name {
			return value
		}
		rest = next
	}
	return ""
}

// watchLoad scrapes every instance until the context ends. A failure says
// nothing: the last report grows old and stops counting.
func (p *Proxy) watchLoad(ctx context.Context) {
	tick := time.NewTicker(p.cfg.ScrapeEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		prefillers, decoders := p.instances()
		type answer struct {
			addr    string
			prefill bool
			s       scraped
			ok      bool
		}
		answers := make(chan answer)
		ask := func(addr string, prefill bool) {
			s, ok := p.scrape(ctx, addr)
			answers <- answer{addr, prefill, s, ok}
		}
		for _, addr := range prefillers {
			go ask(addr, true)
		}
		for _, addr := range decoders {
			go ask(addr, false)
		}
		for range len(prefillers) + len(decoders) {
			if a := <-answers; a.ok {
				p.noteLoad(a.addr, a.prefill, a.s)
			} else if !a.prefill {
				p.mu.Lock()
				p.router.Started(a.addr, 0)
				p.mu.Unlock()
			}
		}
	}
}

func (p *Proxy) noteLoad(addr string, prefill bool, s scraped) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if prefill {
		var sum route.Load
		for _, l := range s.ranks {
			sum.Waiting, sum.Running, sum.At = sum.Waiting+l.Waiting, sum.Running+l.Running, l.At
		}
		p.router.SetPrefillerLoad(addr, sum)
		return
	}
	if s.steps > 0 {
		p.full.Store(addr, s.full/s.steps)
	}
	for rank, l := range s.ranks {
		p.router.SetDecoderLoad(addr, route.Rank(rank), *l)
	}
	p.router.Started(addr, s.start)
}

func (p *Proxy) scrape(ctx context.Context, addr string) (scraped, bool) {
	ctx, cancel := context.WithTimeout(ctx, max(p.cfg.ScrapeEvery, time.Second))
	defer cancel()
	resp, err := p.small(ctx, nil, http.MethodGet, addr, "/metrics", "")
	if err != nil {
		return scraped{}, false
	}
	defer resp.Close()
	body, err := io.ReadAll(io.LimitReader(resp, maxScrape))
	if err != nil || resp.Status != http.StatusOK {
		return scraped{}, false
	}
	return parseMetrics(string(body), time.Now()), true
}

// watchNames looks names up again and lets idle connections go when one leads
// elsewhere, so that new requests follow it.
func (p *Proxy) watchNames(ctx context.Context) {
	tick := time.NewTicker(p.cfg.ResolveEvery)
	defer tick.Stop()
	known := map[string][]string{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		p.lookNames(ctx, known)
	}
}

// lookNames looks every name up once and compares with what is known.
func (p *Proxy) lookNames(ctx context.Context, known map[string][]string) {
	prefillers, decoders := p.instances()
	for _, addr := range append(prefillers, decoders...) {
		host, _, err := splitHostPort(addr)
		if err != nil || net.ParseIP(host) != nil {
			continue
		}
		look, cancel := context.WithTimeout(ctx, probeTimeout)
		ips, err := p.lookup(look, host)
		cancel()
		if err != nil {
			continue
		}
		slices.Sort(ips)
		if before, ok := known[host]; ok && !slices.Equal(before, ips) {
			p.cfg.Logger.Info("a name leads elsewhere", "host", host, "addresses", ips)
			p.pool.CloseIdle()
		}
		known[host] = ips
	}
}

func splitHostPort(addr string) (host, port string, err error) { return net.SplitHostPort(addr) }
