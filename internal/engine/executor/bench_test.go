package executor

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/host"
	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/internal/engine/model"
	"github.com/sluice-serving/sluice/kvcache"
	"github.com/sluice-serving/sluice/scheduler"
)

// BenchmarkHostSide is what a decode step costs beside the device: Plan, Submit and
// Apply, without the wait, with a model that computes next to nothing. What a
// driver takes to launch a graph is not in it.
func BenchmarkHostSide(b *testing.B) {
	for _, rows := range []int{1, 8, 32, 128} {
		b.Run(fmt.Sprint(rows), func(b *testing.B) {
			dev, err := host.Backend{}.Open(0, ascendrt.OpenOptions{Workers: 1})
			require.NoError(b, err)
			defer dev.Close(b.Context())
			const length, bs = 1 << 14, 64
			blocks := rows*length/bs + 1
			c := Config{
				Model:  model.Config{Vocab: 8, Hidden: 8, Layers: 1, Heads: 1, KVHeads: 1, HeadDim: 2, FFN: 2, RopeTheta: 1e4, NormEps: 1e-6, MaxPositions: length, Tied: true},
				Blocks: blocks, BlockSize: bs, MaxSeqs: rows, MaxTokens: rows, MaxLen: length, InFlight: 2,
				Graphs: graphs.Config{Mode: graphs.ModeFullDecodeOnly, MaxNumSeqs: rows, MaxNumBatchedTokens: rows},
			}
			e, err := New(b.Context(), dev, c, model.Random{Config: c.Model})
			require.NoError(b, err)
			defer e.Close()
			cache, err := kvcache.New(kvcache.Config{Blocks: blocks, BlockSize: bs, MaxInFlight: 2 * rows})
			require.NoError(b, err)
			s, err := scheduler.New(scheduler.Config{MaxNumSeqs: rows, MaxBatchedTokens: rows, MaxModelLen: length, InFlight: 2, Scheduling: scheduler.Async}, cache, scheduler.WithGraphs(e.Dispatcher()))
			require.NoError(b, err)
			var took, plans, submits time.Duration
			var tokens []scheduler.Token
			n := 0
			type flight struct {
				p *scheduler.Plan
				s Step
			}
			var pending []flight
			submit := func() {
				t0 := time.Now()
				p := s.Plan(0)
				t1 := time.Now()
				step, err := e.Submit(b.Context(), p)
				if err != nil {
					b.Fatal(err)
				}
				plans += t1.Sub(t0)
				submits += time.Since(t1)
				pending = append(pending, flight{p, step})
			}
			settle := func() {
				f := pending[0]
				pending = append(pending[:0], pending[1:]...)
				tokens, err = f.s.Wait(b.Context(), tokens[:0])
				if err != nil {
					b.Fatal(err)
				}
				t0 := time.Now()
				if _, err := s.Apply(f.p, scheduler.Result{Tokens: tokens}); err != nil {
					b.Fatal(err)
				}
				took += time.Since(t0)
			}
			for b.Loop() {
				if !s.HasWork() {
					for i := range rows {
						_, err := s.Add(scheduler.Request{ID: fmt.Sprintf("%d-%d", n, i), Prompt: []scheduler.Token{1}, MaxTokens: length - 8})
						require.NoError(b, err)
					}
				}
				submit()
				if len(pending) == 2 {
					settle()
				}
				n++
			}
			us := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 / float64(b.N) }
			b.ReportMetric(us(plans), "plan-µs")
			b.ReportMetric(us(submits), "submit-µs")
			b.ReportMetric(us(took), "apply-µs")
			for len(pending) > 0 {
				settle()
			}
		})
	}
}
