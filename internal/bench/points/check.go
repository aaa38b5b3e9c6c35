package points

import (
	"fmt"
	"math"
	"slices"
)

// What rows are held to; see the functions below.
const (
	shareWithin  = 0.005 // points of share from what is expected
	shareNoticed = 0.01  // from which on the p99 of the gaps must fall
	llamaWithin  = 0.05  // change of the mean time per token
	tpotAtMost   = 1.10  // guarded p95 against the ordinary arm's
	ttftAtMost   = 0.2   // guarded p95 against the ordinary arm's
	hitsAtLeast  = 155.0 / 180
)

// publishedTPOT is the published mean time per token after the change, in ms,
// of Qwen3-0.6B at 1024/256 on a B200, by rate: of a Decoder that has a device for
// itself.
var publishedTPOT = map[float64]float64{8: 1.47, 16: 1.60, 32: 1.99}

// Check is a thing that rows are held to.
type Check struct {
	Name   string
	OK     bool
	Detail string
}

func (c Check) String() string {
	verdict := "ok  "
	if !c.OK {
		verdict = "MISS"
	}
	return fmt.Sprintf("%s  %s: %s", verdict, c.Name, c.Detail)
}

// Checks holds rows of one setting to what the experiments must show. Rows that
// are not there are not judged.
func Checks(rows []Row, table string) []Check {
	var out []Check
	verify := func(ok bool, name, format string, args ...any) {
		out = append(out, Check{name, ok, fmt.Sprintf(format, args...)})
	}
	for i := range rows {
		if table == Tails {
			rows[i].checkTails(rows, verify)
		} else {
			rows[i].checkArm(rows, verify)
		}
	}
	return out
}

type verifier func(ok bool, name, format string, args ...any)

// Saturated reports whether the arrivals were not those of the rate for most
// steps: requests queued for more than a twentieth of the time in which they
// arrive, or an answer lasts so long that the steps behind the last arrival weigh.
func (r *Row) Saturated() bool {
	return r.TTFT.P95 > 1e3*r.Seconds/20 || r.TPOT.Mean*float64(r.Output) > 1e3*r.Seconds/10
}

func (r *Row) checkTails(rows []Row, verify verifier) {
	name := fmt.Sprintf("%s %d/%d at %s req/s, %s", shape(r.Model), r.Input, r.Output, number(r.Rate), r.Policy)
	switch r.Policy {
	case Strict:
		if r.Saturated() {
			return
		}
		verify(math.Abs(r.NonFullShare-r.Expected()) <= shareWithin, name, "%.2f %% of steps outside of FULL graphs, expected %.2f %%", 100*r.NonFullShare, 100*r.Expected())
		return
	case Hardened:
	default:
		return
	}
	verify(r.NonFullShare == 0, name, "%.2f %% of steps outside of FULL graphs, must be 0", 100*r.NonFullShare)
	if most, ok := publishedTPOT[r.Rate]; ok && !r.Shared && r.Model == Qwen && r.Input == 1024 && r.Output == 256 {
		verify(r.TPOT.Mean < most, name, "mean TPOT %.3f ms, published %.2f ms on a B200", r.TPOT.Mean, most)
	}
	at := slices.IndexFunc(rows, func(o Row) bool { return o.load() == r.load() && o.Policy == Strict })
	if at < 0 {
		return
	}
	strict := &rows[at]
	if r.Model == Llama {
		change := r.TPOT.Mean/strict.TPOT.Mean - 1
		verify(math.Abs(change) <= llamaWithin, name, "mean TPOT %.3f → %.3f ms (%+.1f %%), within 5 %%", strict.TPOT.Mean, r.TPOT.Mean, 100*change)
	}
	if strict.NonFullShare > shareNoticed {
		verify(r.ITL.P99 < strict.ITL.P99, name, "p99 ITL %.3f → %.3f ms (%+.1f %%) where %.2f %% of steps were lost; mean TPOT %.3f → %.3f ms (%+.1f %%)",
			strict.ITL.P99, r.ITL.P99, 100*(r.ITL.P99/strict.ITL.P99-1), 100*strict.NonFullShare, strict.TPOT.Mean, r.TPOT.Mean, 100*(r.TPOT.Mean/strict.TPOT.Mean-1))
	}
}

func (r *Row) checkArm(rows []Row, verify verifier) {
	name := fmt.Sprintf("%s, prompts of %d, %s", shape(r.Model), r.Prompt, r.Arm)
	verify(r.Valid == r.Requests, name, "%d of %d answers are valid", r.Valid, r.Requests)
	contradictions, first := 0, ""
	for i := range r.Lines {
		if contradictions += r.Lines[i].Contradicts; first == "" {
			first = r.Lines[i].Contradiction
		}
	}
	verify(contradictions == 0, name, "%d contradictions between proxy, scheduler and connector %s", contradictions, first)
	at := slices.IndexFunc(rows, func(o Row) bool { return o.load() == r.load() && o.Arm == ArmPD })
	if at < 0 || r.Arm == ArmPD {
		return
	}
	if same, of := r.same(rows); of > 0 {
		verify(same == of, name, "%d of %d answers have the tokens of the ordinary arm", same, of)
	}
	if r.Arm != ArmGuarded {
		return
	}
	base := &rows[at]
	followUps := float64(r.Sessions * (r.Turns - 1))
	verify(r.TPOT.P95 <= tpotAtMost*base.TPOT.P95, name, "TPOT p95 %.3f ms, %.2f times the ordinary arm's, at most %.2f", r.TPOT.P95, r.TPOT.P95/base.TPOT.P95, tpotAtMost)
	verify(r.TTFT.P95 <= ttftAtMost*base.TTFT.P95, name, "TTFT p95 %.1f ms, %.2f of the ordinary arm's, at most a fifth", r.TTFT.P95, r.TTFT.P95/base.TTFT.P95)
	verify(float64(r.Hits) >= hitsAtLeast*followUps, name, "%d hits of %.0f follow-ups, at least %.0f", r.Hits, followUps, hitsAtLeast*followUps)
}
