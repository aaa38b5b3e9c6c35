package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/connector/offload"
	"github.com/sluice-serving/sluice/connector/transport/ipc"
)

func splitList(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' })
}

// numbers reads name:number:number, of which all but the name may be left out.
func numbers(s string, most int) (name string, n [5]int, err error) {
	f := strings.Split(s, ":")
	if len(f) > most+1 {
		return "", n, fmt.Errorf("variant %q has more than %d numbers", s, most)
	}
	for i, x := range f[1:] {
		if n[i], err = strconv.Atoi(x); err != nil || n[i] < 0 {
			return "", n, fmt.Errorf("variant %q: %q is no number of 0 or more", s, x)
		}
	}
	return f[0], n, nil
}

// pullVariant is a way to pull.
type pullVariant struct {
	name    string
	how     ipc.Options
	pieces  bool
	answers bool // copies begin when the peer has answered
	claims  bool // the lease is claimed and confirmed by itself, as with peers that know of no tickets
}

// parsePulls reads variants: blocks (the device's choice), units[:width] and engine name
// blocks once; answers is blocks that are not copied ahead of the peer's answer, claims
// blocks without tickets; pieces lists all pieces.
func parsePulls(s string) (out []pullVariant, err error) {
	for _, x := range splitList(s) {
		name, n, err := numbers(x, 1)
		if err != nil {
			return nil, err
		}
		v := pullVariant{name: x, how: ipc.Options{Width: n[0]}}
		switch name {
		case "blocks":
		case "answers":
			v.answers = true
		case "claims":
			v.claims = true
		case "units":
			v.how.By = ascendrt.CopyByUnits
		case "engine":
			v.how.By = ascendrt.CopyByEngine
		case "pieces":
			v.pieces = true
		default:
			return nil, fmt.Errorf("%q is no way to pull: blocks, answers, claims, units[:width], engine, pieces", x)
		}
		out = append(out, v)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no way to pull in %q", s)
	}
	return out, nil
}

// tierVariant is a way to save and restore.
type tierVariant struct {
	name string
	how  offload.DeviceOptions
}

// tierNumbers are those of a variant of saving and restoring; 0 is the default.
const tierNumbers = "[:width[:MiB at a time[:stages[:streams[:KiB of one copy]]]]]"

// parseTiers reads variants, each a way with tierNumbers.
func parseTiers(s string) (out []tierVariant, err error) {
	for _, x := range splitList(s) {
		name, n, err := numbers(x, 5)
		if err != nil {
			return nil, err
		}
		v := tierVariant{name: x, how: offload.DeviceOptions{Width: n[0], Stage: n[1] << 20, Stages: n[2], Streams: n[3], Run: n[4] << 10}}
		for v.how.Way = offload.Auto; v.how.Way.String() != name; v.how.Way++ {
			if v.how.Way > offload.Pieces {
				return nil, fmt.Errorf("%q is no way to save: auto, staged, direct, engine or pieces, with %s", x, tierNumbers)
			}
		}
		out = append(out, v)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no way to save in %q", s)
	}
	return out, nil
}

// traffic says what is copied beside the steps.
type traffic struct{ save, load bool }

func parseTraffic(s string) (names []string, out []traffic, err error) {
	names = splitList(s)
	for _, x := range names {
		switch x {
		case "both":
			out = append(out, traffic{true, true})
		case "save":
			out = append(out, traffic{save: true})
		case "restore":
			out = append(out, traffic{load: true})
		default:
			return nil, nil, fmt.Errorf("%q is no traffic: both, save, restore", x)
		}
	}
	if len(out) == 0 {
		return nil, nil, fmt.Errorf("no traffic in %q", s)
	}
	return names, out, nil
}
