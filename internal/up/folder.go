package up

import (
	"errors"
	"os"
	"path/filepath"
)

// LogFile is where in its folder a cluster's processes write.
const LogFile = "cluster.log"

// Earlier says what happens to what the log of a folder has already.
type Earlier uint8

const (
	Overwrite Earlier = iota
	Append
)

// NewIn makes a supervisor whose children write to the log of a folder, which is
// made if it is not there. stop ends the children and closes the log.
func NewIn(dir string, earlier Earlier, cfg Config) (s *Supervisor, stop func() error, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, nil, err
	}
	mode := os.O_TRUNC
	if earlier == Append {
		mode = os.O_APPEND
	}
	log, err := os.OpenFile(filepath.Join(dir, LogFile), os.O_CREATE|os.O_WRONLY|mode, 0o644)
	if err != nil {
		return nil, nil, err
	}
	cfg.Log = NewLog(log)
	if s, err = New(cfg); err != nil {
		return nil, nil, errors.Join(err, log.Close())
	}
	return s, func() error { return errors.Join(s.StopAll(), log.Close()) }, nil
}
