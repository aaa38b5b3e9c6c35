package main

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// fence matches a block of a guide: commands, or what they print.
var fence = regexp.MustCompile("(?ms)^```(sh|text)\n(.*?)^```$")

// guide is a guide's commands as one script. After commands whose output the
// guide shows, the script ends if a line of it is not found.
func guide(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	script := "set -e -o pipefail\ntrap 'kill $(jobs -p) 2>/dev/null; wait' EXIT\n"
	blocks := fence.FindAllStringSubmatch(string(data), -1)
	for i, b := range blocks {
		switch {
		case b[1] == "sh" && i+1 < len(blocks) && blocks[i+1][1] == "text":
			script += "{\n" + b[2] + "} >output 2>&1\ncat output\n"
		case b[1] == "sh":
			script += b[2]
		default:
			for line := range strings.Lines(b[2]) {
				script += "grep -qF -- " + quote(strings.TrimSpace(line)) + " output || { echo MISSING: " + quote(strings.TrimSpace(line)) + "; exit 1; }\n"
			}
		}
	}
	return script
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// freePorts gives each port that a script names one that is free.
func freePorts(t *testing.T, script string, ports ...string) string {
	t.Helper()
	var pairs []string
	for _, p := range ports {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer func() { require.NoError(t, l.Close()) }() // after all are taken
		pairs = append(pairs, p, strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
	}
	return strings.NewReplacer(pairs...).Replace(script)
}

func TestAppendPrefillGuide(t *testing.T) {
	for _, tool := range []string{"bash", "curl"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("the guide's commands need %s: %v", tool, err)
		}
	}
	dir := t.TempDir()
	self, err := os.Executable()
	require.NoError(t, err)
	require.NoError(t, os.Symlink(self, filepath.Join(dir, "sluice")))
	script := freePorts(t, guide(t, "../../docs/append-prefill.md"), "8101", "8201", "8202", "9001")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", script)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// quotation matches a block of a document that says which file it is from.
var quotation = regexp.MustCompile("(?ms)^```go (\\S+)\n(.*?)^```$")

func TestDocumentsQuoteWhatCompiles(t *testing.T) {
	docs, err := filepath.Glob("../../docs/*.md")
	require.NoError(t, err)
	found := 0
	for _, doc := range append(docs, "../../README.md") {
		text, err := os.ReadFile(doc)
		require.NoError(t, err)
		for _, q := range quotation.FindAllStringSubmatch(string(text), -1) {
			source, err := os.ReadFile(filepath.Join("../..", q[1]))
			require.NoError(t, err, "%s", doc)
			require.Contains(t, string(source), q[2], "%s quotes %s", doc, q[1])
			found++
		}
	}
	require.NotZero(t, found)
}

// metricName matches a metric in backquotes, with or without its labels.
var metricName = regexp.MustCompile("`((?:sluice|vllm)[:_][a-z_]+)")

func TestOperateNamesMetricsThatExist(t *testing.T) {
	var code strings.Builder
	for _, dir := range []string{"../../internal/engine", "../../proxy"} {
		files, err := filepath.Glob(dir + "/*.go")
		require.NoError(t, err)
		for _, f := range files {
			text, err := os.ReadFile(f)
			require.NoError(t, err)
			code.Write(text)
		}
	}
	text, err := os.ReadFile("../../docs/operate.md")
	require.NoError(t, err)
	names := metricName.FindAllStringSubmatch(string(text), -1)
	require.Greater(t, len(names), 15)
	for _, n := range names {
		// The proxy's names are put together from their subsystem.
		short := strings.TrimPrefix(n[1], "sluice_proxy_")
		require.True(t, strings.Contains(code.String(), `"`+n[1]+`"`) || strings.Contains(code.String(), `"`+short+`"`), n[1])
	}
}
