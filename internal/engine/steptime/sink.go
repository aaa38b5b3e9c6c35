package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
)

// sink takes lines to the output and to a file, whose steps are not measured again.
type sink struct {
	out  io.Writer
	file *os.File // nil: none
	have map[string]bool
}

// openSink reads what a file has already; an empty name is no file.
func openSink(out io.Writer, name string) (*sink, error) {
	s := &sink{out: out, have: map[string]bool{}}
	if name == "" {
		return s, nil
	}
	old, err := os.Open(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err == nil {
		lines := bufio.NewScanner(old)
		for n := 1; lines.Scan(); n++ {
			f := strings.Split(lines.Text(), ",")
			if len(f) < 2 || f[1] != "step" {
				continue
			}
			if _, bad := strconv.ParseFloat(f[min(4, len(f)-1)], 64); len(f) != 9 || bad != nil {
				return nil, errors.Join(fmt.Errorf("%s: line %d: %q is no measured step; remove it to measure it again", name, n, lines.Text()), old.Close())
			}
			s.have[strings.Join(slices.Delete(f, 4, 6), ",")] = true
		}
		if err := errors.Join(lines.Err(), old.Close()); err != nil {
			return nil, err
		}
	}
	s.file, err = os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	return s, err
}

func (s *sink) has(key string) bool { return s.have[key] }

// add writes a measured step.
func (s *sink) add(key string, ms float64) error {
	f := strings.Split(key, ",")
	s.have[key] = true
	return s.line(strings.Join(slices.Insert(f, 4, strconv.FormatFloat(ms, 'f', 4, 64), "ms"), ","))
}

// line writes one line at once, so that a run that is cut short leaves whole ones.
func (s *sink) line(text string) error {
	if _, err := fmt.Fprintln(s.out, text); err != nil {
		return err
	}
	if s.file == nil {
		return nil
	}
	_, err := s.file.WriteString(text + "\n")
	return err
}

func (s *sink) close() error {
	if s.file == nil {
		return nil
	}
	return s.file.Close()
}
