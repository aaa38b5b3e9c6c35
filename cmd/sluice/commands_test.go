package main

import (
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/proxy"
)

// spans matches what a document sets as code: a fenced block, an indented
// block, or text between backquotes.
var spans = regexp.MustCompile("(?ms)^```(?:sh)?\n(.*?)^```$|^((?: {4}.*\n)+)|`([^`\n]+)`")

// quotedObject matches JSON of an object as an argument, which may have lines.
var quotedObject = regexp.MustCompile(`'\{[^']*'`)

// commandsOf gives the commands in a text that start one of the programs that
// this repository can check, split into words.
func commandsOf(text string) (commands [][]string) {
	for _, m := range spans.FindAllStringSubmatch(text, -1) {
		code := strings.ReplaceAll(m[1]+m[2]+m[3], "\\\n", " ")
		code = quotedObject.ReplaceAllStringFunc(code, func(s string) string { return strings.ReplaceAll(s, "\n", " ") })
		code = strings.ReplaceAll(code, `\|`, "|") // within a table
		dir := ""
		for _, part := range regexp.MustCompile(`&&|[;\n]`).Split(code, -1) {
			part = strings.TrimSpace(part)
			words := shellWords(strings.Trim(part, "()"))
			for len(words) > 0 && regexp.MustCompile(`^[A-Z_]+=`).MatchString(words[0]) {
				words = words[1:]
			}
			if len(words) < 2 {
				continue
			}
			if strings.HasSuffix(words[0], ".sh") {
				words = append([]string{"sh"}, words...)
			}
			switch strings.TrimPrefix(strings.TrimPrefix(words[0], "./"), "bin/") {
			case "cd":
				dir = words[1]
			case "sluice":
				commands = append(commands, append([]string{"sluice"}, words[1:]...))
			case "sluice-proxy": // has the proxy's flags
				commands = append(commands, append([]string{"sluice", "proxy"}, words[1:]...))
			case "make", "python3", "bash", "sh":
				commands = append(commands, words)
			case "go":
				commands = append(commands, append([]string{"go", words[1], dir}, words[2:]...))
			}
			if strings.HasSuffix(part, ")") { // of a shell of its own
				dir = ""
			}
		}
	}
	return commands
}

// shellWords splits at spaces, but not within quotes, and ends at a pipe, a
// redirection or a comment.
func shellWords(s string) (words []string) {
	for _, w := range regexp.MustCompile(`'[^']*'|"[^"]*"|\S+`).FindAllString(s, -1) {
		if strings.ContainsAny(w[:1], "|<>#&") {
			break
		}
		words = append(words, strings.Trim(w, `'"`))
	}
	return words
}

// functions gives the names of the tests or benchmarks of a package.
func functions(t *testing.T, dir, kind string) (names []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	require.NoError(t, err)
	for _, f := range files {
		text, err := os.ReadFile(f)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile(`(?m)^func (`+kind+`\w*)\(`).FindAllStringSubmatch(string(text), -1) {
			names = append(names, m[1])
		}
	}
	return names
}

// mentions tells whether a text stands in a program of a package.
func mentions(t *testing.T, dir, text string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	require.NoError(t, err)
	return slices.ContainsFunc(files, func(f string) bool {
		source, err := os.ReadFile(f)
		require.NoError(t, err)
		return strings.Contains(string(source), text)
	})
}

// problem says what is wrong with a command of a document, "" if nothing.
func problem(t *testing.T, root string, words []string) string {
	t.Helper()
	exists := func(path string) bool {
		_, err := os.Stat(filepath.Join(root, path))
		return err == nil
	}
	switch words[0] {
	case "make":
		makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
		require.NoError(t, err)
		for _, target := range words[1:] {
			if !strings.Contains(target, "=") && !strings.Contains("\n"+string(makefile), "\n"+target+":") {
				return "no target " + target
			}
		}
	case "sluice":
		root := newRootCmd()
		root.InitDefaultCompletionCmd()
		cmd, _, err := root.Find(words[1:])
		if err != nil {
			return err.Error()
		}
		if cmd.Parent() == nil && !strings.HasPrefix(words[1], "-") {
			return "no command " + words[1]
		}
		for i, w := range words[1:] {
			name, value, set := strings.Cut(strings.TrimPrefix(w, "--"), "=")
			if !strings.HasPrefix(w, "--") || name == "help" {
				continue
			}
			if cmd.Flags().Lookup(name) == nil {
				return cmd.Name() + " has no flag --" + name
			}
			if !set && i+2 < len(words) {
				value = words[i+2]
			}
			if name == "preset" && !strings.Contains(cmd.Long+cmd.Flags().Lookup(name).Usage, value) {
				return cmd.Name() + " has no preset " + value
			}
		}
		return typed(root, words[1:], cmd)
	case "python3", "bash", "sh":
		if i := slices.IndexFunc(words, func(w string) bool { return strings.Contains(w, "/") }); i == 1 && !exists(words[1]) {
			return "no file " + words[1]
		} else if i == 1 {
			source, err := os.ReadFile(filepath.Join(root, words[1]))
			require.NoError(t, err)
			for _, w := range words[2:] { // flags, and parts of a script; capitals stand for something
				if name, _, _ := strings.Cut(w, "="); regexp.MustCompile(`^[a-z]+$`).MatchString(w) && words[0] != "python3" || strings.HasPrefix(w, "-") {
					if !regexp.MustCompile(`(^|[\s"])` + name + `([\s"]|$)`).Match(source) {
						return words[1] + " has no " + name
					}
				}
			}
		}
	case "go":
		return goProblem(t, root, words[1], words[2], words[3:])
	}
	return ""
}

