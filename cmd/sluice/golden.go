package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/sluice-serving/sluice/internal/golden"
)

func newGoldenCmd() *cobra.Command {
	var differences string
	cmd := &cobra.Command{
		Use:   "golden [DIR]",
		Short: "Replay recorded scheduling histories and compare every decision",
		Long: `Replays every history of a folder (*.jsonl.gz) through the scheduler and compares each
decision with the recorded one. Without DIR the folder is oracle/newer-017e9f4 under
$SLUICE_REFERENCE. Exit status 1 if a history differs that --differences does not list.`,
		Example: `  sluice golden --differences docs/differences.md histories`,
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir := ""
			if len(args) == 1 {
				dir = args[0]
			} else if root := os.Getenv("SLUICE_REFERENCE"); root != "" {
				dir = filepath.Join(root, "oracle", "newer-017e9f4")
			} else {
				return fmt.Errorf("no folder given and SLUICE_REFERENCE is not set")
			}
			var listed map[string]string
			if differences != "" {
				var err error
				if listed, err = golden.Listed(differences); err != nil {
					return err
				}
			}
			return golden.Run(cmd.OutOrStdout(), dir, listed)
		},
	}
	cmd.Flags().StringVar(&differences, "differences", "", "Markdown file with the table of histories that may differ")
	return cmd
}
