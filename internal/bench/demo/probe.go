package demo

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/sluice-serving/sluice/internal/bench/join"
	"github.com/sluice-serving/sluice/internal/bench/load"
	"github.com/sluice-serving/sluice/internal/bench/measure"
	"github.com/sluice-serving/sluice/internal/openai"
	"github.com/sluice-serving/sluice/internal/up"
)

const (
	probeProxy    = "proxy-probe"
	probeSessions = 8 // at most, until every rank is covered
	probeTokens   = 8

	kindFirst = "first turn"
	kindHit   = "warm hit"
	kindMiss  = "intentional miss"
)

// probe shows on each rank of the Decoder that a session's warm prefix is hit,
// and that the same session with a prefix that cannot be there is refused and
// served through the Prefiller.
func (r *runner) probe(ctx context.Context) error {
	return r.withProxy(ctx, probeProxy, up.AppendPrefill, func(url string) error {
		server := &load.Server{URL: url, Model: r.p.Model, Client: r.client}
		covered := make(map[int]bool)
		for i := range probeSessions {
			if len(covered) == max(r.p.Cluster.Decoder.Ranks, 1) {
				break
			}
			probes, err := r.probeSession(ctx, server, i)
			if err != nil {
				return err
			}
			rank, err := r.waitRank(ctx, probes[len(probes)-1].RequestID)
			if err != nil {
				return err
			}
			covered[rank] = true
			r.report.Probes = append(r.report.Probes, probes...)
		}
		fmt.Fprintf(r.out, "probes: %d requests, %d of %d ranks\n", len(r.report.Probes), len(covered), max(r.p.Cluster.Decoder.Ranks, 1))
		return nil
	})
}

// probeSession sends a first turn, a follow-up that must hit, and the same
// follow-up under another cache salt, which must miss.
func (r *runner) probeSession(ctx context.Context, server *load.Server, n int) ([]Probe, error) {
	start := time.Now()
	session := fmt.Sprintf("probe-%d", n)
	messages := []openai.Message{{Role: "user", Content: openai.Content(fmt.Sprintf("%04x %s", n*40503&0xffff, strings.Repeat("probe the ranks. ", 6)))}}
	var probes []Probe
	for _, step := range []struct{ kind, salt string }{{kindFirst, "probe"}, {kindHit, "probe"}, {kindMiss, "probe-elsewhere"}} {
		limit, zero := probeTokens, 0.0
		call := &load.Call{Endpoint: load.Chat, Header: http.Header{}, Body: &openai.ChatRequest{
			Model: r.p.Model, Messages: messages, Stream: true, StreamOptions: &openai.StreamOptions{IncludeUsage: true},
			Sampling: openai.Sampling{MaxTokens: &limit, Temperature: &zero}, Routing: openai.Routing{CacheSalt: step.salt},
		}}
		rec := measure.Record{RequestID: fmt.Sprintf("%s-t%d", session, len(probes))}
		call.Header.Set("X-Request-Id", rec.RequestID)
		call.Header.Set("X-Session-ID", session)
		reqCtx, cancel := context.WithTimeout(ctx, requestTimeout)
		server.Do(reqCtx, call, start, &rec)
		cancel()
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		probes = append(probes, Probe{RequestID: rec.RequestID, Kind: step.kind, Rank: -1, Error: rec.Error})
		if step.kind == kindFirst {
			messages = append(messages, openai.Message{Role: "assistant", Content: openai.Content(rec.Text)}, openai.Message{Role: "user", Content: "Once more."})
		}
	}
	return probes, nil
}

// waitRank reads in the proxy's trace which rank served a request.
func (r *runner) waitRank(ctx context.Context, id string) (int, error) {
	for deadline := time.Now().Add(settleTimeout); ; {
		traces, err := join.ReadFiles(r.p.Cluster.TraceFile(probeProxy))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return 0, err
		}
		if err == nil {
			for i := range traces.Routes {
				if traces.Routes[i].RequestID == id {
					return traces.Routes[i].Rank, nil
				}
			}
		}
		if time.Now().After(deadline) {
			return 0, fmt.Errorf("the proxy wrote no route line for %s", id)
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// joinProbes fills in what the traces say about the probes.
func (r *runner) joinProbes(traces *join.Traces) {
	ids := make([]string, 0, len(r.report.Probes))
	kinds := make(map[string]string)
	for _, p := range r.report.Probes {
		ids = append(ids, p.RequestID)
		kinds[p.RequestID] = p.Kind
	}
	rows := traces.Rows(ids, func(id string) bool { return kinds[id] != kindFirst })
	for i := range rows {
		p := &r.report.Probes[i]
		p.Rank, p.Route, p.Reason = rows[i].Rank, rows[i].Route, rows[i].Reason
	}
	for _, line := range join.Check(rows, join.Expect{AppendPrefill: true, BytesPerBlock: r.blockBytes()}) {
		r.report.Checks = append(r.report.Checks, Check{Name: "probe traces", Detail: line})
	}
}

// join fills in what the traces say about the arm's requests.
func (a *Arm) join(traces *join.Traces, expect join.Expect, ranks int) {
	ids := make([]string, 0, len(a.records))
	followUp := make(map[string]bool)
	for i := range a.records {
		ids = append(ids, a.records[i].RequestID)
		followUp[a.records[i].RequestID] = a.records[i].FollowUp()
	}
	a.rows = traces.Rows(ids, func(id string) bool { return followUp[id] })
	a.problems = join.Check(a.rows, expect)
	a.RankHits, a.RankFallbacks = make([]int, ranks), make([]int, ranks)
	var costs []float64
	for i := range a.rows {
		row := &a.rows[i]
		rank := min(max(row.Rank, 0), ranks-1)
		switch {
		case row.Hit():
			a.Hits++
			a.RankHits[rank]++
			if row.Admission != nil {
				a.HitTokens += row.Admission.CachedTokens
				a.HitPromptTokens += row.Admission.PromptTokens
			}
		case row.Fallback():
			a.Fallbacks++
			costs = append(costs, row.FallbackMs)
			if row.Refusal != nil {
				rank = min(max(row.Refusal.Rank, 0), ranks-1)
			}
			a.RankFallbacks[rank]++
		}
		if row.Read != nil {
			a.KVBlocks += int64(row.Read.Blocks)
			a.KVBytes += row.Read.Bytes
		}
	}
	a.FallbackCost = measure.NewSpread(costs)
}
