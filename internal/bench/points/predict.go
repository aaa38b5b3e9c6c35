package points

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/internal/bench/measure"
	"github.com/sluice-serving/sluice/internal/sim"
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
	Slowed   float64 // share by which a step of the Decoder takes longer while there are such copies
	Share    float64 // of its speed that a step keeps while the other engine computes, where a line's engines shared a device; default what the line says, else 0.5: they take turns
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

// figures are those of a row.
type figures []Figure

// medians takes each figure's prediction from runs, which have one value of each.
func (f figures) medians(of [][]float64) []Figure {
	for k := range f {
		values := make([]float64, len(of))
		for i := range of {
			values[i] = of[i][k]
		}
		f[k].Predicted = measure.Percentile(values, 50)
	}
	return f
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

// predictTails plays the arrivals of each repeat through the Prefiller and the Decoder,
// and takes medians over them, as they are taken of what was measured.
func (r *Row) predictTails(steps *sim.Steps, a Assumed) ([]Figure, error) {
	s := r.served(steps, a)
	var err error
	if s.Policy, err = graphs.ParsePolicy(r.Policy); err != nil {
		return nil, err
	}
	list := figures{
		{Name: "FULL", Measured: float64(r.Full)}, {Name: "non-FULL", Measured: float64(r.Piecewise + r.None)},
		{Name: "TPOT ms", Measured: r.TPOT.Mean}, {Name: "ITL p99 ms", Measured: r.ITL.P99}, {Name: "TTFT p50 ms", Measured: r.TTFT.P50},
	}
	var all [][]float64
	for i := range r.Lines {
		w, err := r.Lines[i].arrivals()
		if err != nil {
			return nil, err
		}
		s.Load = sim.Conversations{
			Count: len(w.Sessions), Rounds: 1, Window: r.Seconds, PromptMin: r.Input, PromptMax: r.Input, AddMin: 1, AddMax: 1,
			OutMin: r.Output, OutMax: r.Output, Seed: uint64(r.Input),
		}
		for k := range w.Sessions {
			s.Load.Starts = append(s.Load.Starts, w.Sessions[k].Arrival.Seconds())
		}
		p, err := s.Arm(sim.ArmPD)
		if err != nil {
			return nil, err
		}
		d := p.Result().Decode
		all = append(all, []float64{
			float64(d.Steps - d.NonFull), float64(d.NonFull), measure.NewSpread(p.Result().Values((*sim.Record).TPOT)).Mean * 1e3,
			r.Alone.gapP99(p.Result().Gaps), 1e3*p.TTFTp50S + r.Client.SentP50Ms,
		})
	}
	return list.medians(all), nil
}

// gapsLooked is of how many gaps a percentile is taken at most where they are spread.
const gapsLooked = 4000

// gapP99 is the 99th percentile in ms of gaps in seconds. Each of them is as much longer
// or shorter as the gaps of a request alone are, whatever its length, and by the factor by
// which gaps beside prompts are, as far as there are prompts beside it. Nothing is added
// where these were not kept.
func (a *Alone) gapP99(gaps []sim.Gap) float64 {
	if len(gaps) == 0 {
		return 0
	}
	off, by := []float64{0}, []float64{1}
	if a != nil && len(a.Gaps) > 1 {
		off = off[:0]
		for _, g := range a.Gaps {
			off = append(off, (g-a.Gap)/1e3)
		}
	}
	if a != nil && len(a.BesideGaps) > 1 {
		by = by[:0]
		for _, g := range a.BesideGaps {
			by = append(by, g/a.Beside)
		}
	}
	slices.SortFunc(gaps, func(x, y sim.Gap) int { return cmp.Compare(x.Took, y.Took) })
	n, every := max(len(off), len(by)), 1
	if n > 1 {
		every = (len(gaps) + gapsLooked - 1) / gapsLooked
	}
	var values []float64
	for i := every / 2; i < len(gaps); i += every {
		g := gaps[i]
		beside := min(g.Beside, g.Took)
		for k := range n { // what is late in one of them is in the other
			late := off[k*(len(off)-1)/max(n-1, 1)]*(1-beside/max(g.Took, 1e-12)) + beside*(by[k*(len(by)-1)/max(n-1, 1)]-1)
			values = append(values, 1e3*(g.Took+late))
		}
	}
	return measure.Percentile(values, 99)
}

// served is the engines of a row as the simulator takes them.
func (r *Row) served(steps *sim.Steps, a Assumed) sim.Served {
	w, ends := r.way(steps, a), sim.EndsAnnounced
	if a.Stop {
		ends = sim.EndsUnknown
	}
	share := a.Share
	switch {
	case !r.Shared:
		share = 0
	case share == 0 && r.Alone != nil && r.Alone.Beside > 0:
		share = min(max(r.Alone.Gap/r.Alone.Beside, 0.01), 1)
	case share == 0:
		share = 0.5
	}
	return sim.Served{
		More: w.more, Late: w.late, Ends: ends, Slowed: a.Slowed, Share: share,
		Steps: steps, BlockSize: BlockSize, PrefillerTokens: r.Sizes.PrefillerTokens, DecoderTokens: r.Sizes.DecoderTokens,
		PrefillerStep: r.Sizes.PrefillerStep, DecoderStep: r.Sizes.DecoderStep, Seqs: r.Sizes.Seqs, Quiet: r.Sizes.Quiet,
		Hop: w.hop, TransferAt: w.transferAt, Transfer: r.TokenBytes / a.Transfer,
	}
}

// Of a prediction of an arm so many runs are the median, whose times are up to spread
// longer and shorter: whoever comes a step later finds other blocks, so that one run says
// little.
const (
	runs   = 9
	spread = 1e-3
)

// predictArm plays the conversations through the real scheduler, cache and
// routing.
func (r *Row) predictArm(steps *sim.Steps, a Assumed) ([]Figure, error) {
	part := func(tokens int) int { return max(1, tokens*r.Prompt/publishedLength) }
	s := r.served(steps, a)
	s.Load = sim.Conversations{
		Count: r.Sessions, Rounds: r.Turns,
		PromptMin: max(1, r.Prompt-part(34)), PromptMax: r.Prompt, AddMin: part(40), AddMax: part(200), OutMin: r.Output, OutMax: r.Output, Seed: 19884,
	}
	if r.TokenBytes > 0 {
		s.HostTokens, s.Save, s.Restore = int(float64(r.Sizes.Host)/r.TokenBytes), r.TokenBytes/a.Save, r.TokenBytes/a.Restore
	}
	var err error
	if s.Attempt, err = r.attempt(s); err != nil {
		return nil, err
	}
	list := figures{
		{Name: "total s", Measured: r.TotalS}, {Name: "TTFT p50 ms", Measured: r.TTFT.P50}, {Name: "TTFT p95 ms", Measured: r.TTFT.P95},
		{Name: "TPOT p50 ms", Measured: r.TPOT.P50}, {Name: "TPOT p95 ms", Measured: r.TPOT.P95}, {Name: "hits", Measured: float64(r.Hits)}, {Name: "P queue peak", Measured: r.QueuePeak},
	}
	var all [][]float64
	for i := range runs {
		factor := r.Factor / (1 + spread*(2*float64(i)/(runs-1)-1))
		s.Load.Window, s.Load.ThinkTime = r.Window.Seconds()/factor, r.Think.Seconds()/factor
		p, err := s.Arm(r.Arm)
		if err != nil {
			return nil, err
		}
		all = append(all, []float64{
			p.TotalS, 1e3*p.TTFTp50S + r.Client.SentP50Ms, 1e3*p.TTFTp95S + r.Client.SentP50Ms, p.TPOTp50MS, p.TPOTp95MS, float64(p.Hits), float64(p.QueuePeak),
		})
	}
	return list.medians(all), nil
}

// attempt is what an append attempt takes more on its way to the Decoder than a hop: a
// hit that went alone, less what the simulator makes of one.
func (r *Row) attempt(s sim.Served) (float64, error) {
	if r.Alone == nil || r.Alone.Hit == 0 || r.Arm == ArmPD {
		return 0, nil
	}
	s.Load = sim.Conversations{
		Count: 1, Rounds: 2, ThinkTime: 1, PromptMin: r.Prompt, PromptMax: r.Prompt, AddMin: aloneNext, AddMax: aloneNext,
		OutMin: r.Alone.Output, OutMax: r.Alone.Output, Seed: aloneSeed,
	}
	p, err := s.Arm(r.Arm)
	if err != nil {
		return 0, err
	}
	last := p.Result().Records[1]
	if last.Route != sim.Hit {
		return 0, nil
	}
	return max(r.Alone.Hit/1e3-last.TTFT(), 0), nil
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
