package points

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-serving/sluice/internal/bench/load"
	"github.com/sluice-serving/sluice/internal/bench/measure"
	"github.com/sluice-serving/sluice/internal/up"
)

// Options says what is measured, and where.
type Options struct {
	Points  []Point  // in the order in which they are measured
	Results string   // file that has and gets the lines
	Origin           // Transport, Shared and Sizes are filled in
	Accept  []string // commits beside Origin's whose lines count too, abbreviated or not
	Dir     string   // for the log and the trace files

	PrefillerDevice, DecoderDevice string // as sluice serve names them
	Workers                        int    // CPU cores per operation of the host device; 0: all
	PrefillerTokens, DecoderTokens int    // of KV; 0: what suits the model
	Extra                          string // kv_connector_extra_config of the connector between the engines, JSON; empty: none

	NoAlone      bool          // no requests go alone before the points
	Limit        time.Duration // of the whole run; points that would not end within it are left; 0: none
	Most         int           // points of this run; 0: no limit
	ReadyTimeout time.Duration // of a process; 0: 3 minutes
	Out          io.Writer
}

// Validate reports what cannot be run.
func (o *Options) Validate() error {
	var errs []error
	if o.Extra != "" && !json.Valid([]byte(o.Extra)) {
		errs = append(errs, fmt.Errorf("kv_connector_extra_config %q is not JSON", o.Extra))
	}
	for _, f := range []struct {
		name string
		v    int
	}{{"prefiller's KV tokens", o.PrefillerTokens}, {"decoder's KV tokens", o.DecoderTokens}, {"points", o.Most}, {"workers", o.Workers}} {
		if f.v < 0 {
			errs = append(errs, fmt.Errorf("%s: %d is negative", f.name, f.v))
		}
	}
	if o.Limit < 0 {
		errs = append(errs, fmt.Errorf("time limit %v is negative", o.Limit))
	}
	if o.Results == "" {
		errs = append(errs, errors.New("no results file is named"))
	}
	return errors.Join(errs...)
}

// Times that a run sets aside, as far as nothing is known.
const (
	startTime = 25 * time.Second // for engines to come up
	endTime   = 6 * time.Second  // for them to end
	overhead  = 3 * time.Second  // of a point, beside its load
)

// requestTimeout bounds one request; saturated points queue for long.
const requestTimeout = 5 * time.Minute

// Outcome is what a run did.
type Outcome struct {
	Measured int     // points
	Failed   int     // points with answers that are not valid, of their load or before it
	Left     []Point // that the results file still lacks
}

// runner carries one run.
type runner struct {
	o      *Options
	file   *File
	begun  time.Time
	fleet  *fleet
	prompt map[setup]time.Duration // measured time of one prompt

	measure func(ctx context.Context, p *Point, todo []Point) (*Line, error) // point, but in tests
}

// Run measures the points that the results file lacks, as many as the limits
// allow. Every process has ended when it returns.
func Run(ctx context.Context, o Options) (out *Outcome, err error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if o.ReadyTimeout == 0 {
		o.ReadyTimeout = 3 * time.Minute
	}
	o.Transport, o.Shared = transport(o.Extra), o.PrefillerDevice == o.DecoderDevice
	file, err := Open(o.Results, o.Commit, o.Accept)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	sup, stop, err := up.NewIn(o.Dir, up.Append, up.Config{ReadyTimeout: o.ReadyTimeout})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	client := load.NewHTTPClient()
	defer client.CloseIdleConnections()
	r := &runner{o: &o, file: file, begun: time.Now(), prompt: map[setup]time.Duration{}, fleet: &fleet{o: &o, sup: sup, client: client}}
	r.measure = r.point
	out = new(Outcome)
	group, inner := errgroup.WithContext(ctx)
	inner, done := context.WithCancel(inner)
	group.Go(func() error { // a process that dies ends the run
		select {
		case err := <-sup.Deaths():
			return err
		case <-inner.Done():
			return nil
		}
	})
	group.Go(func() error {
		defer done()
		return r.all(inner, out)
	})
	err = group.Wait()
	if err != nil {
		err = fmt.Errorf("%w (output of the processes: %s)", err, filepath.Join(o.Dir, up.LogFile))
	} else {
		err = r.fleet.stop()
	}
	out.Left = r.todo()
	return out, err
}

// todo is the points that the file lacks.
func (r *runner) todo() []Point {
	return slices.DeleteFunc(slices.Clone(r.o.Points), func(p Point) bool {
		return r.file.Done(r.origin(&p), &p)
	})
}

// origin is where a line about the point comes from.
func (r *runner) origin(p *Point) Origin {
	o := r.o.Origin
	o.Sizes = r.o.setupOf(p).Sizes
	return o
}

