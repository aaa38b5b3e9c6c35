package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/sluice-serving/sluice/internal/bench/points"
	"github.com/sluice-serving/sluice/internal/sim"
	"github.com/sluice-serving/sluice/internal/sim/report"
	"github.com/sluice-serving/sluice/internal/sim/trace"
)

// simFlags are the flags of sluice sim.
type simFlags struct {
	preset, trace, ids, cost, slo, profiles, html, svg string
	measured                                           string
	assumed                                            points.Assumed
	json, lenient                                      bool
	study                                              sim.StudyConfig
	replay                                             sim.ReplayOptions
	plan                                               bool
	instances                                          int
	gaps                                               []float64
	faults                                             []string
	blocks                                             int

	read   map[string]*sim.Steps // of the cost model, by the model that runs
	played int                   // requests that the run simulated
}

func newSimCmd() *cobra.Command {
	f := simFlags{study: sim.DefaultStudy()}
	cmd := &cobra.Command{
		Use:   "sim",
		Short: "Play a workload through real schedulers, caches and routing on a virtual clock",
		Long: `Plays a workload through real scheduler cores, caches and routing decisions on a
virtual clock, with a cost model in place of devices. The same inputs give the
same report, byte for byte; what the run took of this machine is told on standard
error.

With --preset:
  append-prefill  the published Decoder Append-Prefill experiment: 90 sessions of
                  three turns, one Prefiller, a Decoder of two ranks
  shared-prompt   the same with a system prompt that all sessions share
  ablations       the guarded arm with each of its guards off in turn
  pools           the guarded arm at Decoder pools of 900 to 1,000 blocks and with
                  ten seeds of the workload
  faults          twice that cluster with a Decoder that restarts, a Prefiller that
                  is lost, and a burst of five times the arrivals
  scale           1,000 instances that serve 60,000 requests in an hour; --sessions
                  for another number of requests
  sessions        a million sessions, fewer than 20,000 of them open at a time;
                  --sessions for another number
  tails           arrivals with imported KV at one Decoder: the steps that each
                  policy of graph classification loses to their prompt tails

With --trace FILE a recorded trace is played through a cluster of the given size,
once for each profile:
  pd         every turn by the Prefillers
  reverse    the same; a Prefiller reads the session's blocks back from the Decoder
  plain      append attempts on the Decoder, any usable prefix
  threshold  local where the front door predicts few uncached tokens, never refused
  guarded    append attempts with thresholds, governor, leases and overload rule
With --measured FILE the points that sluice bench has measured on devices are played with
the steps of the --cost-model, and what comes out is printed beside what was measured.

With --profile also guarded with one of them off: no-governor, no-leases,
no-overload, no-wait (the bounded wait for a busy Decoder).`,
		Example: `  sluice sim --preset append-prefill --html report.html
  sluice sim --trace requests.jsonl.gz --prefillers 2 --decoders 4 --profile pd,guarded
  sluice sim --trace requests.jsonl.gz --plan --slo ttft=2s,tpot=30ms`,
		Args:    cobra.NoArgs,
		PreRunE: func(cmd *cobra.Command, _ []string) error { return errors.Join(unread(cmd, f.use()), f.check()) },
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.run(cmd.OutOrStdout(), cmd.ErrOrStderr()); err != nil {
				return err
			}
			f.printCost(cmd.ErrOrStderr())
			return nil
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&f.preset, "preset", "append-prefill", "experiment to play")
	fl.StringVar(&f.trace, "trace", "", "recorded trace to play")
	fl.StringVar(&f.ids, "ids", "auto", "where a block id of the trace names one block: file, session, or auto to tell by the ids")
	fl.StringVar(&f.profiles, "profile", "all", "profiles to compare on a trace, separated by commas")
	fl.StringArrayVar(&f.faults, "fault", nil, "with --trace: decoder-restart@AT+FOR, prefiller-loss@AT[+FOR] or burst@AT+FORxTIMES in seconds, the instance behind the kind as in prefiller-loss:1@60; may be given several times; one that a run does not reach is an error")
	fl.StringVar(&f.cost, "cost-model", "", "with --trace: JSON file of measured step times of a Decoder rank, instead of the built-in model; with --measured: CSV file that internal/engine/steptime has written")
	fl.StringVar(&f.measured, "measured", "", "results file of sluice bench --preset tails or append-prefill-gpu to predict")
	fl.Float64Var(&f.assumed.Hop, "hop", 0, "with --measured: seconds between client, proxy and engine, one way (0: 0.0003)")
	fl.Float64Var(&f.assumed.Ahead, "transfer-ahead", 0, "with --measured: seconds from a request's arrival at the Decoder to the first byte of its KV (0: as --hop)")
	fl.BoolVar(&f.assumed.Stop, "unannounced", false, "with --measured: sessions just stop, as where engines heard too late that a turn was the last")
	fl.Float64Var(&f.assumed.Transfer, "transfer-rate", 0, "with --measured: bytes a second of KV between the engines (0: 100e9)")
	fl.Float64Var(&f.assumed.Restore, "restore-rate", 0, "with --measured: bytes a second from the host tier (0: 25e9)")
	fl.Float64Var(&f.assumed.Save, "save-rate", 0, "with --measured: bytes a second to the host tier (0: as --restore-rate)")
	fl.Float64Var(&f.assumed.Slowed, "copy-slowdown", 0, "with --measured: share by which a Decoder's step takes longer while blocks are copied to or from the host tier")
	fl.Float64Var(&f.assumed.Share, "shared-device", 0, "with --measured: share of its speed that a step keeps while the other engine computes, where a line's engines had one device (0: as the line says, else 0.5, they take turns; 1: neither slows the other down)")
	fl.BoolVar(&f.plan, "plan", false, "with --trace and --slo: look for the smallest cluster that keeps the targets in one profile (default guarded)")
	fl.StringVar(&f.slo, "slo", "", "with --plan: targets of the 95th percentiles, such as ttft=2s,tpot=30ms")
	fl.IntVar(&f.instances, "max-instances", 6, "with --plan: the most Prefillers and Decoders together")
	fl.BoolVar(&f.json, "json", false, "print the report as JSON")
	fl.StringVar(&f.html, "html", "", "also write the report with plots to this file")
	fl.StringVar(&f.svg, "svg", "", "also write the plots to this folder, a file each")
	fl.BoolVar(&f.lenient, "lenient", false, "leave broken lines of the trace out, and list them")
	fl.IntVar(&f.study.Prefillers, "prefillers", f.study.Prefillers, "number of Prefillers")
	fl.IntVar(&f.study.Decoders, "decoders", f.study.Decoders, "number of Decoders")
	fl.IntVar(&f.study.Ranks, "ranks", f.study.Ranks, "data-parallel ranks of each Decoder")
	fl.IntVar(&f.blocks, "blocks", f.study.DecodeBlocks, "KV blocks of each rank")
	fl.IntVar(&f.study.BlockSize, "block-size", f.study.BlockSize, "tokens of a KV block")
	fl.IntVar(&f.replay.Sessions, "sessions", 0, "play the first so many sessions (0: all)")
	fl.Float64Var(&f.replay.Gap, "gap", 60, "seconds between the starts of sessions, where the trace does not say")
	fl.Float64SliceVar(&f.gaps, "gaps", nil, "play the trace once for each of these gaps in seconds between the starts of sessions, and sweep the goodput's limits")
	fl.Float64Var(&f.replay.ScaleTime, "scale-time", 1, "multiply all times by this")
	fl.Float64Var(&f.replay.ScaleToken, "scale-tokens", 1, "multiply all lengths by this")
	fl.Lookup("gaps").DefValue = "" // an empty list is shown otherwise
	return cmd
}

