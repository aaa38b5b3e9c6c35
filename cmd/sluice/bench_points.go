package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluice-serving/sluice/internal/bench/overlap"
	"github.com/sluice-serving/sluice/internal/bench/points"
	"github.com/sluice-serving/sluice/internal/sim/report"
)

const (
	presetTails  = "tails"
	presetAppend = "append-prefill-gpu"
)

// pointFlags are the flags of sluice bench for the presets that measure points.
type pointFlags struct {
	results, only, device, prefillerDevice, decoderDevice, extra, commit, accept, html, engine string
	shapes, rates, policies                                                                    string
	limit, ready                                                                               time.Duration
	most, workers, prefillerTokens, decoderTokens                                              int
	seconds                                                                                    float64
	show, markdown, alone                                                                      bool

	chosen []points.Point // to measure
}

func (f *pointFlags) define(fs *pflag.FlagSet) {
	const of = "points: "
	fs.StringVar(&f.results, "results", "", of+"file that finished points are appended to and that says which are done (default results.jsonl in --dir)")
	fs.BoolVar(&f.show, "show", false, of+"measure nothing, print the table of the results file, whatever else is given")
	fs.BoolVar(&f.markdown, "markdown", false, of+"write the table for a document")
	fs.StringVar(&f.html, "html", "", of+"also write the table with plots to this file")
	fs.DurationVar(&f.limit, "time-limit", 0, of+"end within this time; a point that would not is left for the next call (0: none)")
	fs.IntVar(&f.most, "points", 0, of+"measure so many at most (0: all)")
	fs.StringVar(&f.only, "only", "", of+"those whose name has all words of a pattern such as 1024-256+strict; patterns are separated by commas")
	fs.StringVar(&f.device, "device", "cuda", "points, and the preset "+presetOverlap+" (default host): device of the engines: cuda, ascend or host; for points with two of a kind the Prefiller gets the first and Decoders the second")
	fs.StringVar(&f.prefillerDevice, "prefiller-device", "", of+"device of the Prefiller, such as cuda:0")
	fs.StringVar(&f.decoderDevice, "decoder-device", "", of+"device of the Decoders, such as cuda:1")
	fs.StringVar(&f.extra, "kv-extra", "", of+"JSON object: kv_connector_extra_config of the connector between the engines")
	fs.StringVar(&f.engine, "engine-flags", "", "points, and the preset "+presetOverlap+": flags that all engines get beside the preset's, such as \"--model-runner 2\"")
	fs.IntVar(&f.prefillerTokens, "prefiller-kv-tokens", 0, of+"KV pool of the Prefiller (0: what suits the model)")
	fs.IntVar(&f.decoderTokens, "decoder-kv-tokens", 0, of+"KV pool of each Decoder (0: what suits the model)")
	fs.StringVar(&f.commit, "commit", "", of+"commit that lines are marked with (default what the build recorded)")
	fs.StringVar(&f.accept, "accept-commits", "", of+"commits beside it whose points in the results file count, separated by commas")
	fs.StringVar(&f.shapes, "shapes", "", of+"others than the published: tails input/output; append-prefill-gpu prompt/output, with --sessions, --turns, and --arrival and --think as they were if a prompt took 1.085 s; separated by commas")
	fs.StringVar(&f.rates, "rates", "", of+"with --shapes: requests a second, separated by commas")
	fs.StringVar(&f.policies, "policies", "", of+"with --shapes: policies of tails, or arms of append-prefill-gpu, separated by commas")
	fs.Float64Var(&f.seconds, "arrivals", 20, of+"seconds in which requests of tails arrive")
	fs.DurationVar(&f.ready, "ready-timeout", 3*time.Minute, of+"how long an engine may take to become ready")
	fs.BoolVar(&f.alone, "alone", true, of+"before a Decoder's first point of a shape measure requests that meet nobody: what the simulator takes for the way between the engines")
	fs.IntVar(&f.workers, "device-workers", 0, of+"CPU cores per operation of the host device")
}

// tableOf is the table of a preset's points.
func tableOf(preset string) string {
	if preset == presetAppend {
		return points.AppendPrefill
	}
	return points.Tails
}

// choose finds the points that the flags ask for, or what is wrong with the flags.
func (f *pointFlags) choose(cmd *cobra.Command, b *benchFlags) (err error) {
	if err := f.check(); err != nil {
		return err
	}
	repeats := 3
	if cmd.Flags().Changed("repeat") {
		repeats = b.repeat
	}
	f.chosen, err = f.list(cmd, tableOf(b.preset), b, repeats)
	return err
}

