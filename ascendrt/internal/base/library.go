package base

import (
	"sync"

	"github.com/sluice-serving/sluice/ascendrt"
)

// Library is one vendor library, opened at first use and kept for the life of the
// process: a driver is never unloaded.
type Library struct {
	Once     sync.Once
	OK       bool
	Path     string
	Problem  string
	Version  string   // as a report shows it
	Restored int      // signal handlers that the library replaced and we put back
	Absent   []string // optional symbols
}

// Need is the error of a call that needs the library, if it is not there: it says
// what to do.
func (b *Library) Need(backend, call, name, advice string) error {
	if b.OK {
		return nil
	}
	return &ascendrt.Error{Backend: backend, Call: call, Text: name + ": " + b.Problem + ": " + advice, Command: -1, Class: ascendrt.ErrUnavailable}
}

// Report adds to r what was found of the library; without says what its absence
// takes away, "" for one without which nothing works.
func (b *Library) Report(r *ascendrt.Report, name, without string) {
	l := ascendrt.Library{Name: name, Path: b.Path, Version: b.Version}
	if !b.OK {
		l.Problem = b.Problem
		if without != "" {
			r.Missing = append(r.Missing, without)
		}
	}
	r.Libraries = append(r.Libraries, l)
	for _, s := range b.Absent {
		if b.OK {
			r.Missing = append(r.Missing, s+" is absent from "+b.Path)
		}
	}
}
