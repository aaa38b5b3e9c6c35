package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/internal/engine"
)

// settings reads the lines KEY=VALUE of a unit or of an environment file, the
// last of each key; quotes around a value are taken off.
func settings(t *testing.T, path string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	found := map[string]string{}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") || strings.HasPrefix(line, "[") {
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		require.True(t, ok, "%s: %s", path, line)
		if n := len(value); n > 1 && value[0] == value[n-1] && strings.ContainsAny(value[:1], `"'`) {
			value = value[1 : n-1]
		}
		found[key] = value
	}
	return found
}

// The units start what they name: flags exist, and the example of an engine's
// environment is one that it takes.
func TestUnitsStartCommandsThatExist(t *testing.T) {
	proxy := settings(t, "systemd/sluice-proxy.service")
	words := strings.Fields(proxy["ExecStart"])
	require.Equal(t, "/usr/local/bin/sluice", words[0])
	require.Empty(t, problem(t, "../..", append([]string{"sluice"}, words[1:]...)))
	require.Contains(t, output(t, "proxy", "--config", "systemd/proxy.yaml", "--check"), "10.0.0.3:8200")

	unit, env := settings(t, "systemd/sluice-engine@.service"), settings(t, "systemd/decoder.env")
	require.Equal(t, "75", unit["RestartForceExitStatus"])
	var args []string
	for _, w := range strings.Fields(unit["ExecStart"])[1:] {
		if name, ok := strings.CutPrefix(w, "$"); ok && !strings.HasPrefix(name, "{") {
			args = append(args, strings.Fields(env[name])...)
			continue
		}
		args = append(args, regexp.MustCompile(`\$\{(\w+)\}`).ReplaceAllStringFunc(w, func(v string) string { return env[v[2:len(v)-1]] }))
	}
	cmd, rest, err := newRootCmd().Find(args)
	require.NoError(t, err)
	require.NoError(t, cmd.ParseFlags(rest))
	require.Equal(t, "2", cmd.Flags().Lookup("data-parallel-size").Value.String())
	kv, err := engine.ParseKVTransfer(cmd.Flags().Lookup("kv-transfer-config").Value.String())
	require.NoError(t, err)
	require.Equal(t, "10.0.0.3", kv.IP)
	_, err = engine.ParseAdditional(cmd.Flags().Lookup("additional-config").Value.String())
	require.NoError(t, err)
}

// systemd itself has nothing to say about the units.
func TestUnitsAreValid(t *testing.T) {
	verify, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd-analyze is not here: ", err)
	}
	self, err := os.Executable()
	require.NoError(t, err)
	check := func(from, to string, edit func(string) string) (said []string) {
		text, err := os.ReadFile(filepath.Join("systemd", from))
		require.NoError(t, err)
		file := filepath.Join(t.TempDir(), to)
		require.NoError(t, os.WriteFile(file, []byte(edit(strings.ReplaceAll(string(text), "/usr/local/bin/sluice", self))), 0o644))
		out, err := exec.Command(verify, "verify", "--man=no", file).CombinedOutput()
		for line := range strings.Lines(string(out)) { // the machine's own units may have faults of their own
			if strings.Contains(line, "sluice-") {
				said = append(said, line)
			}
		}
		if len(said) == 0 && err != nil && len(out) == 0 {
			said = append(said, err.Error())
		}
		return said
	}
	same := func(s string) string { return s }
	require.Empty(t, check("sluice-proxy.service", "sluice-proxy.service", same))
	require.Empty(t, check("sluice-engine@.service", "sluice-engine@decoder.service", same))
	wrong := func(s string) string { return strings.Replace(s, "TimeoutStopSec=", "TimeoutStopSecs=", 1) }
	require.NotEmpty(t, check("sluice-proxy.service", "sluice-proxy.service", wrong), "a key that does not exist shows")
}