// typed gives what a command of the binary says of a whole command line before it
// does anything: flags and values that do not parse, are out of their limits, are
// not read by what is called, or lack others. A command's name with at most a bare
// flag behind it is a mention of it. N stands for a number, dots for what depends on
// the place.
func typed(root *cobra.Command, words []string, cmd *cobra.Command) string {
	if len(words) < 2 || len(words) == 2 && strings.HasPrefix(words[1], "--") && !strings.Contains(words[1], "=") || cmd.Parent() != root {
		return ""
	}
	words = slices.DeleteFunc(slices.Clone(words), func(w string) bool { return w == "..." || w == "…" })
	for i, w := range words {
		if w == "N" {
			words[i] = "1"
		}
	}
	if cmd.DisableFlagParsing { // the proxy's lists may have spaces
		var lists []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Value.Type() == "stringSlice" {
				lists = append(lists, f.Name)
			}
		})
		cmd.DisableFlagParsing, cmd.Args, words = false, cobra.NoArgs, proxy.JoinLists(words, lists...)
	}
	cmd.RunE = func(*cobra.Command, []string) error { return nil }
	root.SetOut(io.Discard)
	root.SetErr(io.Discard)
	root.SetArgs(words)
	if err := root.Execute(); err != nil {
		return err.Error()
	}
	return ""
}

func goProblem(t *testing.T, root, verb, dir string, words []string) string {
	t.Helper()
	var run, bench string
	var packages []string
	for i, w := range words {
		switch {
		case w == "-run":
			run = words[i+1]
		case w == "-bench":
			bench = words[i+1]
		case w == "." || strings.HasPrefix(w, "./"):
			packages = append(packages, w)
		}
	}
	if len(packages) == 0 && (run != "" || bench != "") {
		packages = []string{"."}
	}
	if verb == "run" && len(packages) > 0 {
		for _, w := range words[slices.Index(words, packages[0]):] {
			name, _, _ := strings.Cut(strings.TrimLeft(w, "-"), "=")
			if strings.HasPrefix(w, "-") && !mentions(t, filepath.Join(root, dir, packages[0]), `"`+name+`",`) {
				return packages[0] + " has no flag -" + name
			}
		}
	}
	var tests, benchmarks []string
	for _, p := range packages {
		if strings.HasSuffix(p, "...") {
			p = strings.TrimSuffix(p, "...")
			run, bench = "", "" // of many packages
		}
		p = filepath.Join(root, dir, p)
		if info, err := os.Stat(p); err != nil || !info.IsDir() {
			return "no package " + p
		}
		if main, err := filepath.Glob(filepath.Join(p, "*.go")); err != nil || (verb == "run" && len(main) == 0) {
			return "nothing to run in " + p
		}
		if info, err := os.Stat(filepath.Join(root, dir, filepath.Base(p))); verb == "build" && len(words) == 1 && err == nil && info.IsDir() {
			return "the binary would have the name of a folder, " + filepath.Base(p)
		}
		tests = append(tests, functions(t, p, "Test")...)
		benchmarks = append(benchmarks, functions(t, p, "Benchmark")...)
	}
	missing := func(pattern string, names []string) string {
		for _, part := range strings.Split(strings.SplitN(pattern, "/", 2)[0], "|") {
			re := regexp.MustCompile(part)
			if !slices.ContainsFunc(names, func(n string) bool { return re.MatchString(n) }) {
				return "nothing matches " + part
			}
		}
		return ""
	}
	switch {
	case bench != "" && bench != ".":
		return missing(bench, benchmarks)
	case bench == "" && run != "":
		return missing(run, tests)
	}
	return ""
}

