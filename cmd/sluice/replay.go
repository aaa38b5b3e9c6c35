package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/sluice-serving/sluice/scheduler"
)

func newReplayCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "replay FILE",
		Short: "Make the plans of a recorded scheduler again and compare them",
		Long: "Read a recording of a scheduler (scheduler.Recorder), tell a new scheduler the same things in the same\n" +
			"order, and compare every plan byte by byte and every output. The first difference is printed.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := os.Open(args[0])
			if err != nil {
				return err
			}
			defer func() { _ = f.Close() }() // read only
			sum, err := scheduler.Replay(f)
			if err != nil {
				return err
			}
			if sum.Divergence != nil {
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "after %d equal plans: %s\n", max(sum.Plans-1, 0), sum.Divergence)
				return errors.Join(errors.New("the replay diverges from the recording"), err)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%d lines, %d plans and %d outputs equal\n", sum.Lines, sum.Plans, sum.Outputs)
			return err
		},
	}
}