func (r *runner) all(ctx context.Context, out *Outcome) error {
	if r.o.Limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadlineCause(ctx, r.begun.Add(r.o.Limit-endTime), errLimit)
		defer cancel()
	}
	todo := r.todo()
	fmt.Fprintf(r.o.Out, "%d of %d points are measured already in %s\n", len(r.o.Points)-len(todo), len(r.o.Points), r.o.Results)
	for len(todo) > 0 && (r.o.Most == 0 || out.Measured+out.Failed < r.o.Most) {
		at := slices.IndexFunc(todo, func(p Point) bool { return r.fits(&p) })
		if at < 0 {
			fmt.Fprintf(r.o.Out, "the next point would not end within %v\n", r.o.Limit)
			return nil
		}
		p := todo[at]
		line, err := r.measure(ctx, &p, todo[at:])
		if errors.Is(context.Cause(ctx), errLimit) {
			fmt.Fprintf(r.o.Out, "%s was not finished within %v and is dropped\n", p.Key(), r.o.Limit)
			return nil
		}
		todo = slices.Delete(todo, at, at+1)
		if invalid := (*invalidError)(nil); errors.As(err, &invalid) {
			out.Failed++
			fmt.Fprintf(r.o.Out, "%s: %v: the point is not kept\n", p.Key(), err)
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", p.Key(), err)
		}
		if !line.complete() {
			out.Failed++
			fmt.Fprintf(r.o.Out, "%s: %d of %d answers are valid, the point is not kept: %s\n", p.Key(), line.Valid, line.Requests, line.Error)
			continue
		}
		if err := r.file.Add(*line); err != nil {
			return err
		}
		out.Measured++
		fmt.Fprintln(r.o.Out, line.brief())
	}
	return nil
}

var errLimit = errors.New("the time limit is reached")

// fits reports whether a point is expected to end within the limit.
func (r *runner) fits(p *Point) bool {
	if r.o.Limit == 0 {
		return true
	}
	return time.Since(r.begun)+r.starting(p)+r.expected(p)+endTime <= r.o.Limit
}

// starting is how long the engines of a point take to come up.
func (r *runner) starting(p *Point) time.Duration {
	s := r.o.setupOf(p)
	if r.fleet.prefiller == nil || r.fleet.setup != s {
		return startTime
	}
	if r.fleet.find(p.variant()) == nil {
		return startTime / 2
	}
	return 0
}

// expected is how long a point takes: as long as one with the same load took,
// else an estimate.
func (r *runner) expected(p *Point) time.Duration {
	var took time.Duration
	for _, l := range r.file.Lines() {
		if l.load() == p.load() {
			took = max(took, time.Duration(l.WallS*float64(time.Second)))
		}
	}
	if took > 0 {
		return took + overhead
	}
	if p.Table == AppendPrefill {
		tokens := float64(p.Sessions * p.Turns * p.Prompt) // an ordinary arm computes all of them, and a third more time passes around it
		rate := 100e3
		if p.Model == Llama {
			rate = 25e3
		}
		return time.Duration(1.4*tokens/rate*float64(time.Second)) + overhead
	}
	step, prompts, most := 0.003, 150e3, 6500.0 // seconds a token; tokens a second of prompts, and of answers over long contexts
	if p.Model == Llama {
		step, prompts, most = 0.010, 35e3, 3500
	}
	requests := p.Rate * p.Seconds
	if p.Input+p.Output <= 2048 {
		most *= 3
	}
	work := requests * float64(p.Output) / most
	if r.o.PrefillerDevice == r.o.DecoderDevice {
		work += requests * float64(p.Input) / prompts
	}
	seconds := max(p.Seconds+step*float64(p.Output), work)
	return time.Duration(seconds*float64(time.Second)) + overhead
}

// wanted is the kinds of Decoders that the points to come need, as far as they
// have the same setup and are expected to fit.
func (r *runner) wanted(todo []Point) []string {
	s := r.o.setupOf(&todo[0])
	var kinds []string
	left := r.o.Limit - time.Since(r.begun) - r.starting(&todo[0]) - endTime
	for i := range todo {
		p := &todo[i]
		if r.o.setupOf(p) != s || r.o.Most > 0 && i >= r.o.Most {
			break
		}
		if left -= r.expected(p); r.o.Limit > 0 && left < 0 && i > 0 {
			break
		}
		if !slices.Contains(kinds, p.variant()) {
			kinds = append(kinds, p.variant())
		}
	}
	return kinds
}

// point measures one point; todo begins with it.
func (r *runner) point(ctx context.Context, p *Point, todo []Point) (*Line, error) {
	s := r.o.setupOf(p)
	if err := r.fleet.ensure(ctx, s, r.wanted(todo)); err != nil {
		return nil, err
	}
	d := r.fleet.use(p.variant())
	begun := time.Now()
	l := &Line{Date: begun.UTC().Truncate(time.Second), Origin: r.origin(p), Point: *p}
	if err := r.fleet.forget(ctx, d.child.URL()); err != nil {
		return nil, err
	}
	var err error
	if p.Table == AppendPrefill {
		err = r.arm(ctx, d, l)
	} else {
		err = r.tails(ctx, d, l)
	}
	l.WallS = time.Since(begun).Seconds()
	return l, err
}

// measured runs f, which loads the Decoder, between two looks at the engines.
func (r *runner) measured(ctx context.Context, d *decoder, l *Line, f func(context.Context) ([]measure.Record, error)) ([]measure.Record, error) {
	before, _, err := r.fleet.settle(ctx, d)
	if err != nil {
		return nil, err
	}
	calm()
	lag := watch(ctx)
	records, err := f(ctx)
	lag(&l.Client)
	if err != nil {
		return nil, err
	}
	after, held, err := r.fleet.settle(ctx, d)
	if err != nil {
		return nil, err
	}
	l.HeldAfter = held
	l.client(records)
	l.engines(before, after)
	l.Client.sent(records)
	if l.TotalS > 0 {
		l.Client.EventsPS = float64(l.Events) / l.TotalS
	}
	return records, nil
}
