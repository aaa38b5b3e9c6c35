package engine

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/sluice-serving/sluice/scheduler"
)

// defaultStepLines is how many lines of the scheduler's recording a rank keeps.
// A step is two lines, its plan and its result, and a little more with a
// connector.
const defaultStepLines = 4096

// stepLog keeps the last lines of a scheduler's recording. Its methods may be
// called from any goroutine, so that a rank that hangs can be looked at.
type stepLog struct {
	mu    sync.Mutex
	begin []byte // the first line, which has the configuration
	ring  *scheduler.Ring
	size  int
	lines int // written behind the first
}

func newStepLog(lines int) *stepLog { return &stepLog{ring: scheduler.NewRing(lines), size: lines} }

// Write takes one line, as a scheduler.Recorder writes them.
func (l *stepLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.begin == nil {
		l.begin = bytes.Clone(p)
		return len(p), nil
	}
	l.lines++
	return l.ring.Write(p)
}

// dump writes what is kept. While nothing was dropped it is a whole recording,
// which can be replayed; later a first line of its own says how many are missing.
func (l *stepLog) dump(path string) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	l.mu.Lock()
	defer l.mu.Unlock()
	if missing := l.lines - l.size; missing > 0 {
		_, err = fmt.Fprintf(f, `{"op":"cut","value":%d}`+"\n", missing)
	} else {
		_, err = f.Write(l.begin)
	}
	if err != nil {
		return err
	}
	_, err = l.ring.WriteTo(f)
	return err
}

// DumpSteps writes the last steps of each rank to a file of the configured
// folder, for `sluice replay`, and gives the files' names. It does not wait for
// the ranks.
func (e *Engine) DumpSteps() ([]string, error) {
	var files []string
	var errs []error
	for _, r := range e.ranks {
		file, err := r.dumpSteps()
		if err != nil {
			errs = append(errs, fmt.Errorf("rank %d: %w", r.index, err))
		} else if file != "" {
			files = append(files, file)
		}
	}
	return files, errors.Join(errs...)
}

// dumpSteps is DumpSteps of one rank; the name is empty if it keeps no steps.
func (r *rank) dumpSteps() (string, error) {
	if r.steps == nil {
		return "", nil
	}
	dir := r.cfg.DumpDir
	if dir == "" {
		dir = os.TempDir()
	}
	file := filepath.Join(dir, "sluice-"+r.id+".steps.jsonl")
	return file, r.steps.dump(file)
}

// broken dumps the last steps of a rank that cannot go on and says where.
func (r *rank) broken(why any) {
	file, err := r.dumpSteps()
	switch {
	case err != nil:
		r.log.Error("a rank has failed and its last steps could not be written", "cause", why, "error", err)
	case file != "":
		r.log.Error("a rank has failed; its last steps are in a file for `sluice replay`", "cause", why, "file", file)
	}
}
