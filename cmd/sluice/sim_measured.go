package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/sluice-serving/sluice/internal/bench/points"
	"github.com/sluice-serving/sluice/internal/sim"
)

// predict prints what the simulator says of measured points beside them.
func (f *simFlags) predict(out io.Writer) error {
	lines, err := points.Read(f.measured)
	if err != nil {
		return err
	}
	if len(lines) == 0 {
		return fmt.Errorf("%s has no measured point", f.measured)
	}
	a := f.assumed
	for _, table := range []string{points.Tails, points.AppendPrefill} {
		list, err := points.Predict(lines, table, f.steps, a)
		if err != nil {
			return err
		}
		if len(list) == 0 {
			continue
		}
		if _, err := fmt.Fprintf(out, "\n%s: simulated with the steps of %s, measured, and how far the first is off\n\n", table, f.cost); err != nil {
			return err
		}
		if err := points.PrintComparisons(out, list); err != nil {
			return err
		}
	}
	for _, model := range slices.Sorted(maps.Keys(f.read)) {
		for _, text := range f.read[model].Beyond() {
			if _, err := fmt.Fprintf(out, "beyond the measured steps, by the line through the last two: %s\n", text); err != nil {
				return err
			}
		}
	}
	return nil
}

// steps reads one model's from the cost model.
func (f *simFlags) steps(model string) (*sim.Steps, error) {
	if s := f.read[model]; s != nil {
		return s, nil
	}
	file, err := os.Open(f.cost)
	if err != nil {
		return nil, err
	}
	s, err := sim.ReadSteps(file, model)
	if err := errors.Join(err, file.Close()); err != nil {
		return nil, fmt.Errorf("%s: %w", f.cost, err)
	}
	if f.read == nil {
		f.read = map[string]*sim.Steps{}
	}
	f.read[model] = s
	return s, nil
}
