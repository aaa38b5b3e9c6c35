package points

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// maxLine bounds a line of a results file, in bytes.
const maxLine = 4 << 20

// LineError reports a line of a results file that cannot be used.
type LineError struct {
	File string
	Line int // from 1
	Err  error
}

func (e *LineError) Error() string { return fmt.Sprintf("%s: line %d: %v", e.File, e.Line, e.Err) }
func (e *LineError) Unwrap() error { return e.Err }

// CommitError reports a line that another commit's binary has measured.
type CommitError struct{ Have, Want string }

func (e *CommitError) Error() string {
	return fmt.Sprintf("measured at commit %q, this is %q: take another file, or name that commit among those whose points count", e.Have, e.Want)
}

// Read gives the lines of a results file; none if there is no file. A last line
// that is torn, because whoever wrote it was stopped, is passed over.
func Read(path string) ([]Line, error) {
	lines, _, err := read(path)
	return lines, err
}

// read also gives the length in bytes of what is whole.
func read(path string) (lines []Line, whole int64, err error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	in := bufio.NewReader(f)
	for n := 1; ; n++ {
		text, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return lines, whole, nil
		}
		if err != nil {
			return nil, 0, err
		}
		whole += int64(len(text))
		if len(bytes.TrimSpace(text)) == 0 {
			continue
		}
		l, err := decode(text)
		if err != nil {
			return nil, 0, &LineError{path, n, err}
		}
		lines = append(lines, *l)
	}
}

func decode(text []byte) (*Line, error) {
	if len(text) > maxLine {
		return nil, fmt.Errorf("is longer than %d bytes", maxLine)
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	l := &Line{Figures: Figures{Preempted: notRecorded}}
	if err := dec.Decode(l); err != nil {
		return nil, err
	}
	switch {
	case l.Version != version:
		return nil, fmt.Errorf("version %d is not %d", l.Version, version)
	case l.Table != Tails && l.Table != AppendPrefill:
		return nil, fmt.Errorf("unknown table %q", l.Table)
	case l.Model == "" || l.Repeat < 1 || l.Output < 1:
		return nil, fmt.Errorf("model %q, repeat %d and output %d name no point", l.Model, l.Repeat, l.Output)
	}
	return l, nil
}

// File is a results file that is added to.
type File struct {
	path  string
	lines []Line
	f     *os.File
}

// Open opens a results file for one run, and makes it if there is none. All
// its lines must be of the commit, or of one of those that are accepted beside
// it, which may be abbreviated. A torn last line is cut off.
func Open(path, commit string, accepted []string) (_ *File, err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	lines, whole, err := read(path)
	if err != nil {
		return nil, err
	}
	for i := range lines {
		have := lines[i].Commit
		if have != commit && !slices.ContainsFunc(accepted, func(a string) bool { return sameCommit(have, a) }) {
			return nil, &LineError{path, i + 1, &CommitError{have, commit}}
		}
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	if err := f.Truncate(whole); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if _, err := f.Seek(whole, io.SeekStart); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &File{path: path, lines: lines, f: f}, nil
}

// sameCommit compares commits, either of which may be abbreviated.
func sameCommit(a, b string) bool {
	return a != "" && b != "" && (strings.HasPrefix(a, b) || strings.HasPrefix(b, a))
}

// Lines are those of the file, in its order.
func (f *File) Lines() []Line { return f.lines }

// Done reports whether the file has the point, measured in the same setting.
func (f *File) Done(o Origin, p *Point) bool {
	for i := range f.lines {
		if f.lines[i].planned() == o.planned() && f.lines[i].Key() == p.Key() {
			return true
		}
	}
	return false
}

// Add appends a line; it is on the disk when Add returns.
func (f *File) Add(l Line) error {
	l.Version = version
	text, err := json.Marshal(&l)
	if err != nil {
		return err
	}
	if _, err := f.f.Write(append(text, '\n')); err != nil {
		return err
	}
	if err := f.f.Sync(); err != nil {
		return err
	}
	f.lines = append(f.lines, l)
	return nil
}

// Close closes the file.
func (f *File) Close() error { return f.f.Close() }
