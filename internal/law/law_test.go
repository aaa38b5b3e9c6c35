// Package law asserts the import law of the repository: which folder may
// import which other folder of the module, which ones are pure Go, and which
// import paths may appear in a pure room at all.
package law

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/sluice-serving/sluice"

// everything lets a folder import every other one.
const everything = "*"

// allowed maps a folder, and all folders below it that have no row of their
// own, to the folders of the module whose packages it may import. A name
// ending in "/..." stands for the folder and everything below it.
var allowed = map[string][]string{
	"ascendrt":              {"ascendrt/..."},
	"kvcache":               {"internal/invariants"},
	"kvcache/publish":       {"kvcache"},
	"graphs":                {"internal/invariants"},
	"graphs/ranks":          {"graphs"},
	"graphs/replay":         {"graphs", "ascendrt/..."},
	"connector":             {"kvcache"},
	"connector/multi":       {"connector", "kvcache", "ascendrt/..."},
	"connector/pd":          {"connector", "connector/transport/...", "kvcache", "ascendrt/..."},
	"connector/offload":     {"connector", "kvcache", "ascendrt/..."},
	"connector/transport":   {"connector", "connector/transport/...", "kvcache", "ascendrt/..."},
	"scheduler":             {"kvcache", "graphs", "connector", "internal/invariants"},
	"proxy":                 {"proxy/...", "internal/openai"},
	"proxy/route":           {},
	"cmd":                   {everything},
	"internal/chain":        {},
	"internal/engine":       {"internal/engine/...", "internal/chain", "internal/openai", "internal/invariants", "scheduler", "kvcache/...", "connector/...", "ascendrt/...", "graphs/..."},
	"internal/sim":          {"internal/sim/...", "scheduler", "kvcache", "connector", "graphs", "proxy/route"},
	"internal/openai":       {},
	"internal/invariants":   {},
	"internal/law":          {},
	"internal/tables":       {},
	"internal/mutants":      {},
	"internal/bench":        {"internal/bench/...", "internal/up", "internal/openai", "internal/chain"},
	"internal/bench/points": {"internal/bench/...", "internal/up", "internal/openai", "internal/sim/...", "graphs"},
	"internal/up":           {"internal/up/...", "internal/openai"},
	"internal/golden":       {"scheduler", "kvcache", "connector", "graphs"},
	"internal/testkit":      {everything},
}

// pure folders build with CGO_ENABLED=0 and have no goroutine, lock, clock,
// random source or I/O; only the folder itself, not those below it.
var pure = []string{"scheduler", "kvcache", "graphs", "proxy/route", "connector"}

// impure import paths may not appear in a pure room.
var impure = []string{
	"C", "sync", "os", "net", "net/http", "math/rand", "math/rand/v2", "crypto/rand", "io/ioutil", "syscall", "os/exec",
	"log", "runtime/debug", "context",
}

type file struct {
	dir     string // folder relative to the module root, with slashes
	path    string
	imports []string
	test    bool
}

func moduleFiles(t *testing.T) []file {
	t.Helper()
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	var files []file
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if path != root {
				if _, err := os.Stat(filepath.Join(path, "go.mod")); err == nil { // a nested module has a law of its own
					return filepath.SkipDir
				}
			}
			if n := d.Name(); path != root && (strings.HasPrefix(n, ".") || n == "testdata" || n == "bin" || n == "build") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		out := file{dir: filepath.ToSlash(filepath.Dir(rel)), path: filepath.ToSlash(rel), test: strings.HasSuffix(path, "_test.go")}
		for _, im := range f.Imports {
			p, err := strconv.Unquote(im.Path.Value)
			if err != nil {
				return err
			}
			out.imports = append(out.imports, p)
		}
		files = append(files, out)
		return nil
	})
	require.NoError(t, err)
	require.NotEmpty(t, files)
	return files
}

// rule returns the row that governs a folder: its own or that of the nearest folder above.
func rule(dir string) ([]string, bool) {
	for d := dir; d != "." && d != ""; d = parent(d) {
		if r, ok := allowed[d]; ok {
			return r, true
		}
	}
	return nil, false
}

func parent(dir string) string {
	i := strings.LastIndexByte(dir, '/')
	if i < 0 {
		return ""
	}
	return dir[:i]
}

func permits(rules []string, from, to string) bool {
	if from == to {
		return true
	}
	for _, r := range rules {
		if r == everything || r == to {
			return true
		}
		if prefix, ok := strings.CutSuffix(r, "/..."); ok && (to == prefix || strings.HasPrefix(to, prefix+"/")) {
			return true
		}
	}
	return false
}

func TestImportLaw(t *testing.T) {
	for _, f := range moduleFiles(t) {
		rules, ok := rule(f.dir)
		if !ok {
			t.Errorf("%s: folder %q has no row in the import law", f.path, f.dir)
			continue
		}
		for _, im := range f.imports {
			to, ours := strings.CutPrefix(im, module+"/")
			if !ours || permits(rules, f.dir, to) {
				continue
			}
			if f.test && (to == "internal/testkit" || strings.HasPrefix(to, "internal/testkit/") || strings.HasPrefix(to, f.dir+"/")) {
				continue // tests may use the test kit and the packages below their own
			}
			t.Errorf("%s imports %s, which the import law does not allow", f.path, to)
		}
	}
}

func TestPureRooms(t *testing.T) {
	for _, f := range moduleFiles(t) {
		if f.test || !slices.Contains(pure, f.dir) {
			continue
		}
		for _, im := range f.imports {
			if slices.Contains(impure, im) {
				t.Errorf("%s imports %q: %s is a pure room", f.path, im, f.dir)
			}
		}
	}
}

func TestLawRefuses(t *testing.T) {
	require.False(t, permits(allowed["scheduler"], "scheduler", "ascendrt"))
	require.False(t, permits(allowed["scheduler"], "scheduler", "connector/pd"))
	require.False(t, permits(allowed["proxy"], "proxy", "internal/engine"))
	require.True(t, permits(allowed["scheduler"], "scheduler", "kvcache"))
}
