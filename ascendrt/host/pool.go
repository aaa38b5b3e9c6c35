package host

import (
	"sync"
	"sync/atomic"
)

// scratch is float32 working memory of one goroutine, grown as needed.
type scratch struct{ bufs [8][]float32 }

// f gives slot i with n elements, content undefined.
func (s *scratch) f(i, n int) []float32 {
	if cap(s.bufs[i]) < n {
		s.bufs[i] = make([]float32, n+n/4)
	}
	return s.bufs[i][:n]
}

// pool splits operations over goroutines. Results do not depend on the split:
// each item writes outputs of its own.
type pool struct {
	jobs chan *job
	n    int // goroutines beside the caller
	wg   sync.WaitGroup
}

type job struct {
	fn    func(s *scratch, i int)
	n     int64
	next  atomic.Int64
	left  atomic.Int64
	ready chan struct{}
}

func newPool(workers int) *pool {
	p := &pool{jobs: make(chan *job, 4*workers), n: workers - 1}
	for range p.n {
		p.wg.Go(func() {
			var s scratch
			for j := range p.jobs {
				j.work(&s)
			}
		})
	}
	return p
}

func (j *job) work(s *scratch) {
	for {
		i := j.next.Add(1) - 1
		if i >= j.n {
			return
		}
		j.fn(s, int(i))
		if j.left.Add(-1) == 0 {
			close(j.ready)
		}
	}
}

// run calls fn for every i below n; s is the caller's scratch. Serial asks for
// no help, when the work is too small to share.
func (p *pool) run(s *scratch, n int, size workSize, fn func(s *scratch, i int)) {
	if n <= 1 || p.n == 0 || size == small {
		for i := range n {
			fn(s, i)
		}
		return
	}
	j := &job{fn: fn, n: int64(n), ready: make(chan struct{})}
	j.left.Store(int64(n))
	for range min(p.n, n-1) {
		select {
		case p.jobs <- j:
		default: // the helpers are busy
		}
	}
	j.work(s)
	<-j.ready
}

// workSize says whether an operation is worth splitting.
type workSize uint8

const (
	small workSize = iota
	large
)

// sized classifies an operation by its number of multiplications: below about
// 10 µs of work the wake-up costs more than it saves.
func sized(macs int) workSize {
	if macs < 1<<18 {
		return small
	}
	return large
}

func (p *pool) close() {
	close(p.jobs)
	p.wg.Wait()
}
