package points

import (
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"

	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/internal/sim"
	"github.com/sluice-serving/sluice/internal/sim/tails"
)

// predictedWithin is how far a prediction may be off, as a share.
const predictedWithin = 0.15

// Assumed is what a prediction takes beside measured steps where a line does not
// say what requests take alone. Zero values mean the defaults.
type Assumed struct {
	Hop      float64 // seconds between client, proxy and engine, one way; default 0.3 ms
	Ahead    float64 // seconds from a request's arrival at the Decoder to its KV's first byte; default Hop
	Transfer float64 // bytes a second of KV between the engines; default 100 GB/s
	Restore  float64 // bytes a second from the host tier; default 25 GB/s
	Save     float64 // bytes a second to it; default Restore
	Stop     bool    // sessions just stop, as where engines heard too late that a turn was the last
}

func (a Assumed) withDefaults() Assumed {
	def := func(v *float64, d float64) {
		if *v == 0 {
			*v = d
		}
	}
	def(&a.Hop, 0.3e-3)
	def(&a.Ahead, a.Hop)
	def(&a.Transfer, 100e9)
	def(&a.Restore, 25e9)
	def(&a.Save, a.Restore)
	return a
}

// way is what no step explains, in seconds.
type way struct {
	hop, transferAt float64
	more            float64 // that a step takes where it serves
	late            float64 // that the first event comes
}

// way is taken from the requests that went alone: what each part of one's time is
// beyond the steps in it.
func (r *Row) way(steps *sim.Steps, a Assumed) way {
	prompt := float64(max(r.Input, r.Prompt))
	prefill, x := steps.Prompt(prompt), r.Alone
	switch {
	case x == nil && r.PromptMs > 0: // the Prefiller was asked directly; an answer that goes on to a Decoder has a hop more
		hop := max(r.PromptMs/1e3-prefill, 2*a.Hop) / 2
		return way{hop: hop, transferAt: hop + a.Ahead}
	case x == nil:
		return way{hop: a.Hop, transferAt: a.Ahead}
	}
	step := steps.Decode(graphs.Full, 1, prompt+float64(x.Output)/2)
	w := way{more: max(x.Gap/1e3-step, 0), late: x.Late / 1e3, hop: max(x.Prompt/1e3-prefill, 0) / 2}
	w.transferAt = max(x.TTFT/1e3-3*w.hop-prefill-r.TokenBytes/a.Transfer*prompt-step-w.more-w.late, 0)
	return w
}

// Figure is a number that was both predicted and measured.
type Figure struct {
	Name                string
	Predicted, Measured float64
}

// Off is the deviation of the prediction as a share of what was measured; NaN
// where nothing was measured.
func (f Figure) Off() float64 {
	if f.Measured == 0 {
		if f.Predicted == 0 {
			return 0
		}
		return math.NaN()
	}
	return f.Predicted/f.Measured - 1
}

// Comparison is a row beside what the simulator says.
type Comparison struct {
	Row     Row
	Figures []Figure
}

// Predict plays every row of a table in the simulator, with the measured steps
// of its model.
func Predict(lines []Line, table string, steps func(model string) (*sim.Steps, error), a Assumed) ([]Comparison, error) {
	var out []Comparison
	known := map[string]*sim.Steps{}
	for _, r := range Rows(lines, table) {
		model := shape(r.Model)
		s, ok := known[model]
		if !ok {
			var err error
			if s, err = steps(model); err != nil {
				return nil, err
			}
			known[model] = s
		}
		play := r.predictTails
		if table == AppendPrefill {
			play = r.predictArm
		}
		figures, err := play(s, a.withDefaults())
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.Case(), err)
		}
		out = append(out, Comparison{r, figures})
	}
	return out, nil
}

// seeds is the number of runs of which a prediction of tails is the mean.
const seeds = 8

// predictTails plays arrivals at a Decoder, and for the time to the first token
// the measured ones the whole way through the Prefiller.
func (r *Row) predictTails(steps *sim.Steps, a Assumed) ([]Figure, error) {
	policy, err := graphs.ParsePolicy(r.Policy)
	if err != nil {
		return nil, err
	}
	context, more := float64(r.Input)+float64(r.Output)/2, r.way(steps, a).more
	seqs := min(r.Sizes.Seqs, max(r.Sizes.DecoderTokens/(r.Input+r.Output), 1))
	p, err := tails.Mean(r.Rate, seeds, func(c *tails.Config) {
		c.Duration, c.Prompt, c.Output = r.Seconds, r.Input, r.Output
		c.Graphs.Policy, c.Graphs.MaxNumSeqs, c.Graphs.MaxNumBatchedTokens = policy, seqs, max(r.Sizes.DecoderStep, seqs)
		c.Took = func(rows, padded int, mode graphs.Mode) float64 {
			return more + steps.Padded(mode, float64(padded), float64(rows), context)
		}
	})
	if err != nil {
		return nil, err
	}
	whole := r.served(steps, a)
	w, err := r.arrivals()
	if err != nil {
		return nil, err
	}
	var starts []float64
	for i := range w.Sessions {
		starts = append(starts, w.Sessions[i].Arrival.Seconds())
	}
	whole.Load = sim.Conversations{
		Starts: starts,
		Count:  len(starts), Rounds: 1, Window: r.Seconds, PromptMin: r.Input, PromptMax: r.Input, AddMin: 1, AddMax: 1,
		OutMin: r.Output, OutMax: r.Output, Seed: uint64(r.Input),
	}
	way, err := whole.Arm(sim.ArmPD)
	if err != nil {
		return nil, err
	}
	return []Figure{
		{"FULL", p.Full, float64(r.Full)}, {"non-FULL", p.NonFull, float64(r.Piecewise + r.None)},
		{"TPOT ms", 1e3 * p.TPOT, r.TPOT.Mean}, {"ITL p99 ms", 1e3 * p.P99ITL, r.ITL.P99},
		{"TTFT p50 ms", 1e3*way.TTFTp50S + r.Client.SentP50Ms, r.TTFT.P50},
	}, nil
}

