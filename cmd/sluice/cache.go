package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sluice-serving/sluice/internal/sim/cachetrace"
	"github.com/sluice-serving/sluice/internal/sim/trace"
)

func newCacheCmd() *cobra.Command {
	var (
		file, ids       string
		blocks          int
		asJSON, lenient bool
	)
	cmd := &cobra.Command{
		Use:   "cache --trace FILE --blocks N",
		Short: "Count the prefix-cache hits of a trace in a cache of N blocks",
		Long: `Runs the block ids of a request trace, in order of time, through the block cache and counts
hits. A request hits its leading blocks that are cached; then all its blocks become the most
recently used, the last block first. A request longer than N keeps its first N blocks. N = 0
is unbounded.`,
		Example: `  sluice cache --trace requests.jsonl.gz --blocks 50000 --json`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			choice, err := trace.ParseIDs(ids)
			if err != nil {
				return err
			}
			strictness := trace.Strict
			if lenient {
				strictness = trace.Lenient
			}
			t, err := trace.Open(file, strictness)
			if err != nil {
				return err
			}
			for _, b := range t.Broken {
				fmt.Fprintf(cmd.ErrOrStderr(), "%s: %v\n", file, b)
			}
			res, err := cachetrace.Run(t, blocks, choice)
			if err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
			if asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(res)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "requests %d\nblocks %d\nhit blocks %d (%.4f)\n", res.Requests, res.Blocks, res.Hits, res.Ratio())
			return err
		},
	}
	cmd.Flags().StringVar(&file, "trace", "", "trace file: JSON lines with hash_ids or hash_runs, .gz is unpacked")
	cmd.Flags().IntVar(&blocks, "blocks", 0, "capacity in blocks of the trace; 0 is unbounded")
	cmd.Flags().StringVar(&ids, "ids", "auto", "where a block id holds: auto, file or session")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	cmd.Flags().BoolVar(&lenient, "lenient", false, "leave broken lines out, and say which")
	_ = cmd.MarkFlagRequired("trace") // the flag exists
	return cmd
}
