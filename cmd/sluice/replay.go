package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-serving/sluice/scheduler"
)

func newReplayCmd() *cobra.Command {
	var show bool
	cmd := &cobra.Command{
		Use:   "replay FILE",
		Short: "Make the plans of a recorded scheduler again and compare them",
		Long: `Reads a recording of a scheduler (scheduler.Recorder), tells a new scheduler the same things
in the same order, and compares every plan byte by byte and every output. The first difference
is printed. An engine dumps its last steps on SIGQUIT and when an invariant breaks. A dump
whose beginning is no longer there cannot be made again; it is printed, as every recording is
with --show.`,
		Example: `  sluice replay sluice-3b1c_dp0.steps.jsonl --show`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if cut, err := isCut(args[0]); err != nil || cut || show {
				if err != nil {
					return err
				}
				return showSteps(args[0], cmd.OutOrStdout())
			}
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
	cmd.Flags().BoolVar(&show, "show", false, "print what was recorded, a line for each step, instead of making it again")
	return cmd
}

// step is what of a line of a recording is shown.
type step struct {
	Op      string              `json:"op"`
	ID      scheduler.RequestID `json:"id"`
	Value   int                 `json:"value"`
	Text    string              `json:"text"`
	Seq     uint64              `json:"seq"`
	Plan    []byte              `json:"plan"`
	Request *struct {
		ID        string
		Prompt    []scheduler.Token
		MaxTokens int
	} `json:"request"`
	Events  []json.RawMessage `json:"events"`
	Outputs []json.RawMessage `json:"outputs"`
}

// isCut tells whether the beginning of a dump is missing.
func isCut(file string) (bool, error) {
	f, err := os.Open(file)
	if err != nil {
		return false, err
	}
	defer func() { _ = f.Close() }() // read only
	var first step
	err = json.NewDecoder(f).Decode(&first)
	return err == nil && first.Op == "cut", nil // what cannot be read is the replay's to report
}

// showSteps prints a recording for people.
func showSteps(file string, out io.Writer) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // read only
	d := json.NewDecoder(f)
	for line := 1; ; line++ {
		var s step
		if err := d.Decode(&s); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("%s, line %d: %w", file, line, err)
		}
		text := ""
		switch {
		case s.Op == "cut":
			text = fmt.Sprintf("%d lines before are missing", s.Value)
		case s.Plan != nil:
			var p scheduler.Plan
			if err := p.UnmarshalBinary(s.Plan); err != nil {
				return fmt.Errorf("%s, line %d: %w", file, line, err)
			}
			text = fmt.Sprintf("%d: %d rows of %d tokens, %d loads, %d preempted, %d refused", p.Seq, p.Rows(), p.Total, len(p.Loads), len(p.Preempted), len(p.Refused))
			for i, id := range p.Requests {
				text += fmt.Sprintf("; %s %s %d+%d", p.Kinds[i], id, p.Computed[i], p.Scheduled[i])
			}
		case s.Request != nil:
			text = fmt.Sprintf("%s %s: %d tokens, at most %d more", s.ID, s.Request.ID, len(s.Request.Prompt), s.Request.MaxTokens)
		case s.Op == "deliver":
			text = fmt.Sprintf("%s", s.Events)
		case s.Op == "apply":
			text = fmt.Sprintf("%d: %d outputs", s.Seq, len(s.Outputs))
		default:
			text = strings.TrimSpace(fmt.Sprintf("%s %s", s.ID, s.Text))
		}
		if _, err := fmt.Fprintf(out, "%6d %-8s %s\n", line, s.Op, text); err != nil {
			return err
		}
	}
}
