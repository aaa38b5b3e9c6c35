package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// use is one way to call a command: the flag that chooses it, and the flags that
// it reads beside that one.
type use struct {
	name  string // as it is typed, such as "--preset overlap"
	flags []string
}

// What several uses read.
var (
	ofRequests = strings.Fields("url model api-key endpoint cache-salt watch json records timeout max-concurrency repeat ignore-eos no-token-ids save-workload")
	ofPoints   = strings.Fields(`dir model repeat results show markdown html time-limit points only device prefiller-device decoder-device kv-extra engine-flags
		prefiller-kv-tokens decoder-kv-tokens commit accept-commits shapes policies ready-timeout device-workers alone`)
	ofReports = []string{"json", "html", "svg"}
	ofTraces  = strings.Fields("trace profile ids lenient scale-time scale-tokens sessions ranks blocks block-size cost-model")
)

// uses are the ways to call the commands that have several. A flag that is given
// and that the use does not read is an error, never passed over.
var uses = map[string][]use{
	"bench": {
		{"--dataset " + datasetSessions, with(ofRequests, "seed sessions turns first-len next-len token-range system arrival think max-tokens")},
		{"--dataset " + datasetRandom, with(ofRequests, "seed num-prompts input-len output-len token-range request-rate")},
		{"--workload", with(ofRequests, "")},
		{"--trace", with(ofRequests, "ids lenient scale-tokens scale-time gap sessions token-range")},
		{"--preset " + presetDemo, with(nil, "dir port")},
		{"--preset " + presetOverlap, with(nil, "dir model-runner device engine-flags arrival think")},
		{"--preset " + presetChaos, with(nil, "dir kills seed num-prompts")},
		{"--preset " + presetTails, with(ofPoints, "rates arrivals")},
		{"--preset " + presetAppend, with(ofPoints, "sessions turns arrival think")},
	},
	"sim": {
		{"--preset append-prefill", ofReports},
		{"--preset shared-prompt", ofReports},
		{"--preset ablations", ofReports},
		{"--preset pools", ofReports},
		{"--preset faults", ofReports},
		{"--preset scale", with(ofReports, "sessions")},
		{"--preset sessions", with(ofReports, "sessions")},
		{"--preset tails", []string{"json"}},
		{"--trace", with(ofReports, "prefillers decoders gap fault", ofTraces...)},
		{"--gaps", with(ofReports, "prefillers decoders", ofTraces...)},
		{"--plan", with(ofReports, "slo max-instances gap", ofTraces...)},
		{"--measured", with(nil, "cost-model hop transfer-ahead transfer-rate restore-rate save-rate copy-slowdown shared-device unannounced")},
	},
}

// with is a list with more words and names behind it.
func with(list []string, words string, more ...string) []string {
	return slices.Concat(list, strings.Fields(words), more)
}

// unread reports the flags that are given and that this use of a command does
// not read. A use that the table lacks is reported by who looks for it.
func unread(cmd *cobra.Command, name string) error {
	i := slices.IndexFunc(uses[cmd.Name()], func(u use) bool { return u.name == name })
	if i < 0 {
		return nil
	}
	var errs []error
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if readBy(&uses[cmd.Name()][i], f.Name) {
			return
		}
		value := f.Value.String()
		if f.Name == "api-key" {
			value = "given" // it is a secret
		}
		errs = append(errs, fmt.Errorf("--%s is %s, which %s does not read: it goes with %s", f.Name, value, name, readers(cmd, f.Name)))
	})
	return errors.Join(errs...)
}

// readers names the uses of a command that read a flag.
func readers(cmd *cobra.Command, flag string) string {
	var text strings.Builder
	last := ""
	for _, u := range uses[cmd.Name()] {
		if !readBy(&u, flag) {
			continue
		}
		chosen, value, _ := strings.Cut(u.name, " ")
		switch {
		case last == "":
			text.WriteString(u.name)
		case chosen == last:
			text.WriteString(", " + value)
		default:
			text.WriteString(" or " + u.name)
		}
		last = chosen
	}
	return text.String()
}

// readBy tells whether a use reads a flag, or is chosen by it.
func readBy(u *use, flag string) bool {
	chosen, _, _ := strings.Cut(u.name, " ")
	return chosen == "--"+flag || slices.Contains(u.flags, flag)
}