// served is the engines of a row as the simulator takes them.
func (r *Row) served(steps *sim.Steps, a Assumed) sim.Served {
	w, ends := r.way(steps, a), sim.EndsAnnounced
	if a.Stop {
		ends = sim.EndsUnknown
	}
	return sim.Served{
		More: w.more, Late: w.late, Ends: ends,
		Steps: steps, BlockSize: BlockSize, PrefillerTokens: r.Sizes.PrefillerTokens, DecoderTokens: r.Sizes.DecoderTokens,
		PrefillerStep: r.Sizes.PrefillerStep, DecoderStep: r.Sizes.DecoderStep, Seqs: r.Sizes.Seqs,
		Hop: w.hop, TransferAt: w.transferAt, Transfer: r.TokenBytes / a.Transfer,
	}
}

// predictArm plays the conversations through the real scheduler, cache and
// routing.
func (r *Row) predictArm(steps *sim.Steps, a Assumed) ([]Figure, error) {
	part := func(tokens int) int { return max(1, tokens*r.Prompt/publishedLength) }
	s := r.served(steps, a)
	s.Load = sim.Conversations{
		Count: r.Sessions, Rounds: r.Turns, Window: r.Window.Seconds() / r.Factor, ThinkTime: r.Think.Seconds() / r.Factor,
		PromptMin: max(1, r.Prompt-part(34)), PromptMax: r.Prompt, AddMin: part(40), AddMax: part(200), OutMin: r.Output, OutMax: r.Output, Seed: 19884,
	}
	if r.TokenBytes > 0 {
		s.HostTokens, s.Save, s.Restore = int(float64(r.Sizes.Host)/r.TokenBytes), r.TokenBytes/a.Save, r.TokenBytes/a.Restore
	}
	p, err := s.Arm(r.Arm)
	if err != nil {
		return nil, err
	}
	return []Figure{
		{"total s", p.TotalS, r.TotalS}, {"TTFT p50 ms", 1e3*p.TTFTp50S + r.Client.SentP50Ms, r.TTFT.P50}, {"TTFT p95 ms", 1e3*p.TTFTp95S + r.Client.SentP50Ms, r.TTFT.P95},
		{"TPOT p50 ms", p.TPOTp50MS, r.TPOT.P50}, {"TPOT p95 ms", p.TPOTp95MS, r.TPOT.P95},
		{"hits", float64(p.Hits), float64(r.Hits)}, {"P queue peak", float64(p.QueuePeak), r.QueuePeak},
	}, nil
}

// PrintComparisons writes predicted beside measured, with the deviation.
func PrintComparisons(out io.Writer, list []Comparison) error {
	if len(list) == 0 {
		_, err := fmt.Fprintln(out, "no point is measured")
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	head := []string{"case"}
	for _, f := range list[0].Figures {
		head = append(head, f.Name, "measured", "off")
	}
	fmt.Fprintln(w, strings.Join(head, "\t")+"\t")
	within, all := 0, 0
	for _, c := range list {
		cells := []string{strings.TrimPrefix(c.Row.Case(), c.Row.Table+"/")}
		for _, f := range c.Figures {
			off := "-"
			if x := f.Off(); !math.IsNaN(x) {
				off = fmt.Sprintf("%+.1f %%", 100*x)
				if math.Abs(x) > predictedWithin {
					off += " !"
				} else {
					within++
				}
			}
			all++
			cells = append(cells, figure(f.Predicted), figure(f.Measured), off)
		}
		fmt.Fprintln(w, strings.Join(cells, "\t")+"\t")
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "%d of %d figures are within %.0f %%; the others are marked\n", within, all, 100*predictedWithin)
	return err
}

// figure writes a number with as many digits as say something.
func figure(x float64) string {
	switch a := math.Abs(x); {
	case a >= 100:
		return fixed(x, 0)
	case a >= 10:
		return fixed(x, 1)
	}
	return fixed(x, 3)
}
