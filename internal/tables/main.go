// Command tables checks the tables of the documentation that name tests: every
// test that a row names exists and passes, and none is skipped.
//
// A name is written in backticks: a package folder, and after it tests of that
// package, as `kvcache` `TestScripts/copies` `TestModel`. A star stands for any
// one part of a subtest's name.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
)

// reference is a test that a row names.
type reference struct {
	file string
	line int
	pkg  string
	test string
}

var (
	quoted   = regexp.MustCompile("`([^`]+)`")
	testName = regexp.MustCompile(`^(Test|Fuzz|Example|Benchmark)[A-Z0-9_]?\w*(/\S+)?$`)
	pkgName  = regexp.MustCompile(`^[a-z0-9_]+(/[a-z0-9_]+)*$`)
)

func main() {
	if err := run(os.Stdout, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "tables:", err)
		os.Exit(1)
	}
}

func run(w io.Writer, files []string) error {
	if len(files) == 0 {
		return errors.New("no files given")
	}
	var refs []reference
	for _, f := range files {
		found, err := read(f)
		if err != nil {
			return err
		}
		refs = append(refs, found...)
	}
	byPkg := map[string][]reference{}
	for _, r := range refs {
		byPkg[r.pkg] = append(byPkg[r.pkg], r)
	}
	var pkgs []string
	for p := range byPkg {
		pkgs = append(pkgs, p)
	}
	slices.Sort(pkgs)
	bad := 0
	for _, pkg := range pkgs {
		outcome, err := outcomes(pkg, byPkg[pkg])
		if err != nil {
			return err
		}
		for _, r := range byPkg[pkg] {
			if why := judge(r.test, outcome); why != "" {
				bad++
				fmt.Fprintf(w, "%s:%d: %s %s %s\n", r.file, r.line, r.pkg, r.test, why)
			}
		}
	}
	fmt.Fprintf(w, "%d names of tests in %d packages, %d wrong\n", len(refs), len(pkgs), bad)
	if bad > 0 {
		return errors.New("tables name tests that do not pass")
	}
	return nil
}

// read finds the names in a file's table rows.
func read(file string) ([]reference, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // read only
	var refs []reference
	in := bufio.NewScanner(f)
	in.Buffer(nil, 1<<20)
	for n := 1; in.Scan(); n++ {
		if !strings.HasPrefix(strings.TrimSpace(in.Text()), "|") {
			continue
		}
		pkg := ""
		for _, m := range quoted.FindAllStringSubmatch(in.Text(), -1) {
			switch name := m[1]; {
			case testName.MatchString(name):
				if pkg == "" {
					return nil, fmt.Errorf("%s:%d: %s stands without a package", file, n, name)
				}
				refs = append(refs, reference{file, n, pkg, name})
			case pkgName.MatchString(name):
				if st, err := os.Stat(name); err == nil && st.IsDir() {
					pkg = name
				}
			}
		}
	}
	return refs, in.Err()
}

// outcomes runs the tests that are named of one package, and says how each of
// them and of their subtests ended.
func outcomes(pkg string, refs []reference) (map[string]string, error) {
	var tops []string
	for _, r := range refs {
		top, _, _ := strings.Cut(r.test, "/")
		if !slices.Contains(tops, top) {
			tops = append(tops, top)
		}
	}
	out := map[string]string{}
	list, err := exec.Command("go", "test", "-list", ".", "./"+pkg).Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", pkg, err)
	}
	for line := range strings.Lines(string(list)) {
		if name := strings.TrimSpace(line); strings.HasPrefix(name, "Benchmark") {
			out[name] = "pass" // that it exists is all that is asked
		}
	}
	cmd := exec.Command("go", "test", "-json", "-count=1", "-run", "^("+strings.Join(tops, "|")+")$", "./"+pkg)
	var text bytes.Buffer
	cmd.Stdout = &text
	cmd.Stderr = os.Stderr
	_ = cmd.Run() // what failed is in the output
	dec := json.NewDecoder(&text)
	for {
		var ev struct{ Action, Test string }
		if err := dec.Decode(&ev); errors.Is(err, io.EOF) {
			return out, nil
		} else if err != nil {
			return nil, fmt.Errorf("%s: %w", pkg, err)
		}
		if ev.Test != "" && (ev.Action == "pass" || ev.Action == "fail" || ev.Action == "skip") {
			out[ev.Test] = ev.Action
		}
	}
}

// judge says what is wrong with a name, or nothing.
func judge(test string, outcome map[string]string) string {
	if !strings.Contains(test, "*") {
		switch outcome[test] {
		case "pass":
			return ""
		case "":
			return "does not exist"
		case "skip":
			return "is skipped"
		}
		return "fails"
	}
	found := false
	for name, o := range outcome {
		if ok, err := path.Match(test, name); err == nil && ok {
			if o != "pass" {
				return "matches " + name + ", which does not pass"
			}
			found = true
		}
	}
	if !found {
		return "matches nothing"
	}
	return ""
}
