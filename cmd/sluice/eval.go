package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/sluice-serving/sluice/internal/bench/load"
	"github.com/sluice-serving/sluice/internal/bench/progress"
	"github.com/sluice-serving/sluice/internal/engine/eval"
)

func newEvalCmd() *cobra.Command {
	var o eval.Options
	var file string
	cmd := &cobra.Command{
		Use:   "eval",
		Short: "Ask GSM8K questions of any OpenAI endpoint and count the right answers",
		Long: `Asks the questions of a file in GSM8K's line format and compares the numbers of the answers:
strict takes the one behind "####", flexible the last of the text. The first lines of the file
are the examples. A key in the environment variable OPENAI_API_KEY is sent to the endpoint.`,
		Example: `  sluice eval --url http://127.0.0.1:8000 --model NAME --file questions.jsonl --shots 5`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := baseURL("url", o.URL); err != nil {
				return err
			}
			f, err := os.Open(file)
			if err != nil {
				return err
			}
			defer f.Close()
			questions, err := eval.Read(f)
			if err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
			o.Key = os.Getenv("OPENAI_API_KEY")
			var bar *progress.Bar
			o.Observe = func(soFar eval.Result, of int) {
				if bar == nil {
					bar = progress.Start(cmd.ErrOrStderr(), fmt.Sprintf("ask %s at %s", o.Model, o.URL))
				}
				bar.Observe(load.Progress{Total: of, Sent: soFar.Asked, Done: soFar.Asked, Failed: soFar.Failed})
			}
			r, err := eval.Run(cmd.Context(), questions, o)
			if bar != nil {
				bar.End()
			}
			if err != nil {
				return err
			}
			if r.Failed == r.Asked {
				return fmt.Errorf("no question was answered: %w", r.Err)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), r)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.URL, "url", "http://127.0.0.1:8000", "endpoint, with or without /v1")
	f.BoolVar(&o.Chat, "chat", false, "ask /v1/chat/completions, for endpoints or models that only chat")
	f.StringVar(&o.Model, "model", "builtin", "model to ask")
	f.StringVar(&file, "file", "", "questions, one JSON object per line")
	f.IntVar(&o.Shots, "shots", 5, "lines that are shown as examples")
	f.IntVar(&o.Limit, "limit", 0, "questions to ask; 0: all")
	f.IntVar(&o.MaxTokens, "max-tokens", 512, "tokens of an answer")
	f.IntVar(&o.Concurrency, "concurrency", 8, "requests at a time")
	_ = cmd.MarkFlagRequired("file") // the flag exists
	return cmd
}
