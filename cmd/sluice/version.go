package main

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// exitError carries a process exit status out of a subcommand.
type exitError struct {
	status int
	err    error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// exitStatus is 1 unless the error carries a status of its own.
func exitStatus(err error) int {
	if e, ok := errors.AsType[*exitError](err); ok {
		return e.status
	}
	return 1
}

func newVersionCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version, the commit, the Go version and the platform",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "sluice %s\n", versionLine())
			return err
		},
	}
}

// versionLine is the version, Go's, and the platform.
func versionLine() string {
	v := "unknown"
	if info, ok := debug.ReadBuildInfo(); ok {
		v = version(info)
	}
	return fmt.Sprintf("%s %s %s/%s", v, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// version is the module's version, with the commit that the build recorded.
func version(info *debug.BuildInfo) string {
	set := map[string]string{}
	for _, s := range info.Settings {
		set[s.Key] = s.Value
	}
	v := strings.Trim(info.Main.Version, "()")
	if commit := set["vcs.revision"]; commit != "" {
		v += fmt.Sprintf(" (commit %.12s of %s", commit, set["vcs.time"])
		if set["vcs.modified"] == "true" {
			v += ", modified"
		}
		v += ")"
	}
	return v
}
