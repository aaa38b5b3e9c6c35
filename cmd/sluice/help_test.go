package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/sluice-serving/sluice/ascendrt/backends"
)

func output(t *testing.T, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	root := newRootCmd()
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetArgs(args)
	require.NoError(t, root.Execute(), "%v", args)
	return out.String()
}

func TestCompletion(t *testing.T) {
	for shell, want := range map[string]string{"bash": "complete -o default -F __start_sluice sluice", "zsh": "#compdef sluice", "fish": "complete -c sluice", "powershell": "Register-ArgumentCompleter"} {
		require.Contains(t, output(t, "completion", shell), want)
	}
	require.Contains(t, output(t, cobra.ShellCompRequestCmd, "re"), "replay\t")
	require.Contains(t, output(t, cobra.ShellCompRequestCmd, "serve", "--num-k"), "--num-kv-blocks\t")
	require.Contains(t, output(t, cobra.ShellCompRequestCmd, "proxy", "--backend", ""), "llm-d\n")
	require.Contains(t, output(t, cobra.ShellCompRequestCmd, "proxy", "--enable-d"), "--enable-decoder-append-prefill\t")
}

// Every choice is one that the help of its command names.
func TestChoicesAreNamedByHelp(t *testing.T) {
	names := []string{}
	for _, cmd := range newRootCmd().Commands() {
		names = append(names, cmd.Name())
		for flag, values := range choices[cmd.Name()] {
			for _, v := range values {
				require.Contains(t, cmd.Long+cmd.Flags().Lookup(flag).Usage+cmd.Flags().Lookup(flag).DefValue, v, "%s --%s", cmd.Name(), flag)
			}
		}
	}
	for name := range choices {
		require.Contains(t, names, name)
	}
}

// Every command says what it does, and every flag what it sets. A word between
// backquotes would stand in place of the flag's type.
func TestHelpIsWhole(t *testing.T) {
	for _, cmd := range newRootCmd().Commands() {
		if cmd.Name() == "help" || cmd.Name() == "completion" {
			continue
		}
		require.NotEmpty(t, cmd.Short, cmd.Name())
		if cmd.Name() != "version" && cmd.Name() != "devices" {
			require.Contains(t, cmd.Example, "sluice "+cmd.Name(), "%s shows no command line", cmd.Name())
			shown := commandsOf("```\n" + cmd.Example + "\n```")
			for _, words := range shown {
				require.Empty(t, problem(t, "../..", words), words)
			}
		}
		require.True(t, cmd.Args != nil || cmd.DisableFlagParsing, "%s takes any arguments", cmd.Name())
		for _, line := range strings.Split(cmd.Long, "\n") {
			require.LessOrEqual(t, len(line), 100, "%s: %s", cmd.Name(), line)
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			require.NotEmpty(t, f.Usage, "%s --%s", cmd.Name(), f.Name)
			require.NotContains(t, f.Usage, "`", "%s --%s", cmd.Name(), f.Name)
			require.False(t, strings.HasSuffix(f.Usage, "."), "%s --%s", cmd.Name(), f.Name)
		})
	}
}

// What is mistyped is told with where to look, and with what is there.
func TestMistypedCommands(t *testing.T) {
	for line, want := range map[string]string{
		"serve --prot 1":                       "sluice serve --help",
		"serve --port x":                       "sluice serve --help",
		"serve more":                           "sluice serve --help",
		"replay":                               "sluice replay --help",
		"serv":                                 "serve",
		"serve --log-level loud":               "give debug, info, warning or error",
		"proxy --prot 1":                       "sluice proxy --help",
		"proxy --prefiller-hosts a":            "1 prefiller hosts and 0 ports",
		"sim --trace /dev/null --profile best": "there are pd, reverse, plain,",
		"explain":                              "an array of rows is wanted",
		"bench --url 127.0.0.1:1":              "http://",
		"bench --preset best":                  "append-prefill-demo, overlap",
		"serve --device tpu":                   "host, cuda, ascend",
	} {
		root := newRootCmd()
		root.SetIn(strings.NewReader(""))
		root.SetArgs(strings.Fields(line))
		require.ErrorContains(t, root.ExecuteContext(t.Context()), want, line)
	}
}

func TestLogLevels(t *testing.T) {
	for text, want := range map[string]string{"debug": "debug", "info": "info", "warn": "warning", "warning": "warning", "ERROR": "error"} {
		var l logLevel
		require.NoError(t, l.Set(text))
		require.Equal(t, want, l.String())
	}
}

// A runtime that is asked for by name and has no device is a failure.
func TestDoctorOfADeviceThatIsNotThere(t *testing.T) {
	b, _, err := backends.Find("ascend")
	require.NoError(t, err)
	if r, err := b.Probe(t.Context()); err != nil || len(r.Devices) > 0 {
		t.Skip("there is one here")
	}
	root := newRootCmd()
	root.SetOut(io.Discard)
	root.SetArgs([]string{"doctor", "--device", "ascend"})
	require.ErrorContains(t, root.ExecuteContext(t.Context()), "ascend has no device here")
}

func TestVersion(t *testing.T) {
	require.Equal(t, output(t, "version"), output(t, "--version"))
	require.Regexp(t, `^sluice \S.* go1\.\d+\S* \w+/\w+\n$`, output(t, "version"))
	for want, info := range map[string]debug.BuildInfo{
		"devel":  {Main: debug.Module{Version: "(devel)"}},
		"v1.2.3": {Main: debug.Module{Version: "v1.2.3"}},
		"v1.2.4-0.2026 (commit 93f5018c70ba of 2026-11-30T16:48:34Z, modified)": {Main: debug.Module{Version: "v1.2.4-0.2026"}, Settings: []debug.BuildSetting{
			{Key: "vcs.revision", Value: "93f5018c70baf3c073f1ea4e384a6b2f30d997ed"}, {Key: "vcs.time", Value: "2026-11-30T16:48:34Z"}, {Key: "vcs.modified", Value: "true"},
		}},
	} {
		require.Equal(t, want, version(&info))
	}
}

// The forms for issues are forms: every part has a type and an id, and every
// command that they name exists.
func TestIssueForms(t *testing.T) {
	files, err := filepath.Glob("../../.github/ISSUE_TEMPLATE/*.yml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, words := range commandsOf(string(text)) {
			require.Empty(t, problem(t, "../..", words), "%s: %v", file, words)
		}
		if filepath.Base(file) == "config.yml" {
			continue
		}
		var form struct {
			Name        string   `yaml:"name"`
			Description string   `yaml:"description"`
			Labels      []string `yaml:"labels"`
			Body        []struct {
				Type        string         `yaml:"type"`
				ID          string         `yaml:"id"`
				Attributes  map[string]any `yaml:"attributes"`
				Validations map[string]any `yaml:"validations"`
			} `yaml:"body"`
		}
		d := yaml.NewDecoder(bytes.NewReader(text))
		d.KnownFields(true)
		require.NoError(t, d.Decode(&form), file)
		require.NotEmpty(t, form.Name+form.Description, file)
		ids := map[string]bool{}
		for _, part := range form.Body {
			require.Contains(t, []string{"textarea", "input", "dropdown", "checkboxes"}, part.Type, file)
			require.NotEmpty(t, part.Attributes["label"], file)
			require.False(t, part.ID == "" || ids[part.ID], "%s: id %q", file, part.ID)
			ids[part.ID] = true
		}
	}
}
