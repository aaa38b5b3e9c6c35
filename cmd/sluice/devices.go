package main

import (
	"github.com/spf13/cobra"

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
