package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/backends"
	"github.com/sluice-serving/sluice/ascendrt/selftest"
)

func newDoctorCmd() *cobra.Command {
	var device string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Try each device for a few seconds (copy, kernel, graph, timing) and say what to do about failures",
		Long: `Tries each device for a few seconds (copy, kernel, graph, timing) and says what to do about
failures. A runtime that is not here is said and is no failure, unless --device names it. The exit
status is 1 if a check failed.`,
		Example: `  sluice doctor --device cuda`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			list := backends.All()
			if device != "" {
				b, _, err := backends.Find(device)
				if err != nil {
					return err
				}
				list = []ascendrt.Backend{b}
			}
			ctx, stop := context.WithTimeout(cmd.Context(), timeout)
			defer stop()
			failed, err := selftest.Doctor(ctx, cmd.OutOrStdout(), list)
			if err == nil && failed > 0 {
				err = fmt.Errorf("%d checks failed", failed)
			}
			if err == nil && device != "" {
				err = anyDevice(ctx, list[0])
			}
			return err
		},
	}
	cmd.Flags().StringVar(&device, "device", "", "only devices of this runtime: host, cuda, ascend")
	cmd.Flags().DurationVar(&timeout, "timeout", 30*time.Second, "give up after this long")
	return cmd
}

// anyDevice is an error if the runtime that was asked for has no device: what it
// lacks has been printed.
func anyDevice(ctx context.Context, b ascendrt.Backend) error {
	r, err := b.Probe(ctx)
	if err == nil && len(r.Devices) == 0 {
		err = fmt.Errorf("%s has no device here", b.Name())
	}
	return err
}
