// Command sluice is the one binary of the project: a session-affine P/D proxy,
// a reference engine, and the tools around them. Each subcommand is a small
// file of this package; flags and wiring live here, logic does not.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// commands lists the subcommands in the order that help shows them.
var commands = []func() *cobra.Command{
	newUpCmd,
	newBenchCmd,
	newExplainCmd,
	newServeCmd,
	newSimCmd,
	newVersionCmd,
	newProxyCmd,
	newEvalCmd,
	newGoldenCmd,
	newReplayCmd,
	newCacheCmd,
	newDevicesCmd,
	newDoctorCmd,
}

func newRootCmd() *cobra.Command {
	root := &cobra.Command{
		Use:           "sluice",
		Short:         "A scheduler core for LLM serving engines, its proxy and its reference engine",
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       versionLine(),
	}
	root.SetVersionTemplate("sluice {{.Version}}\n")
	root.SetFlagErrorFunc(withHelp)
	for _, make := range commands {
		cmd := make()
		complete(cmd)
		if args := cmd.Args; args != nil {
			cmd.Args = func(cmd *cobra.Command, given []string) error {
				return withHelp(cmd, errors.Join(args(cmd, given), within(cmd)))
			}
		}
		root.AddCommand(cmd)
	}
	return root
}

// withHelp says of a mistake in what was typed where it is said what to type.
func withHelp(cmd *cobra.Command, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w (%s --help lists what there is)", err, cmd.CommandPath())
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newRootCmd().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "sluice:", err)
		os.Exit(exitStatus(err))
	}
}