// run measures, prints the table and writes the page.
func (f *pointFlags) run(cmd *cobra.Command, b *benchFlags) (err error) {
	table := tableOf(b.preset)
	if f.results == "" {
		f.results = filepath.Join(b.folder(), "results.jsonl")
	}
	out := cmd.OutOrStdout()
	if f.show {
		return f.print(out, table)
	}
	o := points.Options{
		Points: f.chosen, Results: f.results, Dir: b.folder(), Workers: f.workers, PrefillerTokens: f.prefillerTokens, DecoderTokens: f.decoderTokens,
		Extra: f.extra, NoAlone: !f.alone, Limit: f.limit, Most: f.most, ReadyTimeout: f.ready, Out: out,
		Origin: points.Origin{Commit: f.commit, Command: strings.Join(os.Args, " "), Flags: strings.Join(strings.Fields(f.engine), " ")},
	}
	if o.Commit == "" {
		if o.Commit, err = buildCommit(); err != nil {
			return err
		}
	}
	if f.accept != "" {
		o.Accept = strings.Split(f.accept, ",")
	}
	if o.PrefillerDevice, o.DecoderDevice, o.Hardware, err = f.devices(cmd.Context()); err != nil {
		return err
	}
	fmt.Fprintf(out, "%s on %s, commit %s\n", b.preset, o.Hardware, o.Commit)
	res, err := points.Run(cmd.Context(), o)
	if res == nil {
		return err
	}
	fmt.Fprintf(out, "%d points measured, %d not kept, %d left\n", res.Measured, res.Failed, len(res.Left))
	for i := range res.Left {
		if fmt.Fprintf(out, "  left: %s\n", res.Left[i].Key()); i == 9 && len(res.Left) > 11 {
			fmt.Fprintf(out, "  left: … and %d more\n", len(res.Left)-10)
			break
		}
	}
	err = errors.Join(err, f.print(out, table))
	if res.Failed > 0 {
		err = errors.Join(err, fmt.Errorf("%d points had answers that were not valid", res.Failed))
	}
	return err
}

// check reports values that an engine would refuse, or take for none.
func (f *pointFlags) check() error {
	var errs []error
	for _, pool := range []struct {
		flag   string
		tokens int
	}{{"prefiller-kv-tokens", f.prefillerTokens}, {"decoder-kv-tokens", f.decoderTokens}} {
		if pool.tokens > 0 && pool.tokens < points.BlockSize {
			errs = append(errs, fmt.Errorf("--%s is %d, must be 0 or at least %d, a block", pool.flag, pool.tokens, points.BlockSize))
		}
	}
	if f.extra != "" && json.Unmarshal([]byte(f.extra), new(map[string]any)) != nil {
		errs = append(errs, fmt.Errorf("--kv-extra %q is not JSON of an object", f.extra))
	}
	return errors.Join(errs...)
}

// print writes the table of the results file, and the page.
func (f *pointFlags) print(out io.Writer, table string) error {
	lines, err := points.Read(f.results)
	if err != nil {
		return err
	}
	form := points.Text
	if f.markdown {
		form = points.Markdown
	}
	if err := points.Print(out, lines, table, form); err != nil || f.html == "" {
		return err
	}
	file, err := os.Create(f.html)
	if err != nil {
		return err
	}
	return errors.Join(report.Write(file, points.Page(lines, table)), file.Close())
}

// list is the points that the flags ask for.
func (f *pointFlags) list(cmd *cobra.Command, table string, b *benchFlags, repeats int) ([]points.Point, error) {
	groups := points.TailsGroups()
	if table == points.AppendPrefill {
		groups = points.AppendGroups()
	}
	if f.shapes != "" {
		var err error
		if groups, err = f.groups(cmd, table, b); err != nil {
			return nil, err
		}
	} else {
		var errs []error
		for _, name := range []string{"rates", "policies", "sessions", "turns", "arrival", "think"} {
			if given := cmd.Flags().Lookup(name); given.Changed {
				errs = append(errs, fmt.Errorf("--%s is %s: needs --shapes; --only picks from the published points", name, given.Value))
			}
		}
		if err := errors.Join(errs...); err != nil {
			return nil, err
		}
		for i := range groups {
			groups[i].Seconds = f.seconds
		}
	}
	list := points.Matching(points.List(table, groups, repeats), f.only)
	if b.model != "" {
		kept := list[:0]
		for _, p := range list {
			if p.Model == b.model {
				kept = append(kept, p)
			}
		}
		list = kept
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("no point matches --only %q and --model %q", f.only, b.model)
	}
	return list, nil
}

