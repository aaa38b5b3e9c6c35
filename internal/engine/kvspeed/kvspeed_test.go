package main

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt/cuda/emulated"
)

// noDriver says why there is neither a driver nor an emulated one.
var noDriver error

func TestMain(m *testing.M) {
	if _, err := os.Stat("/dev/nvidiactl"); err != nil {
		noDriver = emulated.Use()
	}
	if spec := os.Getenv(childEnv); spec != "" {
		if err := child(spec, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// The command measures everything, and what it moved was compared on the way: a
// pull that delivers other bytes is an error.
func TestMeasures(t *testing.T) {
	if noDriver != nil {
		t.Skip(noDriver)
	}
	t.Setenv("SLUICE_CUDA_EMU_DEVICES", "2") // a real driver does not look at it
	var out bytes.Buffer
	o := options{
		device: "cuda:0", model: "tiny", parts: "pull,kernel,host,decode", tokens: 256, block: 16, repeat: 2, batch: 2, context: 16, steps: 2, rounds: 1,
		pulls: "blocks,answers,claims,units:3,engine,pieces", tiers: "auto,staged:4:1:2:1:64,direct,engine,pieces", traffic: "both,save,restore", at: 5, inflight: "1,3", series: 5,
	}
	require.NoError(t, run(t.Context(), o, &out))
	seen := map[string]int{}
	for _, l := range strings.Split(strings.TrimSpace(out.String()), "\n") {
		if strings.HasPrefix(l, "#") || strings.HasPrefix(l, "what,") {
			if _, rest, ok := strings.Cut(l, ": "); ok && strings.HasSuffix(l, "past the connections") {
				var past, all int64
				_, err := fmt.Sscanf(rest, "%d of %d bytes", &past, &all)
				require.NoError(t, err, l)
				require.Positive(t, past)
				require.Equal(t, all, past, l)
			}
			continue
		}
		f := strings.Split(l, ",")
		require.Len(t, f, 7, l)
		seen[f[0]]++
		for _, x := range f[2:5] {
			v, err := strconv.ParseFloat(x, 64)
			require.NoError(t, err, l)
			if f[5] != "percent" && f[5] != "ms" && !strings.HasSuffix(f[1], "beside nothing") {
				require.Positive(t, v, l)
			}
		}
	}
	for what, times := range map[string]int{
		"plain copy": 2, "pull of a row": 12, "pull of scattered blocks": 12, "pull of scattered blocks: preparation of copies": 12,
		"pull of a row: ahead of the first copy": 12, "pull of a row: of that for the lease": 12, "pull of a row: of that for the answer": 12,
		"pull of a row: behind the last copy": 12,
		"plain copy by itself":                2, "kernel by itself of a row": 2, "kernel by itself of scattered blocks": 2, "kernel by itself of one block": 2,
		"plain copy to the host": 5, "save": 5, "save of a row": 5, "plain copy from the host": 5, "restore": 5, "restore: preparation": 5,
		"decode step without copies": 16, "decode step while copying": 16, "decode step slower by": 16, "submission of a step while copying": 16, "copied meanwhile": 16,
	} {
		require.Equal(t, times, seen[what], "%s\n%s", what, out.String())
	}
}

// Wrong bytes are noticed.
func TestNoticesOtherBytes(t *testing.T) {
	if noDriver != nil {
		t.Skip(noDriver)
	}
	dev, err := open("cuda:0")
	require.NoError(t, err)
	p, err := newPool(dev, kvShape{layers: 2, block: 16, blocks: 8, bytes: 4096})
	require.NoError(t, err)
	require.NoError(t, p.fill(t.Context(), mark))
	a, b := order(8, 0), order(8, 1)
	require.NoError(t, p.check(t.Context(), a, a, newRand()))
	require.ErrorContains(t, p.check(t.Context(), a, b, newRand()), "want")
	require.NoError(t, p.close())
	require.NoError(t, dev.Close(t.Context()))
}

func TestRefusesOptions(t *testing.T) {
	good := options{device: "cuda:0", model: "tiny", parts: "pull", tokens: 256, block: 16, repeat: 1, batch: 1, context: 1, steps: 1, rounds: 1,
		pulls: "blocks", tiers: "staged", traffic: "both", at: 1, series: 1}
	for name, bad := range map[string]func(*options){
		"model":  func(o *options) { o.model = "none" },
		"tokens": func(o *options) { o.tokens = 8 },
		"device": func(o *options) { o.device = "abacus:0" },
		"part":   func(o *options) { o.parts = "push" },

		"blocks":         func(o *options) { o.at = 0 },
		"series":         func(o *options) { o.series = 0 },
		"at once":        func(o *options) { o.inflight = "1,0" },
		"way to pull":    func(o *options) { o.pulls = "blocks,fast" },
		"width":          func(o *options) { o.pulls = "units:-1" },
		"numbers":        func(o *options) { o.pulls = "units:1:2" },
		"no way to pull": func(o *options) { o.pulls = "," },
		"way to save":    func(o *options) { o.parts, o.tiers = "host", "Way(9)" },
		"no way to save": func(o *options) { o.parts, o.tiers = "decode", "" },
		"traffic":        func(o *options) { o.parts, o.traffic = "decode", "push" },
	} {
		if noDriver != nil && name != "model" && name != "tokens" && name != "device" && name != "blocks" && name != "series" {
			continue
		}
		o := good
		bad(&o)
		require.Error(t, run(t.Context(), o, &bytes.Buffer{}), name)
	}
}

// A figure of a slow machine is not rounded to nothing.
func TestFigure(t *testing.T) {
	for x, want := range map[float64]string{
		0: "0", 0.00012345: "0.000123", -0.5: "-0.5", 0.1234: "0.123", 1.23456: "1.235", -12.3456: "-12.346", 4018: "4018.000",
	} {
		require.Equal(t, want, figure(x))
	}
}