// use is the way in which the command is called.
func (f *simFlags) use() string {
	switch {
	case f.measured != "":
		return "--measured"
	case f.plan:
		return "--plan"
	case len(f.gaps) > 0:
		return "--gaps"
	case f.trace != "":
		return "--trace"
	}
	return "--preset " + f.preset
}

// check reports flags that need others.
func (f *simFlags) check() error {
	switch {
	case f.measured != "" && f.cost == "":
		return errors.New("--measured needs --cost-model: the steps of the devices, as internal/engine/steptime writes them")
	case f.measured == "" && f.plan && f.slo == "":
		return errors.New("--plan needs --slo")
	case f.measured == "" && f.trace == "" && (f.plan || len(f.gaps) > 0):
		return errors.New("--plan and --gaps need --trace")
	}
	return nil
}

func (f *simFlags) run(out, errs io.Writer) error {
	switch {
	case f.measured != "":
		return f.predict(out)
	case f.trace != "":
		return f.playTrace(out, errs)
	case f.preset == "tails":
		return f.playTails(out)
	case f.preset == "pools":
		observe, end := bar(errs, "simulate pools")
		rep, err := sim.Pools(900, 1000, 10, 10, observe)
		end()
		if err != nil {
			return err
		}
		return f.print(out, rep, rep.Page(), "guarded arm by pool, mean (least–largest) over the seeds")
	case f.preset == "faults":
		rep, err := sim.Faults()
		if err != nil {
			return err
		}
		f.played = rep.Requests * len(rep.Rows)
		page := rep.Page()
		return f.print(out, rep, page, fmt.Sprintf("faults, %d requests a run. %s", rep.Requests, page.Summary))
	case f.preset == "scale", f.preset == "sessions":
		return f.playScale(out, errs)
	}
	run, ok := map[string]func() (*sim.Report, error){"append-prefill": sim.AppendPrefill, "shared-prompt": sim.SharedPrompt, "ablations": sim.Ablations}[f.preset]
	if !ok {
		return fmt.Errorf("preset %q is unknown: there are append-prefill, shared-prompt, ablations, pools, faults, scale, sessions and tails", f.preset)
	}
	rep, err := run()
	if err != nil {
		return err
	}
	for i := range rep.Arms {
		f.played += rep.Arms[i].Requests
	}
	page := rep.Page()
	return f.print(out, rep, page, fmt.Sprintf("preset %s, %d blocks of %d tokens on each decoder rank", rep.Preset, rep.DecodeBlocks, rep.BlockSize))
}

