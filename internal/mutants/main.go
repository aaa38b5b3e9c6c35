// Command mutants puts small faults into the code, one at a time, and demands
// that each turns a test red. The code itself is not touched: the compiler sees
// the changed file through an overlay.
//
// A fault is a file in internal/mutants/faults:
//
//	what breaks, in words
//	file: scheduler/apply.go
//	test: scheduler
//	-- old
//	the lines that are replaced, which occur once
//	-- new
//	what stands there instead
//
// With -without-append it does the opposite: the code of a feature is cut out
// whole, and tests of a scheduler whose feature is off must not notice.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

type fault struct {
	name     string
	why      string
	file     string
	pkgs     []string
	old, new string
}

func main() {
	only := flag.String("only", "", "run the faults whose name contains this")
	limit := flag.Duration("limit", 3*time.Minute, "a test that runs longer counts as red")
	cut := flag.Bool("without-append", false, "instead, run the scheduler's histories on a scheduler that has no code of append attempts")
	flag.Parse()
	if *cut {
		if err := without(os.Stdout, appendAttempts); err != nil {
			fmt.Fprintln(os.Stderr, "mutants:", err)
			os.Exit(1)
		}
		return
	}
	if err := run(os.Stdout, "internal/mutants/faults", *only, *limit); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(w io.Writer, dir, only string, limit time.Duration) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	if err != nil {
		return err
	}
	tmp, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(tmp) }() // a leftover is harmless
	killed, tried := 0, 0
	var lived []string
	for _, path := range files {
		if !strings.Contains(filepath.Base(path), only) {
			continue
		}
		f, err := read(path)
		if err != nil {
			return err
		}
		tried++
		start := time.Now()
		red, text, err := try(f, tmp, limit)
		if err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		if red {
			killed++
			fmt.Fprintf(w, "red      %-44s %4.1f s\n", f.name, time.Since(start).Seconds())
			continue
		}
		lived = append(lived, f.name)
		fmt.Fprintf(w, "SURVIVES %-44s %s\n%s", f.name, f.why, text)
	}
	fmt.Fprintf(w, "%d of %d faults turn a test red\n", killed, tried)
	if tried == 0 {
		return errors.New("no faults found")
	}
	if len(lived) > 0 {
		return fmt.Errorf("tests stay green with: %s", strings.Join(lived, ", "))
	}
	return nil
}

// read parses a fault.
func read(path string) (fault, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return fault{}, err
	}
	f := fault{name: strings.TrimSuffix(filepath.Base(path), ".txt")}
	head, body, ok1 := strings.Cut(string(data), "-- old\n")
	old, replacement, ok2 := strings.Cut(body, "-- new\n")
	if !ok1 || !ok2 {
		return fault{}, fmt.Errorf("%s: has no old and new part", path)
	}
	f.old, f.new = old, replacement
	for line := range strings.Lines(head) {
		line = strings.TrimSpace(line)
		switch key, value, _ := strings.Cut(line, ": "); key {
		case "file":
			f.file = value
		case "test":
			f.pkgs = strings.Fields(value)
		default:
			f.why = strings.TrimSpace(f.why + " " + line)
		}
	}
	if f.file == "" || len(f.pkgs) == 0 || f.why == "" {
		return fault{}, fmt.Errorf("%s: lacks a file, a test or words", path)
	}
	return f, nil
}

// mutate is the file's text with the fault in it.
func (f fault) mutate(text string) (string, error) {
	if n := strings.Count(text, f.old); n != 1 {
		return "", fmt.Errorf("the old lines occur %d times in %s: the fault must be brought up to date", n, f.file)
	}
	return strings.Replace(text, f.old, f.new, 1), nil
}

// try reports whether a test is red with the fault. A fault that does not
// compile is an error: it proves nothing.
func try(f fault, tmp string, limit time.Duration) (red bool, output string, err error) {
	text, err := os.ReadFile(f.file)
	if err != nil {
		return false, "", err
	}
	changed, err := f.mutate(string(text))
	if err != nil {
		return false, "", err
	}
	at, err := filepath.Abs(f.file)
	if err != nil {
		return false, "", err
	}
	twin := filepath.Join(tmp, f.name+".go")
	if err := os.WriteFile(twin, []byte(changed), 0o600); err != nil {
		return false, "", err
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {at: twin}})
	if err != nil {
		return false, "", err
	}
	list := filepath.Join(tmp, f.name+".json")
	if err := os.WriteFile(list, overlay, 0o600); err != nil {
		return false, "", err
	}
	for _, pkg := range f.pkgs {
		if out, err := exec.Command("go", "build", "-overlay", list, "./"+pkg).CombinedOutput(); err != nil {
			return false, "", fmt.Errorf("does not compile:\n%s", out)
		}
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		cmd := exec.CommandContext(ctx, "go", "test", "-overlay", list, "-count=1", "-failfast", "./"+pkg)
		cmd.Env = append(os.Environ(), "SLUICE_MUTANT=1")
		out, err := cmd.CombinedOutput()
		over := ctx.Err() != nil
		cancel()
		if err != nil || over {
			return true, "", nil
		}
		output += string(out)
	}
	return false, output, nil
}