// groups are points of other shapes than the published ones.
func (f *pointFlags) groups(cmd *cobra.Command, table string, b *benchFlags) ([]points.Group, error) {
	if b.model == "" {
		return nil, errors.New("--shapes needs --model")
	}
	g := points.Group{Model: b.model, Seconds: f.seconds, Sessions: b.sessions, Turns: b.turns, Policies: []string{points.Strict, points.Hardened}, Rates: []float64{8}, Arms: points.Arms}
	if cmd.Flags().Changed("arrival") {
		g.Window = b.arrival
	}
	if cmd.Flags().Changed("think") {
		g.Think = b.think
	}
	if f.policies != "" {
		g.Policies = strings.Split(f.policies, ",")
		g.Arms = g.Policies
		for _, arm := range g.Arms {
			if table == points.AppendPrefill && !slices.Contains(points.Arms, arm) {
				return nil, fmt.Errorf("--policies %q: %q is no arm: there are %s", f.policies, arm, strings.Join(points.Arms, ", "))
			}
		}
	}
	if f.rates != "" {
		g.Rates = nil
		for text := range strings.SplitSeq(f.rates, ",") {
			rate, err := strconv.ParseFloat(text, 64)
			if err != nil || !(rate > 0) {
				return nil, fmt.Errorf("--rates %q: %q is no positive number", f.rates, text)
			}
			g.Rates = append(g.Rates, rate)
		}
	}
	var out []points.Group
	for text := range strings.SplitSeq(f.shapes, ",") {
		in, outputs, _ := strings.Cut(text, "/")
		a, errA := strconv.Atoi(in)
		z, errZ := strconv.Atoi(outputs)
		if errA != nil || errZ != nil || a < 1 || z < 1 {
			return nil, fmt.Errorf("--shapes %q: %q is not of the form prompt/output", f.shapes, text)
		}
		if table == points.AppendPrefill && a < points.BlockSize {
			return nil, fmt.Errorf("--shapes %q: a prompt of %d tokens fills no block of %d: nothing of it would be kept", f.shapes, a, points.BlockSize)
		}
		h := g
		h.Output = z
		if table == points.Tails {
			h.Input = a
		} else {
			h.Prompt = a
		}
		out = append(out, h)
	}
	return out, nil
}

// on puts the engines of the preset overlap onto --device.
func (f *pointFlags) on(ctx context.Context, p *overlap.Params) error {
	b, ordinal, info, err := findDevice(ctx, "device", f.device)
	if err != nil {
		return err
	}
	p.On(b.Name(), f.device, len(info.Devices)-ordinal)
	return nil
}

// devices says where the engines run, and on what.
func (f *pointFlags) devices(ctx context.Context) (prefiller, decoder, hardware string, err error) {
	prefiller, decoder = f.prefillerDevice, f.decoderDevice
	names := map[string]string{}
	b, ordinal, info, err := findDevice(ctx, "device", f.device)
	if err != nil {
		return "", "", "", err
	}
	for _, given := range [][2]string{{"prefiller-device", prefiller}, {"decoder-device", decoder}} {
		if given[1] == "" {
			continue
		}
		if _, _, _, err := findDevice(ctx, given[0], given[1]); err != nil {
			return "", "", "", err
		}
	}
	for _, d := range info.Devices {
		names[b.Name()+":"+strconv.Itoa(d.Ordinal)] = d.Name
	}
	first := b.Name() + ":" + strconv.Itoa(ordinal)
	second := b.Name() + ":" + strconv.Itoa(ordinal+1)
	if prefiller == "" {
		prefiller = first
	}
	if decoder == "" {
		if decoder = first; names[second] != "" {
			decoder = second
		}
	}
	name := func(device string) string {
		if n := names[device]; n != "" {
			return n
		}
		return device
	}
	hardware = fmt.Sprintf("%s for P and %s for D of one host, %d CPU cores", name(prefiller), name(decoder), runtime.NumCPU())
	if prefiller == decoder {
		hardware = fmt.Sprintf("one %s for P and D, %d CPU cores", name(prefiller), runtime.NumCPU())
	}
	if part := os.Getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"); part != "" && b.Name() == "cuda" {
		hardware += ", each engine on " + part + " % of its multiprocessors (MPS)"
	}
	return prefiller, decoder, hardware, nil
}

// buildCommit is the commit that the build recorded.
func buildCommit() (string, error) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "", errors.New("the build recorded no commit: name it with --commit")
	}
	commit, modified := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			commit = s.Value[:min(len(s.Value), 12)]
		case s.Key == "vcs.modified" && s.Value == "true":
			modified = "+modified"
		}
	}
	if commit == "" {
		return "", errors.New("the build recorded no commit: build with -buildvcs=true, or name it with --commit")
	}
	return commit + modified, nil
}
