// Command kvspeed measures how KV moves on devices of one host, against what the
// devices do plainly, in one run:
//
//   - pull: a prompt's KV from another process, on the same device and on a second
//     one, lease and confirmation included, against one large copy between the two;
//     by each variant, and where the time went: ahead of the first copy (for the lease,
//     for the answer to the request), the preparation, the copies, behind the last one;
//     with -inflight also series of pulls, several at once
//   - kernel: what the device takes for the copies of such a pull alone, against one large copy
//   - host: saves and restores of the host tier against one large pinned copy, by each
//     variant
//   - decode: the time of a decode step, and of its submission, while blocks are saved
//     and restored by each variant, against the mean of the time without just before
//     and just after, at the same lengths of the sequences for each variant
//
// It needs no checkpoint and no other program; the other process is itself.
//
//	go run ./internal/engine/kvspeed
//
// Output is CSV, one line per figure: what it is, with what, the median with the
// least and the greatest of the repetitions, and its ratio to the plain arm.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/backends"
	"github.com/sluice-serving/sluice/internal/engine/model"
)

type options struct {
	device, peers, model, parts           string
	pulls, inflight                       string
	tiers, traffic                        string
	tokens, block, repeat, batch, context int
	steps, rounds, at, series             int
}

func main() {
	if spec := os.Getenv(childEnv); spec != "" {
		if err := child(spec, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "kvspeed, the other process:", err)
			os.Exit(1)
		}
		return
	}
	var o options
	flag.StringVar(&o.device, "device", "cuda:0", "device that receives, saves and decodes")
	flag.StringVar(&o.peers, "peers", "", "devices of the other process, separated by commas; empty: the same one, and the next one if there is one")
	flag.StringVar(&o.model, "model", "qwen3-0.6b", "shape")
	flag.StringVar(&o.parts, "parts", "pull,host,decode", "what is measured: pull, kernel, host, decode")
	flag.StringVar(&o.pulls, "pulls", "blocks,answers,claims,units,engine,pieces", "variants of pull: blocks (the device's choice), answers (the same, and no copy ahead of the answer), claims (the same without tickets), units[:width], engine, pieces")
	flag.StringVar(&o.inflight, "inflight", "", "also pulls so many prompts at once, by each variant; several by commas, as 1,2,4,8")
	flag.IntVar(&o.series, "series", 16, "pulls of one series of several at once")
	flag.StringVar(&o.tiers, "tiers", "auto,staged,direct,engine,pieces", "variants of saving and restoring: auto (the default), staged, direct, engine, pieces, each "+tierNumbers+", 0 for the default")
	flag.StringVar(&o.traffic, "traffic", "both", "what is copied beside decode steps: both, save, restore; several by commas")
	flag.IntVar(&o.at, "blocks-at-a-time", 18, "blocks that one save or restore beside decode steps copies")
	flag.IntVar(&o.tokens, "tokens", 12288, "of the prompt that moves")
	flag.IntVar(&o.block, "block-size", 16, "tokens per KV block")
	flag.IntVar(&o.repeat, "repeat", 9, "repetitions, of which the median counts")
	flag.IntVar(&o.batch, "batch", 32, "sequences of a decode step")
	flag.IntVar(&o.context, "context", 1024, "tokens of each sequence of a decode step, about the mean of a turn")
	flag.IntVar(&o.steps, "steps", 100, "decode steps of one measurement")
	flag.IntVar(&o.rounds, "rounds", 5, "turns of all variants of decode")
	flag.Parse()
	if err := run(context.Background(), o, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "kvspeed:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options, out io.Writer) (err error) {
	shape, err := model.Shape(o.model)
	if err != nil {
		return err
	}
	if o.tokens < o.block || o.block < 1 || o.repeat < 1 || o.batch < 1 || o.steps < 1 || o.rounds < 1 || o.context < 1 || o.at < 1 || o.series < 1 {
		return fmt.Errorf("%+v: every number is at least 1, and a prompt at least a block", o)
	}
	dev, err := open(o.device)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close(ctx)) }()
	fmt.Fprintf(out, "# %s, %s, %s; %d tokens in blocks of %d, %d repetitions\n", dev.Info().Name, time.Now().UTC().Format("2006-01-02"), o.model, o.tokens, o.block, o.repeat)
	fmt.Fprintln(out, "what,with,median,least,greatest,unit,percent of plain")
	kv := newShape(shape, o.block, o.tokens/o.block)
	for _, part := range strings.Split(o.parts, ",") {
		begin := time.Now()
		switch part {
		case "pull":
			err = pulls(ctx, dev, o, kv, out)
		case "kernel":
			err = kernels(ctx, dev, o, kv, out)
		case "host":
			err = hostTier(ctx, dev, o, kv, out)
		case "decode":
			err = decode(ctx, dev, o, shape, out)
		default:
			err = fmt.Errorf("unknown part %q", part)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", part, err)
		}
		fmt.Fprintf(out, "# %s took %.1f s\n", part, time.Since(begin).Seconds())
	}
	return nil
}

func open(device string) (ascendrt.Device, error) {
	b, n, err := backends.Find(device)
	if err != nil {
		return nil, err
	}
	return b.Open(n, ascendrt.OpenOptions{})
}

// figures are repetitions of one measurement.
type figures []float64

func (f figures) median() float64 {
	s := slices.Clone(f)
	slices.Sort(s)
	return s[len(s)/2]
}

// line prints figures; plain is what they are compared with, nil for none.
func line(out io.Writer, what, with string, f, plain figures, unit string) {
	ratio := ""
	if plain != nil {
		ratio = fmt.Sprintf("%.1f", 100*f.median()/plain.median())
	}
	fmt.Fprintf(out, "%s,%s,%s,%s,%s,%s,%s\n", what, with, figure(f.median()), figure(slices.Min(f)), figure(slices.Max(f)), unit, ratio)
}

// figure has three decimals, or three digits of what is below one.
func figure(x float64) string {
	if x > -1 && x < 1 {
		return strconv.FormatFloat(x, 'g', 3, 64)
	}
	return strconv.FormatFloat(x, 'f', 3, 64)
}

// ratios prints by how many percent figures are above those of the same turn.
func ratios(out io.Writer, what, with string, f, without figures) {
	var r figures
	for i := range f {
		r = append(r, 100*(f[i]/without[i]-1))
	}
	line(out, what, with, r, nil, "percent")
}

func milliseconds(d time.Duration) float64 { return d.Seconds() * 1e3 }

// rate is GB/s.
func rate(bytes int64, d time.Duration) float64 { return float64(bytes) / 1e9 / d.Seconds() }
