package graphs

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// steps of 1,024 rows, from the plain decode step to a hostile mixture.
func benchBatches() map[string]Rows {
	const n = 1024
	make1 := func(at func(i int) Row) Rows {
		var r Rows
		for i := range n {
			r.Append(at(i))
		}
		return r
	}
	pseudo := func(i int) int { // a fixed sequence without a pattern that a branch predictor learns
		x := uint64(i)*0x9E3779B97F4A7C15 + 0x1234567
		x ^= x >> 29
		x *= 0xBF58476D1CE4E5B9
		return int(x >> 40)
	}
	return map[string]Rows{
		"decodes": make1(func(int) Row { return decode1 }),
		"tails": make1(func(i int) Row {
			if i%32 == 7 {
				return tail1
			}
			return decode1
		}),
		"verify": make1(func(i int) Row {
			if i%32 == 7 {
				return padded4
			}
			return verify4
		}),
		"chunks": make1(func(i int) Row { // decodes first, then prefills, as schedulers lay a step out
			if i >= n-16 {
				return prefill64
			}
			return decode1
		}),
		"mixture": make1(func(i int) Row { // nothing that a branch predictor learns
			return []Row{decode1, tail1, tail2, fresh1, prefill64, midChunk1, last4, decode1}[pseudo(i)%8]
		}),
		"hostile": make1(func(i int) Row {
			return []Row{verify4, padded4, tail2, fresh1, drafted4, midChunk1, {-1, 5, 9, 0, 3}, decode1}[pseudo(i)%8]
		}),
	}
}

func benchConfig(batch string) Config {
	c := Config{MaxNumSeqs: 1024, Ladder: LadderConfig{MaxSize: 4096}}
	if batch == "verify" {
		c.K = 3
	}
	return c
}

func BenchmarkDispatch(b *testing.B) {
	for name, rows := range benchBatches() {
		b.Run(fmt.Sprintf("%s-1024", name), func(b *testing.B) {
			d := newDispatcher(b, benchConfig(name))
			v := make([]RowVerdict, rows.Len())
			b.ReportAllocs()
			timed(b, func() { d.Dispatch(rows, Step{}, v) })
		})
	}
}

// BenchmarkReadRows is the yardstick: every number of every row read once.
func BenchmarkReadRows(b *testing.B) {
	rows := benchBatches()["decodes"]
	timed(b, func() { readRows(rows) })
}

// timed also reports the processor time of f.
func timed(b *testing.B, f func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	begin := cpuTime()
	for b.Loop() {
		f()
	}
	b.ReportMetric(float64(cpuTime()-begin)/float64(b.N), "cpu-ns/op")
}

//go:noinline
func readRows(r Rows) int64 {
	n := len(r.Scheduled)
	ds, phs, cs, ps := r.Drafts[:n], r.Placeholders[:n], r.Computed[:n], r.Prefill[:n]
	var sum int64
	for i, s := range r.Scheduled {
		sum += int64(s) + int64(ds[i]) + int64(phs[i]) + int64(cs[i]) + int64(ps[i])
	}
	return sum
}

func TestDispatchAllocatesNothing(t *testing.T) {
	for name, rows := range benchBatches() {
		d := newDispatcher(t, benchConfig(name))
		v := make([]RowVerdict, rows.Len())
		c := NewCounters(d)
		require.Zero(t, testing.AllocsPerRun(100, func() {
			c.Observe(d.Dispatch(rows, Step{}, v))
		}), name)
	}
}
