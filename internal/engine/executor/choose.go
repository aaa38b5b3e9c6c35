package executor

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/scheduler"
)

// Sampler chooses tokens on the host. The executor calls it from within Submit
// and Wait. n is the token's position in the request's output.
type Sampler interface {
	// OnHost reports whether a token is chosen by Choose; otherwise it is the most
	// likely one, which the device finds.
	OnHost(id scheduler.RequestID, n int) bool
	// Choose gives a token for its logits, one value per token id, which it may
	// change. It is negative if there is none. The tokens before it have been
	// chosen. id may have ended since OnHost. Several goroutines call it at once,
	// each for another request, while that of Submit and Wait stands still.
	Choose(id scheduler.RequestID, n int, logits []float32) scheduler.Token
}

// choice is a row whose tokens the host chooses.
type choice struct {
	row, n int
	id     scheduler.RequestID
	logits int // rows of logits before its own
}

// choices notes the rows of a plan whose tokens the host chooses, and makes room
// for their logits. The other rows that sample have their tokens in their cells.
func (e *Executor) choices(p *scheduler.Plan, o *output) error {
	o.choices = o.choices[:0]
	need := 0
	for i, id := range p.Requests {
		if p.Samples[i] == 0 {
			continue
		}
		s := &e.seqs[id.Slot()]
		s.chosen = nil
		if e.c.Sampler == nil {
			continue
		}
		if n := int(p.Outputs[i]); e.c.Sampler.OnHost(id, n) {
			o.choices = append(o.choices, choice{i, n, id, need})
			need += 1 + len(real(p, i))
			s.chosen, s.row = o, i
		}
	}
	need *= e.logitsBytes()
	if need == 0 || o.logits != nil && len(o.logits.Bytes()) >= need {
		return nil
	}
	if o.logits != nil {
		if err := o.logits.FreeAfter(ascendrt.Point{}); err != nil {
			return err
		}
		o.logits = nil
	}
	var err error
	if o.logits, err = e.dev.AllocHost(need); err != nil {
		return fmt.Errorf("logits for the host: %w", err)
	}
	return nil
}

// logitsBytes is the size of one row of logits.
func (e *Executor) logitsBytes() int { return e.act.logits.RowLen() * e.act.logits.Type.Size() }

// fetch copies the logits of the host's rows. A later step overwrites them on
// the device, behind these copies.
func (e *Executor) fetch(c *ascendrt.Commands, o *output) {
	n := e.logitsBytes()
	for _, x := range o.choices {
		some := n * (1 + len(real(o.plan, x.row)))
		c.Copy(o.logits.Slice(x.logits*n, some), e.act.logits.View.Slice(o.at[x.row]*n, some))
	}
}

// choose waits for a step, puts the host's tokens among the device's, and counts
// the tokens of every row.
func (e *Executor) choose(ctx context.Context, o *output) error {
	if err := o.point.Wait(ctx); err != nil {
		return err
	}
	e.chooseAll(o)
	o.choices = o.choices[:0]
	for i := range o.counts {
		if o.plan.Samples[i] != 0 && o.counts[i] == 0 {
			o.counts[i] = int32(verify(real(o.plan, i), func(j int) scheduler.Token { return scheduler.Token(o.tokens[o.at[i]+j]) }))
		}
	}
	return nil
}

// chooseAll makes the choices of a step that has run, several at a time.
func (e *Executor) chooseAll(o *output) {
	if len(o.choices) == 0 {
		return
	}
	e.inParallel(len(o.choices), func(i int, scratch []float32) { e.chooseRow(o, o.choices[i], scratch) })
}

// inParallel calls f for each of the first n numbers, several at a time, with room
// for the logits of one place.
func (e *Executor) inParallel(n int, f func(i int, scratch []float32)) {
	workers := min(n, runtime.GOMAXPROCS(0))
	for len(e.scratch) < workers {
		e.scratch = append(e.scratch, make([]float32, 0, e.act.logits.RowLen()))
	}
	var next atomic.Int32
	work := func(w int) {
		for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
			f(i, e.scratch[w][:0])
		}
	}
	var wg sync.WaitGroup
	for w := 1; w < workers; w++ {
		wg.Go(func() { work(w) })
	}
	work(0)
	wg.Wait()
}

// chooseRow makes the choices of one row: as many as its drafts are right, and
// one more.
func (e *Executor) chooseRow(o *output, x choice, scratch []float32) {
	n := e.logitsBytes()
	o.counts[x.row] = int32(verify(real(o.plan, x.row), func(j int) scheduler.Token {
		logits := widen(scratch, o.logits.Bytes()[(x.logits+j)*n:][:n], e.act.logits.Type)
		tok := e.c.Sampler.Choose(x.id, x.n+j, logits)
		o.tokens[o.at[x.row]+j] = int32(tok)
		return tok
	}))
}

// resolve chooses the tokens that a plan takes from a step in flight whose
// logits the host reads: it waits for that step. Plans whose tokens are the
// device's are submitted without waiting.
func (e *Executor) resolve(ctx context.Context, p *scheduler.Plan) error {
	for i, id := range p.Requests {
		s := &e.seqs[id.Slot()]
		if s.chosen == nil || len(s.chosen.choices) == 0 {
			continue
		}
		for _, tok := range p.Input(i) {
			if tok == scheduler.Unknown {
				if err := e.choose(ctx, s.chosen); err != nil {
					return fmt.Errorf("the step before: %w", err)
				}
				break
			}
		}
	}
	return nil
}

// input is a token id of a row as the plan gives it or as the host has chosen
// it; scheduler.Unknown if only the device knows it.
func (s *seq) input(tok scheduler.Token) scheduler.Token {
	if tok == scheduler.Unknown && s.chosen != nil {
		return max(scheduler.Token(s.chosen.tokens[s.chosen.at[s.row]]), 0) // a request without a token ends, whatever it reads
	}
	return tok
}

// widen appends values as fp32.
func widen(dst []float32, raw []byte, typ ascendrt.DType) []float32 {
	if typ == ascendrt.BFloat16 {
		for ; len(raw) > 0; raw = raw[2:] {
			dst = append(dst, math.Float32frombits(uint32(binary.LittleEndian.Uint16(raw))<<16))
		}
		return dst
	}
	for ; len(raw) > 0; raw = raw[4:] {
		dst = append(dst, math.Float32frombits(binary.LittleEndian.Uint32(raw)))
	}
	return dst
}
