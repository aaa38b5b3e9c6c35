package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/sluice-serving/sluice/internal/sim/tails"
)

// tailSeeds is the number of runs that the preset tails takes the mean of.
const tailSeeds = 8

func (f *simFlags) playTails(out io.Writer) error {
	points, err := tails.Table(tailSeeds)
	if err != nil {
		return err
	}
	if f.json {
		return json.NewEncoder(out).Encode(points)
	}
	_, err = fmt.Fprintf(out, "preset tails, mean of %d runs of 30 s: prompts of 1,000 and outputs of 256 tokens\n%s", tailSeeds, tails.Text(points))
	return err
}
