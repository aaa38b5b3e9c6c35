package scheduler_test

import (
	"fmt"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sluice-serving/sluice/graphs"
	"github.com/sluice-serving/sluice/kvcache"
	"github.com/sluice-serving/sluice/scheduler"
)

// cpu is the processor time of this process so far: on a machine that others
// use, too, it says more than the clock on the wall.
func cpu(tb testing.TB) time.Duration {
	var u syscall.Rusage
	require.NoError(tb, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// steady is a scheduler with n requests that decode: prompts of 512 to 527
// tokens that differ from the first token on, block size 16, nothing evicted.
type steady struct {
	s    *scheduler.Scheduler
	res  scheduler.Result
	now  scheduler.Time
	name int
}

const steadyOutput = 4096

func newSteady(tb testing.TB, n int, opts ...scheduler.Option) *steady {
	const blockSize = 16
	cache, err := kvcache.New(kvcache.Config{Blocks: n*(527+steadyOutput+blockSize)/blockSize + 2, BlockSize: blockSize})
	require.NoError(tb, err)
	s, err := scheduler.New(scheduler.Config{MaxNumSeqs: n, MaxBatchedTokens: max(8192, n), MaxModelLen: 527 + steadyOutput}, cache, opts...)
	require.NoError(tb, err)
	st := &steady{s: s, res: scheduler.Result{Tokens: make([]scheduler.Token, 0, n)}}
	for range n {
		st.add(tb)
	}
	for range 2 * n * 520 / max(8192, n) {
		st.step(tb)
	}
	st.step(tb)
	runtime.GC() // of the set-up, which would run into what is measured
	return st
}

func (st *steady) add(tb testing.TB) {
	prompt := make([]scheduler.Token, 512+st.name%16, 527+steadyOutput)
	for i := range prompt {
		prompt[i] = scheduler.Token((st.name*7919 + i*31 + 1) % 30000)
	}
	prompt[0] = scheduler.Token(st.name)
	st.name++
	_, err := st.s.Add(scheduler.Request{ID: fmt.Sprint("r", st.name), Prompt: prompt, MaxTokens: steadyOutput})
	require.NoError(tb, err)
}

func (st *steady) step(tb testing.TB) *scheduler.Plan {
	st.now++
	p := st.s.Plan(st.now)
	st.res.Tokens = st.res.Tokens[:0]
	for i, yields := range p.Samples {
		if yields == 1 {
			st.res.Tokens = append(st.res.Tokens, scheduler.Token(100+(int(p.Seq)+i)%1000))
		}
	}
	if _, err := st.s.Apply(p, st.res); err != nil {
		tb.Fatal(err)
	}
	return p
}

// BenchmarkDecode is one Plan and its Apply with everything decoding.
func BenchmarkDecode(b *testing.B) {
	for _, n := range []int{64, 256, 1024} {
		for _, with := range []string{"", "/graphs"} {
			b.Run(fmt.Sprintf("rows=%d%s", n, with), func(b *testing.B) {
				var opts []scheduler.Option
				if with != "" {
					d, err := graphs.New(graphs.Config{MaxNumSeqs: n, MaxNumBatchedTokens: max(8192, n)})
					require.NoError(b, err)
					d.SetCaptureState(graphs.AllCaptured)
					opts = append(opts, scheduler.WithGraphs(d))
				}
				st := newSteady(b, n, opts...)
				b.ReportAllocs()
				steps := 0
				var used time.Duration
				begun := cpu(b)
				for b.Loop() {
					if steps++; steps == steadyOutput-256 { // the first of them decoded while the last were set up
						b.StopTimer()
						used += cpu(b) - begun
						st, steps = newSteady(b, n, opts...), 0
						begun = cpu(b)
						b.StartTimer()
					}
					p := st.step(b)
					if p.Rows() != n {
						b.Fatalf("%d rows", p.Rows())
					}
				}
				used += cpu(b) - begun
				b.ReportMetric(float64(used.Nanoseconds())/float64(b.N), "cpu-ns/op")
			})
		}
	}
}

// admission is a scheduler whose cache holds one long prompt.
type admission struct {
	s      *scheduler.Scheduler
	prompt []scheduler.Token
	res    scheduler.Result
	now    scheduler.Time
}

func newAdmission(tb testing.TB, tokens int) *admission {
	const blockSize = 16
	cache, err := kvcache.New(kvcache.Config{Blocks: tokens/blockSize*2 + 64, BlockSize: blockSize})
	require.NoError(tb, err)
	s, err := scheduler.New(scheduler.Config{MaxNumSeqs: 8, MaxBatchedTokens: 8192, MaxModelLen: tokens + 64, VocabSize: 200000}, cache)
	require.NoError(tb, err)
	a := &admission{s: s, prompt: make([]scheduler.Token, tokens, tokens+1)}
	for i := range a.prompt {
		a.prompt[i] = scheduler.Token((i*7919 + 13) % 150000)
	}
	a.admit(tb)
	for a.s.HasWork() {
		a.finish(tb, a.s.Plan(a.now))
	}
	runtime.GC()
	return a
}

func (a *admission) admit(tb testing.TB) {
	if _, err := a.s.Add(scheduler.Request{ID: "r", Prompt: a.prompt, MaxTokens: 1}); err != nil {
		tb.Fatal(err)
	}
}

func (a *admission) finish(tb testing.TB, p *scheduler.Plan) {
	a.now++
	a.res.Tokens = a.res.Tokens[:0]
	for _, n := range p.Samples {
		for range n {
			a.res.Tokens = append(a.res.Tokens, 7)
		}
	}
	if _, err := a.s.Apply(p, a.res); err != nil {
		tb.Fatal(err)
	}
}

// BenchmarkAdmission is one prompt that is cached whole, from token ids to the
// plan that admits it: admit-ns/op. The rest of ns/op is the step's Apply, which
// is left out by reading the clock and not by stopping the timer, since that
// stops the world and clears the caches.
func BenchmarkAdmission(b *testing.B) {
	for _, n := range []int{8 << 10, 32 << 10, 128 << 10} {
		b.Run(fmt.Sprintf("tokens=%d", n), func(b *testing.B) {
			a := newAdmission(b, n)
			b.ReportAllocs()
			var took time.Duration
			for b.Loop() {
				begun := time.Now()
				a.admit(b)
				p := a.s.Plan(a.now)
				took += time.Since(begun)
				if p.Rows() != 1 || p.Scheduled[0] > 16 {
					b.Fatal("not cached")
				}
				a.finish(b, p)
			}
			b.ReportMetric(float64(took.Nanoseconds())/float64(b.N), "admit-ns/op")
		})
	}
}

// BenchmarkCompareIDs is the yardstick of BenchmarkAdmission: comparing the
// ids of the prompt once.
func BenchmarkCompareIDs(b *testing.B) {
	for _, n := range []int{8 << 10, 32 << 10, 128 << 10} {
		b.Run(fmt.Sprintf("tokens=%d", n), func(b *testing.B) {
			x, y := make([]scheduler.Token, n), make([]scheduler.Token, n)
			for i := range x {
				x[i], y[i] = scheduler.Token(i), scheduler.Token(i)
			}
			equal := true
			for b.Loop() {
				for i, t := range x {
					equal = equal && t == y[i]
				}
			}
			if !equal {
				b.Fatal("differs")
			}
		})
	}
}

// BenchmarkManyWaiting is a step of 256 decodes whose budget is full, with
// many requests waiting.
func BenchmarkManyWaiting(b *testing.B) {
	for _, waiting := range []int{0, 10_000} {
		b.Run(fmt.Sprintf("waiting=%d", waiting), func(b *testing.B) {
			crowd := func() *steady {
				st := newSteady(b, 256)
				for i := range waiting {
					_, err := st.s.Add(scheduler.Request{ID: fmt.Sprint("w", i), Prompt: []scheduler.Token{1, 2, 3}, MaxTokens: 4})
					require.NoError(b, err)
				}
				return st
			}
			st := crowd()
			b.ReportAllocs()
			steps := 0
			for b.Loop() {
				if steps++; steps == steadyOutput-256 { // as above
					b.StopTimer()
					st, steps = crowd(), 0
					b.StartTimer()
				}
				st.step(b)
			}
		})
	}
}
