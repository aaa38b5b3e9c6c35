package golden

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// ErrDiffers says that a history is not equal and not listed as a difference.
var ErrDiffers = errors.New("histories differ")

// Run replays every history of a folder, writes a line or more for each and a
// last line with the count, and returns ErrDiffers if one differs that is not
// in listed.
func Run(w io.Writer, dir string, listed map[string]string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*.jsonl.gz"))
	if err != nil {
		return err
	}
	if len(files) == 0 {
		return fmt.Errorf("%s has no histories (*.jsonl.gz)", dir)
	}
	out := bufio.NewWriter(w)
	equal, unlisted := 0, 0
	for _, f := range files {
		h, err := Read(f)
		if err != nil {
			return errors.Join(err, out.Flush())
		}
		name := h.Header.Scenario
		d, err := Replay(h)
		switch {
		case err != nil:
			return errors.Join(err, out.Flush())
		case d == nil:
			equal++
			fmt.Fprintf(out, "equal    %s: %d steps, %d tokens\n", name, h.End.Steps, h.End.TotalTokens)
		case listed[name] != "":
			fmt.Fprintf(out, "listed   %s: %s\n  %s\n", name, listed[name], d)
		default:
			unlisted++
			fmt.Fprintf(out, "DIFFERS  %s: %s\n", name, d)
		}
	}
	fmt.Fprintf(out, "%d of %d scenarios equal\n", equal, len(files))
	if err := out.Flush(); err != nil {
		return err
	}
	if unlisted > 0 {
		return fmt.Errorf("%d %w", unlisted, ErrDiffers)
	}
	return nil
}

// Listed reads the table of differing histories from a Markdown file: the rows
// between the lines "<!-- histories -->" and "<!-- /histories -->", the
// scenario's name in the first column and the reason in the second.
func Listed(path string) (map[string]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // read only
	listed := map[string]string{}
	in := bufio.NewScanner(f)
	inside := false
	for in.Scan() {
		line := strings.TrimSpace(in.Text())
		switch line {
		case "<!-- histories -->":
			inside = true
			continue
		case "<!-- /histories -->":
			inside = false
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		if !inside || len(cells) < 2 {
			continue
		}
		name, why := strings.Trim(strings.TrimSpace(cells[0]), "`"), strings.TrimSpace(cells[1])
		if name == "scenario" || strings.Trim(name, "-: ") == "" {
			continue
		}
		listed[name] = why
	}
	return listed, in.Err()
}
