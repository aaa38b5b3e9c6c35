package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/backends"
	"github.com/sluice-serving/sluice/ascendrt/selftest"
)

func newDevicesCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "devices",
		Short: "List the devices of this machine, the libraries that were found, and what is missing",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return selftest.List(cmd.Context(), cmd.OutOrStdout(), backends.All())
		},
	}
}

// findDevice finds the device that a flag names: its backend, its number, and
// what devices there are.
func findDevice(ctx context.Context, flag, value string) (b ascendrt.Backend, ordinal int, there ascendrt.Report, err error) {
	if b, ordinal, err = backends.Find(value); err != nil {
		return nil, 0, there, fmt.Errorf("--%s: %w", flag, err)
	}
	if there, err = b.Probe(ctx); err != nil {
		return nil, 0, there, fmt.Errorf("--%s: device %q: %w", flag, value, err)
	}
	if len(there.Devices) == 0 {
		return nil, 0, there, fmt.Errorf("--%s: device %q: %s", flag, value, there.Problem)
	}
	if !slices.ContainsFunc(there.Devices, func(d ascendrt.Info) bool { return d.Ordinal == ordinal }) {
		return nil, 0, there, fmt.Errorf("--%s: device %q: the last one of %s is number %d", flag, value, b.Name(), there.Devices[len(there.Devices)-1].Ordinal)
	}
	return b, ordinal, there, nil
}
