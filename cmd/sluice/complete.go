package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// choices are the values of flags that take one of a few, by command and flag,
// for the completion of shells.
var choices = map[string]map[string][]string{
	"bench": {
		"preset":   {presetDemo, presetOverlap, presetChaos, presetTails, presetAppend},
		"dataset":  {"sessions", "random"},
		"endpoint": {"chat", "completions"},
		"ids":      {"auto", "file", "session"},
	},
	"cache":  {"ids": {"auto", "file", "session"}},
	"doctor": {"device": {"host", "cuda", "ascend"}},
	"explain": {
		"mode":   {"NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"},
		"policy": {"one-new-token-hardened", "strict", "consumer-one-token", "one-new-token", "shape-only"},
		"role":   {"none", "kv_producer", "kv_consumer", "kv_both"},
	},
	"proxy": {
		"backend":           {"sluice", "vllm-ascend", "cache-threshold", "llm-d", "plain"},
		"kv-mode":           {"pull", "push"},
		"log-level":         {"debug", "info", "warning", "error"},
		"placement":         {"load", "hash", "room"},
		"unknown-followups": {"auto", "try", "pd"},
	},
	"serve": {
		"append-refusal": {"412", "in-band"},
		"cudagraph-mode": {"NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"},
		"device":         {"host", "cuda", "ascend"},
		"dtype":          {"auto", "float32", "bfloat16"},
		"log-level":      {"debug", "info", "warning", "error"},
		"graph-policy":   {"one-new-token-hardened", "strict", "consumer-one-token", "one-new-token", "shape-only"},
	},
	"sim": {
		"ids":     {"auto", "file", "session"},
		"preset":  {"append-prefill", "shared-prompt", "ablations", "pools", "faults", "scale", "sessions", "tails"},
		"profile": {"all", "pd", "reverse", "plain", "threshold", "guarded", "no-governor", "no-leases", "no-overload", "no-wait"},
	},
	"up": {"device": {"host", "cuda", "ascend"}},
}

// complete registers the choices of a command.
func complete(cmd *cobra.Command) {
	if cmd.DisableFlagParsing { // it parses its flags itself, so the library does not complete them
		cmd.ValidArgsFunction = flagsAsArgs
		return
	}
	for flag, values := range choices[cmd.Name()] {
		if err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)); err != nil {
			panic(fmt.Sprintf("completion of %s --%s: %v", cmd.Name(), flag, err)) // no such flag, or twice
		}
	}
}

// flagsAsArgs completes names of flags, and the choices of the one before.
func flagsAsArgs(cmd *cobra.Command, args []string, word string) (found []cobra.Completion, _ cobra.ShellCompDirective) {
	if len(args) > 0 {
		if values := choices[cmd.Name()][strings.TrimPrefix(args[len(args)-1], "--")]; values != nil {
			return values, cobra.ShellCompDirectiveNoFileComp
		}
	}
	if !strings.HasPrefix(word, "-") {
		return nil, cobra.ShellCompDirectiveDefault
	}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if name := "--" + f.Name; strings.HasPrefix(name, word) {
			found = append(found, cobra.CompletionWithDesc(name, f.Usage))
		}
	})
	return found, cobra.ShellCompDirectiveNoFileComp
}
