package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// spans matches what a document sets as code: a fenced block, an indented
// block, or text between backquotes.
var spans = regexp.MustCompile("(?ms)^```(?:sh)?\n(.*?)^```$|^((?: {4}.*\n)+)|`([^`\n]+)`")

// commandsOf gives the commands in a text that start one of the programs that
// this repository can check, split into words.
func commandsOf(text string) (commands [][]string) {
	for _, m := range spans.FindAllStringSubmatch(text, -1) {
		code := strings.ReplaceAll(m[1]+m[2]+m[3], "\\\n", " ")
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
			switch strings.TrimPrefix(strings.TrimPrefix(words[0], "./"), "bin/") {
			case "cd":
				dir = words[1]
			case "sluice":
				commands = append(commands, append([]string{"sluice"}, words[1:]...))
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
	case "python3", "bash", "sh":
		if i := slices.IndexFunc(words, func(w string) bool { return strings.Contains(w, "/") }); i == 1 && !exists(words[1]) {
			return "no file " + words[1]
		}
	case "go":
		return goProblem(t, root, words[1], words[2], words[3:])
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
	for _, dir := range []string{"/docs", "/docs/measurements"} {
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

func TestCommandsThatDoNotExist(t *testing.T) {
	for code, want := range map[string]string{
		"`make nothing`":                                 "no target nothing",
		"`sluice fly --far`":                             "unknown command",
		"`sluice serve --no-such-flag 3`":                "serve has no flag --no-such-flag",
		"`sluice sim --preset none-such`":                "sim has no preset none-such",
		"`go test ./nowhere`":                            "no package",
		"`go test ./graphs -run TestNoneSuch`":           "nothing matches TestNoneSuch",
		"`go test ./graphs -run '^$' -bench Rest`":       "nothing matches Rest",
		"`cd kvcache && go test -bench 'Match|Xy'`":      "nothing matches Xy",
		"    python3 internal/none.py\n":                 "no file",
		"`(cd proxy/shared && go build ./sluice-proxy)`": "the binary would have the name of a folder",
	} {
		commands := commandsOf(code)
		require.Len(t, commands, 1, code)
		require.Contains(t, problem(t, "../..", commands[0]), want, code)
	}
}
