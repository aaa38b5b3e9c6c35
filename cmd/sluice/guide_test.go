package main

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/internal/engine"
	"github.com/sluice-serving/sluice/proxy"
)

// fence matches a block of a guide: commands, or what they print.
var fence = regexp.MustCompile("(?ms)^```(sh|text)\n(.*?)^```$")

// guide is a guide's commands as one script. After commands whose output the
// guide shows, the script ends if a line of it is not found.
func guide(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	script := "set -e -o pipefail\ntrap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT\n"
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

// follow runs a guide's script in a folder where sluice is this executable.
func follow(t *testing.T, dir, script string, tools []string, env ...string) {
	t.Helper()
	for _, tool := range append(tools, "bash") {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("the guide's commands need %s: %v", tool, err)
		}
	}
	self, err := os.Executable()
	require.NoError(t, err)
	bin := t.TempDir()
	require.NoError(t, os.Symlink(self, filepath.Join(bin, "sluice")))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", script)
	cmd.Dir = dir
	cmd.Env = append(append(os.Environ(), "PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH")), env...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// The guide to append-prefill holds, and what its processes export then is what
// the page about operating lists.
func TestAppendPrefillGuide(t *testing.T) {
	const end = "kill $(jobs -p)\n"
	ports := []string{"8101", "8201", "8202", "9001"}
	script := guide(t, "../../docs/append-prefill.md")
	require.Contains(t, script, end)
	scrape := "for p in " + strings.Join(ports, " ") + "; do curl -fs http://127.0.0.1:$p/metrics; done >metrics\n"
	dir := t.TempDir()
	follow(t, dir, freePorts(t, strings.Replace(script, end, scrape+end, 1), ports...), []string{"curl"})

	exported, err := os.ReadFile(filepath.Join(dir, "metrics"))
	require.NoError(t, err)
	text, err := os.ReadFile("../../docs/operate.md")
	require.NoError(t, err)
	listed := map[string]string{} // with the labels that are said
	for _, m := range regexp.MustCompile("`((?:sluice|vllm)[:_][a-z0-9_]+)(?:\\{([a-z_,]+)\\})?`").FindAllStringSubmatch(string(text), -1) {
		listed[m[1]] = max(listed[m[1]], m[2]) // where it is named again, without
	}
	found := 0
	for _, m := range regexp.MustCompile(`(?m)^# TYPE ((?:sluice|vllm)[:_]\S+)`).FindAllStringSubmatch(string(exported), -1) {
		name, labels := m[1], []string{}
		sample := regexp.MustCompile(`(?m)^` + name + `(?:_bucket)?\{(.*)\}`).FindStringSubmatch(string(exported))
		if sample != nil {
			for _, l := range regexp.MustCompile(`(\w+)="`).FindAllStringSubmatch(sample[1], -1) {
				labels = append(labels, l[1])
			}
		}
		_, isListed := listed[name]
		require.True(t, isListed, "docs/operate.md lacks %s", name)
		if said := listed[name]; said != "" {
			require.Subset(t, labels, strings.Split(said, ","), name)
		}
		found++
	}
	require.Greater(t, found, 60)
}

// The code that the guide to embedding quotes is a program of another module,
// and prints what stands there.
func TestEmbedGuide(t *testing.T) {
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	text, err := os.ReadFile("../../docs/embed.md")
	require.NoError(t, err)
	var pieces []string
	for _, q := range quotation.FindAllStringSubmatch(string(text), -1) {
		pieces = append(pieces, q[2])
	}
	require.Len(t, pieces, 3, "the executor; cache, scheduler and requests; the loop")
	program := "package main\n\n" + pieces[0] + "\nfunc main() {\n" + pieces[1] + pieces[2] + "}\n"
	require.Less(t, strings.Count(pieces[0], "\n"), 80, "an executor")
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte(program), 0o644))
	sums, err := os.ReadFile("../../go.sum")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.sum"), sums, 0o644))
	script := guide(t, "../../docs/embed.md")
	require.Contains(t, script, "go mod tidy\n")
	require.Contains(t, script, "=../sluice\n")
	// tidy also asks for what the tests of dependencies need, which is not here
	// without a network; the build adds what it needs itself.
	script = strings.NewReplacer("go mod tidy\n", "", "=../sluice\n", "="+quote(root)+"\n").Replace(script)
	follow(t, dir, script, []string{"go"}, "GOFLAGS=-mod=mod", "GOPROXY=off", "GOSUMDB=off", "GOWORK=off")
}

