package executor

import (
	"fmt"
	"time"
)

// Report says what an executor took of its device, in bytes, and how long the
// capture of its graphs took.
type Report struct {
	Weights     int
	Activations int // of one step of the largest shape
	Inputs      int // token ids, block tables and the cells of sampled tokens
	KV          int // Blocks blocks
	Graphs      int // what the runtime and the segments of captured graphs hold; 0 where it does not tell
	Free        uint64
	Total       uint64

	Blocks   int // of the KV pool, the null block included
	Captured int // keys that have graphs
	Keys     int // keys of the dispatcher
	Capture  time.Duration
}

// Report is the one of New.
func (e *Executor) Report() Report { return e.report }

// stage is what has been allocated since the last call.
func (e *Executor) stage() int {
	before := e.booked
	e.booked = e.dev.Live().Bytes
	return e.booked - before
}

// capture captures the graphs and books what they take.
func (e *Executor) capture(run func() error) error {
	r := &e.report
	before, _, err := e.dev.MemInfo()
	if err != nil {
		return fmt.Errorf("free memory of the device: %w", err)
	}
	begin := time.Now()
	if err := run(); err != nil {
		return err
	}
	r.Capture, r.Captured, r.Keys = time.Since(begin), e.set.Captured(), len(e.dispatch.Keys())
	if r.Free, r.Total, err = e.dev.MemInfo(); err != nil {
		return fmt.Errorf("free memory of the device: %w", err)
	}
	r.Graphs = int(before - min(before, r.Free))
	return nil
}
