package main

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sluice-serving/sluice/internal/engine"
)

// span is what a number may be. Durations count in seconds.
type span struct {
	least, most float64
	above       bool // least itself is too little
}

var (
	anyPort    = span{0, 65535, false}
	notBelow0  = span{0, 1 << 40, false}
	above0     = span{0, 1e9, true} // also the most seconds that a time.Duration takes
	seconds    = span{0, 1e9, false}
	tokens     = span{1, 1 << 20, false}
	coresOrAll = span{0, 1 << 12, false}
)

// limits are the numbers that a flag takes, by command and flag, beside what the
// packages behind them check. A zero that would mean a default which the flag
// does not show is not among them. The proxy has its own, for those who build it
// into another binary.
var limits = map[string]map[string]span{
	"bench": {
		"arrival": seconds, "arrivals": above0, "decoder-kv-tokens": notBelow0, "device-workers": coresOrAll, "gap": above0,
		"input-len": tokens, "kills": {1, 10_000, false}, "max-concurrency": notBelow0, "max-tokens": tokens, "model-runner": {1, 2, false},
		"num-prompts": {1, 1e6, false}, "output-len": tokens, "points": notBelow0, "port": anyPort, "prefiller-kv-tokens": notBelow0,
		"ready-timeout": above0, "repeat": {1, 10_000, false}, "request-rate": {0, math.Inf(1), false}, "scale-time": above0, "scale-tokens": {0, 1e6, true},
		"sessions": {1, 1e6, false}, "think": seconds, "time-limit": seconds, "timeout": seconds, "turns": {1, 10_000, false},
	},
	"cache":  {"blocks": notBelow0},
	"doctor": {"timeout": above0},
	"eval":   {"concurrency": {1, 10_000, false}, "limit": notBelow0, "max-tokens": tokens, "shots": notBelow0},
	"explain": {
		"k": notBelow0, "max-num-seqs": {1, 1 << 16, false}, "pcp": {1, 1024, false},
	},
	"serve": served(map[string]span{
		"drain-timeout": above0, "global-cache-hit-threshold": {0, 1, false}, "port": anyPort, "watermark": {0, 1, false},
	}),
	"sim": {
		"block-size": {1, 1024, false}, "blocks": {1, 1 << 22, false}, "copy-slowdown": {0, 100, false}, "decoders": {1, 10_000, false}, "gap": above0, "hop": {0, 3600, false},
		"max-instances": {1, 10_000, false}, "prefillers": {1, 10_000, false}, "ranks": {1, 1024, false}, "restore-rate": {0, math.Inf(1), false}, "save-rate": {0, math.Inf(1), false},
		"scale-time": above0, "scale-tokens": {0, 1e6, true}, "sessions": notBelow0, "shared-device": {0, 1, false}, "transfer-ahead": {0, 3600, false}, "transfer-rate": {0, math.Inf(1), false},
	},
	"up": {
		"decoder-dp-size": {1, 256, false}, "decoder-kv-blocks": notBelow0, "grace": above0, "port": anyPort, "prefiller-kv-blocks": notBelow0, "ready-timeout": above0,
	},
}

// served adds what the engine says of its numbers. A block size of 0 is the
// default, which depends on the device.
func served(own map[string]span) map[string]span {
	for name, l := range engine.Limits {
		own[name] = span{float64(l.Least), float64(l.Most), false}
	}
	own["block-size"] = span{0, float64(engine.Limits["block-size"].Most), false}
	return own
}

// within reports the flags of a command with a number that they do not take.
func within(cmd *cobra.Command) error {
	var errs []error
	for _, name := range numbers(cmd) {
		s, ok := limits[cmd.Name()][name]
		f := cmd.Flags().Lookup(name)
		v := valueOf(f)
		if !ok || v >= s.least && v <= s.most && !(s.above && v == s.least) {
			continue
		}
		errs = append(errs, fmt.Errorf("--%s is %s, must be %s", name, f.Value, s.text(f.Value.Type())))
	}
	return errors.Join(errs...)
}

// numbers are the flags of a command that take a number which may be too small.
func numbers(cmd *cobra.Command) (names []string) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		switch f.Value.Type() {
		case "int", "float64", "duration":
			names = append(names, f.Name)
		}
	})
	return names
}

// valueOf is the value of one of them.
func valueOf(f *pflag.Flag) float64 {
	if f.Value.Type() == "duration" {
		d, _ := time.ParseDuration(f.Value.String())
		return d.Seconds()
	}
	v, _ := strconv.ParseFloat(f.Value.String(), 64)
	return v
}

func (s span) text(kind string) string {
	show := func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
	if kind == "duration" {
		show = func(v float64) string { return (time.Duration(v) * time.Second).String() }
	}
	from, and := "at least ", " and "
	if s.above {
		from = "above "
	}
	if math.IsInf(s.most, 1) {
		return from + show(s.least)
	}
	return from + show(s.least) + and + "at most " + show(s.most)
}