// Every command that a document names exists: make targets, subcommands and
// their flags, packages, tests and benchmarks, scripts.
func TestDocumentsNameCommandsThatExist(t *testing.T) {
	root := "../.."
	docs, err := filepath.Glob(root + "/*.md")
	require.NoError(t, err)
	for _, dir := range []string{"/docs", "/docs/measurements", "/ascendrt/*/emu", "/connector/transport/*/emu", "/.github"} {
		more, err := filepath.Glob(root + dir + "/*.md")
		require.NoError(t, err)
		docs = append(docs, more...)
	}
	found := 0
	for _, doc := range docs {
		text, err := os.ReadFile(doc)
		require.NoError(t, err)
		for _, words := range commandsOf(string(text)) {
			found++
			if p := problem(t, root, words); p != "" {
				t.Errorf("%s: %q: %s", doc, strings.Join(words, " "), p)
			}
		}
	}
	require.Greater(t, found, 50)
}

// So do those in the comments of the code.
func TestCommentsNameCommandsThatExist(t *testing.T) {
	block := regexp.MustCompile(`(?m)(?:^//\t.*\n)+`)
	found := 0
	require.NoError(t, filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".go" {
			return err
		}
		text, err := os.ReadFile(path)
		for _, code := range block.FindAllString(string(text), -1) {
			for _, words := range commandsOf("```\n" + strings.ReplaceAll(code, "//\t", "") + "```") {
				found++
				if p := problem(t, "../..", words); p != "" {
					t.Errorf("%s: %q: %s", path, strings.Join(words, " "), p)
				}
			}
		}
		return err
	}))
	require.Greater(t, found, 4)
}

// So do those that make and the checks start.
func TestScriptsNameCommandsThatExist(t *testing.T) {
	found := 0
	for _, file := range []string{"Makefile", ".ci/run", ".ci/long"} {
		text, err := os.ReadFile(filepath.Join("../..", file))
		require.NoError(t, err)
		code := strings.NewReplacer("$(BIN)", "bin/sluice", "$(CHAOS)", "--seed 6").Replace(string(text))
		for _, words := range commandsOf("```\n" + code + "\n```") {
			if words[0] != "sluice" {
				continue
			}
			found++
			if p := problem(t, "../..", words); p != "" {
				t.Errorf("%s: %q: %s", file, strings.Join(words, " "), p)
			}
		}
	}
	require.Greater(t, found, 4)
}

func TestCommandsThatDoNotExist(t *testing.T) {
	for code, want := range map[string]string{
		"`make nothing`":                              "no target nothing",
		"`sluice fly --far`":                          "unknown command",
		"`sluice serve --no-such-flag 3`":             "serve has no flag --no-such-flag",
		"`sluice sim --preset none-such`":             "sim has no preset none-such",
		"`sluice serve --port many`":                  `invalid argument "many" for "--port"`,
		"`sluice serve --port 70000`":                 "--port is 70000, must be",
		"`sluice serve --port 1 more`":                `unknown command "more"`,
		"`sluice serve --port 1 --model`":             "flag needs an argument: --model",
		"`sluice cache --blocks N`":                   `required flag(s) "trace" not set`,
		"`sluice bench --preset chaos --device cuda`": "--device is cuda, which --preset chaos does not read",
		"`sluice bench --preset tails --only 77`":     `no point matches --only "77"`,
		"`sluice bench --preset tails --rates 7`":     "--rates is 7: needs --shapes",
		"`sluice sim --measured FILE --hop 1`":        "--measured needs --cost-model",
		"`sluice sim --preset tails --unannounced`":   "--unannounced is true, which --preset tails does not read",
		"`sluice proxy --decoder-dp-size 1 --port x`": `invalid argument "x" for "--port"`,
		"```sh\nsluice serve --kv-transfer-config '{\"kv_connector\":\n \"pd\",\"kv_rule\":1}' >log\n```": "kv_rule",
		"`go run ./internal/engine/kvspeed -part pull`":                                                   "./internal/engine/kvspeed has no flag -part",
		"`go test ./nowhere`":                                        "no package",
		"`go test ./graphs -run TestNoneSuch`":                       "nothing matches TestNoneSuch",
		"`go test ./graphs -run '^$' -bench Rest`":                   "nothing matches Rest",
		"`cd kvcache && go test -bench 'Match|Xy'`":                  "nothing matches Xy",
		"`internal/engine/h200.sh BIN OUT gate heads`":               "internal/engine/h200.sh has no heads",
		"`python3 internal/engine/parity/make.py --big --outer=DIR`": "make.py has no --outer",
		"    python3 internal/none.py\n":                             "no file",
		"`(cd proxy/shared && go build ./sluice-proxy)`":             "the binary would have the name of a folder",
	} {
		commands := commandsOf(code)
		require.Len(t, commands, 1, code)
		require.Contains(t, problem(t, "../..", commands[0]), want, code)
	}
}