func (f *simFlags) playTrace(out, errs io.Writer) error {
	profiles := sim.Profiles
	if f.profiles != "all" {
		profiles = nil
		for name := range strings.SplitSeq(f.profiles, ",") {
			p, err := sim.ParseProfile(name)
			if err != nil {
				return err
			}
			profiles = append(profiles, p)
		}
	}
	for _, s := range f.faults {
		fault, err := sim.ParseFault(s)
		if err != nil {
			return err
		}
		f.study.Faults = append(f.study.Faults, fault)
	}
	t, err := openTrace(f.trace, f.lenient, errs)
	if err != nil {
		return err
	}
	if f.cost != "" {
		file, err := os.Open(f.cost)
		if err != nil {
			return err
		}
		table, err := sim.ReadTable(file)
		if err := errors.Join(err, file.Close()); err != nil {
			return fmt.Errorf("%s: %w", f.cost, err)
		}
		f.study.Decode = table
	}
	ids, err := trace.ParseIDs(f.ids)
	if err != nil {
		return err
	}
	if len(f.gaps) > 0 {
		f.study.PrefillBlocks, f.study.DecodeBlocks = f.blocks, f.blocks
		rep, err := f.study.Loads(t, ids, f.replay, f.gaps, profiles, sim.DefaultGoodput)
		if err != nil {
			return err
		}
		for _, l := range rep.Loads {
			f.count(l.Rows)
		}
		if err := f.print(out, rep, rep.Page(), t.Name+" by load"); err != nil || f.json {
			return err
		}
		fmt.Fprintf(out, "\ngoodput %% by both limits\n\n")
		return printTable(out, rep.Sweep())
	}
	load, err := sim.NewReplay(t, ids, f.replay)
	if err != nil {
		return err
	}
	if f.plan {
		return f.capacity(out, t.Name, profiles, load)
	}
	f.study.PrefillBlocks, f.study.DecodeBlocks = f.blocks, f.blocks
	rep := &sim.StudyReport{Workload: t.Name}
	for _, p := range profiles {
		row, err := f.study.Study(p, load, sim.DefaultGoodput)
		if err != nil {
			return err
		}
		rep.Rows = append(rep.Rows, row)
	}
	f.count(rep.Rows)
	return f.print(out, rep, rep.Page(), fmt.Sprintf("%s: %d conversations, %d requests", t.Name, load.Sessions(), load.Requests()))
}

// capacity prints the smallest cluster that keeps the targets.
func (f *simFlags) capacity(out io.Writer, name string, profiles []sim.Profile, load *sim.Replay) error {
	slo, err := sim.ParseSLO(f.slo)
	if err != nil {
		return err
	}
	profile := sim.ProfileGuarded
	if f.profiles != "all" {
		if len(profiles) != 1 {
			return errors.New("--plan looks at one profile")
		}
		profile = profiles[0]
	}
	host, save, restore := sim.HostTier()
	longest := (load.Longest() + f.study.BlockSize - 1) / max(f.study.BlockSize, 1) // a smaller pool could not hold every request
	rep, err := f.study.Plan(name, profile, load, slo, sim.Limits{Instances: f.instances, Blocks: f.blocks, Least: max(f.blocks/64, longest), Host: host, Save: save, Restore: restore})
	if err != nil {
		return err
	}
	f.played = load.Requests() * len(rep.Curve)
	page := rep.Page()
	return f.print(out, rep, page, page.Title+", "+string(profile)+", "+f.slo+". "+page.Summary)
}

// print writes the report as a table or JSON, and the page if it is wanted.
func (f *simFlags) print(out io.Writer, rep any, page report.Page, heading string) error {
	if f.html != "" {
		file, err := os.Create(f.html)
		if err != nil {
			return err
		}
		if err := errors.Join(report.Write(file, page), file.Close()); err != nil {
			return err
		}
	}
	if f.svg != "" {
		if err := errors.Join(os.MkdirAll(f.svg, 0o755), report.WritePlots(f.svg, page)); err != nil {
			return err
		}
	}
	if f.json {
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		return enc.Encode(rep)
	}
	fmt.Fprintf(out, "%s\n\n", heading)
	return printTable(out, page.Table)
}

func printTable(out io.Writer, t report.Table) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, row := range append([][]string{t.Columns}, t.Rows...) {
		fmt.Fprintln(w, strings.Join(row, "\t")+"\t")
	}
	return w.Flush()
}