// What the page about operating installs lies where the units look, and a unit
// without a user of its own can read it.
func TestOperateInstallsWhatUnitsRead(t *testing.T) {
	text, err := os.ReadFile("../../docs/operate.md")
	require.NoError(t, err)
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	work, system := t.TempDir(), t.TempDir()
	require.NoError(t, os.Symlink(filepath.Join(root, "cmd"), filepath.Join(work, "cmd")))
	require.NoError(t, os.Mkdir(filepath.Join(work, "bin"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(work, "bin", "sluice"), nil, 0o755)) // what make build gives
	for _, dir := range []string{"/usr/local/bin", "/etc/systemd/system"} {
		require.NoError(t, os.MkdirAll(system+dir, 0o755))
	}
	script := "set -e\n"
	for _, line := range regexp.MustCompile(`(?m)^install .*\n`).FindAllString(string(text), -1) {
		script += strings.NewReplacer(" /usr/", " "+system+"/usr/", " /etc/", " "+system+"/etc/").Replace(line)
	}
	follow(t, work, script, []string{"install"})
	for _, unit := range []string{"sluice-proxy.service", "sluice-engine@.service"} {
		said, err := os.ReadFile(system + "/etc/systemd/system/" + unit)
		require.NoError(t, err)
		require.Contains(t, string(said), "DynamicUser=yes")
		reads := strings.ReplaceAll(string(said), "%i", "decoder")
		for _, m := range regexp.MustCompile(`(?m)^(ExecStart|EnvironmentFile)=.*?(-?/etc/sluice/[a-z.]+)`).FindAllStringSubmatch(reads, -1) {
			file, optional := strings.CutPrefix(m[2], "-")
			info, err := os.Stat(system + file)
			if optional && os.IsNotExist(err) {
				continue
			}
			require.NoError(t, err, unit)
			if m[1] == "ExecStart" { // systemd reads the other kind itself
				require.NotZero(t, info.Mode()&0o004, "%s reads %s", unit, file)
			}
		}
	}
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
var metricName = regexp.MustCompile("`((?:sluice|vllm)[:_][a-z0-9_]+)")

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

// The page about operating lists the engine's metrics, also those that a run may
// not have exported.
func TestOperateListsTheEnginesMetrics(t *testing.T) {
	page, err := os.ReadFile("../../docs/operate.md")
	require.NoError(t, err)
	files, err := filepath.Glob("../../internal/engine/*.go")
	require.NoError(t, err)
	found := 0
	for _, f := range files {
		code, err := os.ReadFile(f)
		require.NoError(t, err)
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
		for _, m := range regexp.MustCompile(`"((?:sluice_|vllm:)[a-z0-9_]+)"`).FindAllStringSubmatch(string(code), -1) {
			require.True(t, strings.Contains(string(page), "`"+m[1]), "docs/operate.md lacks %s", m[1])
			found++
		}
	}
	require.Greater(t, found, 40)
}

// Every key of the proxy's file stands in its page.
func TestProxyFileKeysAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/proxy.md")
	require.NoError(t, err)
	found := 0
	var look func(reflect.Type)
	look = func(v reflect.Type) {
		for v.Kind() == reflect.Pointer || v.Kind() == reflect.Slice {
			v = v.Elem()
		}
		if v.Kind() != reflect.Struct {
			return
		}
		for f := range v.Fields() {
			if key, _, _ := strings.Cut(f.Tag.Get("yaml"), ","); key != "" {
				require.True(t, strings.Contains(string(page), "`"+key+"`"), "docs/proxy.md lacks %s", key)
				found++
				look(f.Type)
			}
		}
	}
	look(reflect.TypeFor[proxy.File]())
	look(reflect.TypeFor[proxy.Members]())
	require.Greater(t, found, 60)
}

// Every member of the engine's JSON flags stands in a page.
func TestEngineMembersAreDocumented(t *testing.T) {
	pages := ""
	for _, name := range []string{"engine", "coming-from", "append-prefill"} {
		text, err := os.ReadFile("../../docs/" + name + ".md")
		require.NoError(t, err)
		pages += string(text)
	}
	seen := map[reflect.Type]bool{}
	var look func(reflect.Type)
	look = func(v reflect.Type) {
		for v.Kind() == reflect.Pointer || v.Kind() == reflect.Slice {
			v = v.Elem()
		}
		if v.Kind() != reflect.Struct || seen[v] {
			return
		}
		seen[v] = true
		for f := range v.Fields() {
			if key, _, _ := strings.Cut(f.Tag.Get("json"), ","); key != "" && key != "-" {
				require.True(t, regexp.MustCompile("[`\".]"+key+"[`\"]").MatchString(pages), "%s of %s", key, v)
				look(f.Type)
			}
		}
	}
	look(reflect.TypeFor[engine.KVTransfer]())
	look(reflect.TypeFor[engine.Additional]())
	look(reflect.TypeFor[engine.KVEvents]())
	require.Greater(t, len(seen), 4)
}
