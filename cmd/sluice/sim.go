package main

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/sluice-serving/sluice/internal/sim"
)

func newSimCmd() *cobra.Command {
	var preset string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "sim",
		Short: "Play a workload through real schedulers, caches and routing on a virtual clock",
		Long: `Plays a workload through real scheduler cores, caches and routing decisions on a
virtual clock, with a cost model in place of devices. The same inputs give the
same report, byte for byte.

Presets:
  append-prefill  the published Decoder Append-Prefill experiment: 90 sessions of
                  three turns, one Prefiller, a Decoder of two ranks
  shared-prompt   the same with a system prompt that all sessions share`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			run, ok := map[string]func() (*sim.Report, error){"append-prefill": sim.AppendPrefill, "shared-prompt": sim.SharedPrompt}[preset]
			if !ok {
				return fmt.Errorf("preset %q is unknown: there are append-prefill and shared-prompt", preset)
			}
			rep, err := run()
			if err != nil {
				return err
			}
			if asJSON {
				enc := json.NewEncoder(cmd.OutOrStdout())
				enc.SetIndent("", "  ")
				return enc.Encode(rep)
			}
			return printSim(cmd.OutOrStdout(), rep)
		},
	}
	cmd.Flags().StringVar(&preset, "preset", "append-prefill", "what to play")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the report as JSON")
	return cmd
}

func printSim(out io.Writer, rep *sim.Report) error {
	fmt.Fprintf(out, "preset %s, %d blocks of %d tokens on each decoder rank\n\n", rep.Preset, rep.DecodeBlocks, rep.BlockSize)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "arm\ttotal s\tTTFT p50 s\tTTFT p95 s\tTPOT p50 ms\tTPOT p95 ms\thits\tfallbacks\tqueue peak\tnon-FULL %\t")
	for _, a := range rep.Arms {
		fmt.Fprintf(w, "%s\t%.1f\t%.2f\t%.2f\t%.1f\t%.1f\t%d\t%d\t%d\t%.1f\t\n",
			a.Name, a.TotalS, a.TTFTp50S, a.TTFTp95S, a.TPOTp50MS, a.TPOTp95MS, a.Hits, a.Fallbacks, a.QueuePeak, 100*a.NonFullShare)
	}
	return w.Flush()
}
