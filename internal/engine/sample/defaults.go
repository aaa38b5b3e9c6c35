package sample

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Defaults are the values of parameters that a request does not name. Nil is the
// one that has no effect; of the temperature that is 1.
type Defaults struct {
	Temperature *float64 `json:"temperature"`
	TopK        *int     `json:"top_k"`
	TopP        *float64 `json:"top_p"`
	MinP        *float64 `json:"min_p"`
	Repetition  *float64 `json:"repetition_penalty"`
}

// GreedyDefaults take the most likely token.
func GreedyDefaults() Defaults { return Defaults{Temperature: new(float64)} }

// defaultsFile is where checkpoints keep them.
const defaultsFile = "generation_config.json"

// ReadDefaults reads those of a checkpoint's folder; without a file they are empty.
func ReadDefaults(dir string) (Defaults, error) {
	var d Defaults
	raw, err := os.ReadFile(filepath.Join(dir, defaultsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return d, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, &d)
	}
	if err == nil {
		err = d.Validate()
	}
	if err != nil {
		return d, fmt.Errorf("%s: %w", defaultsFile, err)
	}
	return d, nil
}

// Validate reports the first value that is out of its range, as a *RangeError.
func (d Defaults) Validate() error {
	p := d.Params()
	return p.Validate(0)
}

// Params are those of a request that names nothing.
func (d Defaults) Params() Params {
	p := Params{Temperature: 1}
	set(&p.Temperature, d.Temperature)
	set(&p.TopK, d.TopK)
	set(&p.TopP, d.TopP)
	set(&p.MinP, d.MinP)
	set(&p.Repetition, d.Repetition)
	return p
}

// With is d with what o names.
func (d Defaults) With(o Defaults) Defaults {
	over := func(v **float64, by *float64) {
		if by != nil {
			*v = by
		}
	}
	over(&d.Temperature, o.Temperature)
	over(&d.TopP, o.TopP)
	over(&d.MinP, o.MinP)
	over(&d.Repetition, o.Repetition)
	if o.TopK != nil {
		d.TopK = o.TopK
	}
	return d
}

func set[T any](v *T, to *T) {
	if to != nil {
		*v = *to
	}
}
