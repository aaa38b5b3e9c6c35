package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

// command lines that stand for a use; the others are their names.
var asTyped = map[string]string{
	"bench --dataset sessions": "--url http://127.0.0.1:1 --dataset sessions",
	"bench --dataset random":   "--url http://127.0.0.1:1 --dataset random",
	"bench --workload":         "--url http://127.0.0.1:1 --workload none",
	"bench --trace":            "--url http://127.0.0.1:1 --trace none",
	"sim --trace":              "--trace none",
	"sim --gaps":               "--trace none --gaps 1",
	"sim --plan":               "--trace none --plan",
	"sim --measured":           "--measured none",
}

// A flag is read by the use of a command, or it is refused by name and value
// before anything starts; and every flag has a use.
func TestFlagsThatAUseDoesNotRead(t *testing.T) {
	refusals := 0
	for _, cmd := range newRootCmd().Commands() {
		list := uses[cmd.Name()]
		if list == nil {
			continue
		}
		var all []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { all = append(all, f.Name) })
		all = slices.DeleteFunc(all, func(name string) bool { return name == "help" })
		var read []string
		for _, u := range list {
			line := asTyped[cmd.Name()+" "+u.name]
			if line == "" {
				line = u.name
			}
			for _, name := range all {
				if readBy(&u, name) {
					read = append(read, name)
					continue
				}
				f := cmd.Flags().Lookup(name)
				value := f.DefValue
				switch f.Value.Type() {
				case "stringArray":
					value = "x"
				case "float64Slice":
					continue // would be another use
				}
				if name == "plan" || u.name == "--dataset sessions" && slices.Contains([]string{"trace", "workload"}, name) {
					continue // likewise
				}
				err := refused(t, append([]string{cmd.Name(), "--" + name + "=" + value}, strings.Fields(line)...)...)
				require.Contains(t, err, "--"+name+" is ", line)
				require.Contains(t, err, ", which "+u.name+" does not read: it goes with --", line)
				refusals++
			}
			for _, name := range u.flags {
				require.Contains(t, all, name, "%s %s", cmd.Name(), u.name)
			}
		}
		for _, name := range all {
			require.Contains(t, read, name, "no use of %s reads it", cmd.Name())
		}
		var presets []string
		for _, u := range list {
			if name, ok := strings.CutPrefix(u.name, "--preset "); ok {
				presets = append(presets, name)
			}
		}
		require.ElementsMatch(t, choices[cmd.Name()]["preset"], presets)
	}
	require.Greater(t, refusals, 300)
}

func TestRefusalsOfFlags(t *testing.T) {
	url := "bench --url http://127.0.0.1:1 "
	for line, want := range map[string]string{
		"bench --preset append-prefill-demo --device cuda": "--device is cuda, which --preset append-prefill-demo does not read: it goes with --preset overlap, tails, append-prefill-gpu",
		"bench --preset chaos --port 1 --repeat 2":         "--port is 1, which --preset chaos does not read: it goes with --preset append-prefill-demo\n--repeat is 2",
		"bench --preset tails --sessions 3":                "--sessions is 3, which --preset tails does not read: it goes with --dataset sessions or --trace or --preset append-prefill-gpu",
		"bench --preset append-prefill-gpu --think 1s":     "--think is 1s: needs --shapes",
		"bench --preset overlap --api-key abc":             "--api-key is given, which --preset overlap does not read",
		"bench --preset overlap --url http://127.0.0.1:1":  "--url is http://127.0.0.1:1, which --preset overlap does not read",
		url + "--records":                                     "--records needs --json",
		url + "--token-range 5-9":                             "--token-range is 5-9, which --endpoint chat does not read",
		url + "--endpoint completions --system x":             `--system is "x", which --endpoint completions does not read`,
		url + "--trace x --workload y":                        "--trace is x, which --workload does not read",
		"up --device tpu":                                     `--device: device "tpu": there are host, cuda, ascend`,
		"up --device host:1":                                  `--device: device "host:1": the last one of host is number 0`,
		"up --decoder-kv-blocks 255":                          "--decoder-kv-blocks is 255, must be at least 256: what one sequence of max-model-len 4096 takes",
		"up --prefiller-kv-blocks 1":                          "--prefiller-kv-blocks is 1, must be at least 256",
		"bench --preset overlap --device host:1":              `--device: device "host:1": the last one of host is number 0`,
		"sim --preset tails --html x":                         "--html is x, which --preset tails does not read",
		"sim --trace x --gaps 1 --gap 2":                      "--gap is 2, which --gaps does not read: it goes with --trace or --plan",
		"sim --trace x --plan --slo x --ranks 2 --decoders 2": "--decoders is 2, which --plan does not read: it goes with --trace or --gaps",
	} {
		require.Contains(t, refused(t, strings.Fields(line)...), want, line)
	}
}
