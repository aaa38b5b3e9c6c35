package demo

import (
	"fmt"
	"slices"
	"strings"
)

// shownProblems bounds how many contradictions of one arm a check quotes.
const shownProblems = 5

func (r *runner) verify(name string, ok bool, format string, args ...any) {
	r.report.Checks = append(r.report.Checks, Check{Name: name, OK: ok, Detail: fmt.Sprintf(format, args...)})
}

// check decides everything that the comparison rests on.
func (r *runner) check() {
	r.checkProbes()
	for i := range r.report.Arms {
		r.checkArm(&r.report.Arms[i])
	}
	if len(r.report.Arms) > feature {
		r.checkFeature(&r.report.Arms[baseline], &r.report.Arms[feature])
	}
	r.checkControl()
	r.checkEngines()
	u := &r.report.Uncached
	r.verify("uncached run", u.Valid == u.Requests && u.CachedTokens == 0, "%d of %d valid, %d cached tokens", u.Valid, u.Requests, u.CachedTokens)
	if r.report.PeakBytes > 0 {
		r.verify("memory", r.report.PeakBytes <= r.p.MaxMemory, "%s of all processes at their peak, limit %s", mebibytes(r.report.PeakBytes), mebibytes(r.p.MaxMemory))
	}
}

func mebibytes(n int64) string { return fmt.Sprintf("%.0f MiB", float64(n)/(1<<20)) }

// checkProbes: every rank had a warm hit and an intentional miss.
func (r *runner) checkProbes() {
	for rank := range max(r.p.Cluster.Decoder.Ranks, 1) {
		seen := func(kind, route string) bool {
			return slices.ContainsFunc(r.report.Probes, func(p Probe) bool {
				return p.Rank == rank && p.Kind == kind && p.Route == route && p.Error == ""
			})
		}
		hit, miss := seen(kindHit, "local"), seen(kindMiss, "fallback")
		r.verify(fmt.Sprintf("probes on rank %d", rank), hit && miss, "warm hit: %s, intentional miss: %s", yesNo(hit), yesNo(miss))
	}
	for _, p := range r.report.Probes {
		if p.Error != "" {
			r.verify("probe "+p.RequestID, false, "%s: %s", p.Kind, p.Error)
		}
	}
}

func yesNo(ok bool) string {
	if ok {
		return "yes"
	}
	return "no"
}

// checkArm: every answer valid and the right one, the traces without
// contradiction, every byte accounted for, nothing held afterwards.
func (r *runner) checkArm(a *Arm) {
	n, s := r.report.Workload.Requests, &a.Summary
	valid := fmt.Sprintf("%d of %d", s.Valid, n)
	if s.FirstError != "" {
		valid += "; " + s.FirstError
	}
	r.verify(a.Name+": valid answers", s.Valid == n, "%s", valid)
	r.verify(a.Name+": correct answers", a.Correct == n, "%d of %d equal the run without any cache", a.Correct, n)
	r.verify(a.Name+": same as baseline", a.SameAsBaseline == n, "%d of %d", a.SameAsBaseline, n)
	r.verify(a.Name+": workload", a.WorkloadHash == r.report.Workload.Hash, "sha256 %.12s", a.WorkloadHash)
	cold := 0
	for i := range a.records {
		if !a.records[i].FollowUp() {
			cold += a.records[i].CachedTokens
		}
	}
	r.verify(a.Name+": cold namespace", cold == 0, "%d cached tokens on first turns under salt %s", cold, a.CacheSalt)
	detail := "proxy, scheduler and connector agree on every request"
	if len(a.problems) > 0 {
		detail = fmt.Sprintf("%d contradictions, such as: %s", len(a.problems), strings.Join(a.problems[:min(len(a.problems), shownProblems)], "; "))
	}
	r.verify(a.Name+": joined traces", len(a.problems) == 0, "%s", detail)
	bytes := r.blockBytes()
	r.verify(a.Name+": KV bytes", bytes > 0 && a.KVBytes == a.KVBlocks*bytes && float64(a.KVBytes) == a.CountedBytes && float64(a.KVBlocks) == a.CountedBlocks,
		"%d bytes pulled = %d blocks × %d bytes; counters say %.0f bytes and %.0f blocks", a.KVBytes, a.KVBlocks, bytes, a.CountedBytes, a.CountedBlocks)
	r.verify(a.Name+": nothing held", a.HeldAfter == 0, "%.0f blocks held after the arm", a.HeldAfter)
}

// checkFeature: the follow-ups were hits or fallbacks on every rank, and the
// Prefiller's queue and the time to the first token fell.
func (r *runner) checkFeature(base, a *Arm) {
	followUps := r.report.Workload.FollowUps
	r.verify("one after the other", base.Started < base.Ended && base.Ended <= a.Started && a.Started < a.Ended,
		"%s from %.1f s to %.1f s, %s from %.1f s to %.1f s", base.Name, base.Started, base.Ended, a.Name, a.Started, a.Ended)
	r.verify("hits and fallbacks", a.Hits+a.Fallbacks == followUps, "%d + %d of %d follow-ups", a.Hits, a.Fallbacks, followUps)
	r.verify("hit share", float64(a.Hits) >= r.p.HitShare*float64(followUps), "%d of %d follow-ups, at least %.0f %%", a.Hits, followUps, 100*r.p.HitShare)
	r.verify("fallbacks", a.Fallbacks >= r.p.MinFallbacks, "%d, at least %d", a.Fallbacks, r.p.MinFallbacks)
	for rank := range a.RankHits {
		r.verify(fmt.Sprintf("rank %d sees both", rank), a.RankHits[rank] > 0 && a.RankFallbacks[rank] > 0, "%d hits, %d fallbacks", a.RankHits[rank], a.RankFallbacks[rank])
	}
	r.verify("queue peak falls", a.QueuePeak < base.QueuePeak, "%.0f to %.0f requests waiting at the Prefiller", base.QueuePeak, a.QueuePeak)
	r.verify("TTFT p50 falls", a.Summary.TTFT.P50 < base.Summary.TTFT.P50, "%.3f s to %.3f s", base.Summary.TTFT.P50, a.Summary.TTFT.P50)
}

// checkEngines: every engine states its scheduling mode and runner generation,
// and Prefillers agree with the Decoder in both.
func (r *runner) checkEngines() {
	first := r.report.Engines[0]
	ok := first.Scheduling != "" && first.Runner != ""
	for _, e := range r.report.Engines {
		ok = ok && e.Scheduling == first.Scheduling && e.Runner == first.Runner
	}
	r.verify("one runner", ok, "%s scheduling, model runner %s, in all %d engines", first.Scheduling, first.Runner, len(r.report.Engines))
}
