package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/sluice-serving/sluice/internal/bench/scrape"
)

// plain speaks to metrics pages: a connection each, so that the harness itself
// leaves none behind.
var plain = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second}

// usage is what a process has open.
type usage struct{ Goroutines, Descriptors int }

func usageOf(ctx context.Context, url string, pid int) (usage, error) {
	page, err := scrape.Fetch(ctx, plain, url+"/metrics")
	if err != nil {
		return usage{}, err
	}
	u := usage{Goroutines: int(page.Sum("go_goroutines", nil))}
	if list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid)); err == nil {
		u.Descriptors = len(list)
	}
	return u, nil
}

// requestsOf is how many requests an engine runs or has waiting.
func requestsOf(ctx context.Context, url string) (float64, error) {
	page, err := scrape.Fetch(ctx, plain, url+"/metrics")
	if err != nil {
		return 0, err
	}
	return page.Sum("vllm:num_requests_running", nil) + page.Sum("vllm:num_requests_waiting", nil), nil
}

// allowance is how much more than at its start a process may have open at
// rest: connections that are kept for the next request, and the goroutines
// that serve them. A request that left something behind would pass it.
const allowance = 80

// restless lists what an engine still holds.
func restless(ctx context.Context, name, url string, pid int, idle usage) ([]string, error) {
	page, err := scrape.Fetch(ctx, plain, url+"/metrics")
	if err != nil {
		return nil, err
	}
	var out []string
	for what, v := range map[string]float64{
		"KV blocks held":     page.Sum("sluice_kv_blocks", map[string]string{"state": "held"}),
		"leases":             page.Sum("sluice_kv_leases", nil),
		"host blocks in use": page.Sum("sluice_kv_offload_blocks", map[string]string{"state": "used"}),
		"requests running":   page.Sum("vllm:num_requests_running", nil),
		"requests waiting":   page.Sum("vllm:num_requests_waiting", nil),
	} {
		if v != 0 {
			out = append(out, fmt.Sprintf("%s: %v %s", name, v, what))
		}
	}
	now, err := usageOf(ctx, url, pid)
	if err != nil {
		return nil, err
	}
	if n := now.Goroutines - idle.Goroutines; n > allowance {
		out = append(out, fmt.Sprintf("%s: %d goroutines more than at its start", name, n))
	}
	if n := now.Descriptors - idle.Descriptors; n > allowance {
		out = append(out, fmt.Sprintf("%s: %d descriptors more than at its start", name, n))
	}
	return out, nil
}

// proxyStatus is what of the proxy's status must be zero at rest.
type proxyStatus struct {
	Open       int `json:"open_requests"`
	Prefillers []struct {
		Addr     string  `json:"addr"`
		InFlight int     `json:"in_flight"`
		Score    float64 `json:"score"`
	} `json:"prefillers"`
	Decoders []struct {
		Addr  string `json:"addr"`
		Ranks []struct {
			InFlight int   `json:"in_flight"`
			Attempts int   `json:"local_attempts"`
			Append   int64 `json:"append_tokens"`
		} `json:"ranks"`
	} `json:"decoders"`
}

func (c *cluster) proxyRestless(ctx context.Context) ([]string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.admin+"/status", nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+adminToken)
	resp, err := plain.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var s proxyStatus
	if err := json.NewDecoder(resp.Body).Decode(&s); err != nil {
		return nil, err
	}
	if len(s.Prefillers) != prefillers || len(s.Decoders) != decoders {
		return nil, fmt.Errorf("the proxy knows %d Prefillers and %d Decoders", len(s.Prefillers), len(s.Decoders))
	}
	var out []string
	if s.Open != 0 {
		out = append(out, fmt.Sprintf("proxy: %d requests open", s.Open))
	}
	for _, p := range s.Prefillers {
		if p.InFlight != 0 || p.Score != 0 {
			out = append(out, fmt.Sprintf("proxy: Prefiller %s has %d in flight, score %v", p.Addr, p.InFlight, p.Score))
		}
	}
	for _, d := range s.Decoders {
		for i, r := range d.Ranks {
			if r.InFlight != 0 || r.Attempts != 0 || r.Append != 0 {
				out = append(out, fmt.Sprintf("proxy: rank %d of Decoder %s has %d in flight, %d attempts of %d tokens", i, d.Addr, r.InFlight, r.Attempts, r.Append))
			}
		}
	}
	return out, nil
}

// settle waits until everything is at rest, and lists what is not when the
// time is over.
func (c *cluster) settle(ctx context.Context, limit time.Duration) ([]string, error) {
	children, err := c.all(ctx)
	if err != nil {
		return nil, err
	}
	for end := time.Now().Add(limit); ; {
		left, err := c.proxyRestless(ctx)
		for who, child := range children {
			more, e := restless(ctx, child.Name(), child.URL(), child.PID(), c.members[who].idle)
			left, err = append(left, more...), errors.Join(err, e)
		}
		if err != nil || len(left) == 0 || time.Now().After(end) {
			return left, err
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
