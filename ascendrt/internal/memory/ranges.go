package memory

import (
	"fmt"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/internal/base"
)

// Ranges looks up the memory that the commands of one buffer name.
type Ranges struct {
	Table  *Table
	Mode   base.Mode
	Allocs []*Alloc // of a capture: those that it names, to be held
}

// Find is that of the table.
func (x *Ranges) Find(addr uint64, n int) (*Alloc, error) {
	a, err := x.Table.Find(addr, n)
	if err == nil && x.Mode == base.Capturing {
		x.Allocs = append(x.Allocs, a)
	}
	return a, err
}

// Near is Find for one end of a batch, whose copies often follow each other in
// the same allocations; last may be nil.
func (x *Ranges) Near(last *Alloc, addr uint64, n int) (*Alloc, error) {
	if last != nil && last.Holds(addr, n) {
		return last, nil
	}
	return x.Find(addr, n)
}

// Ends looks up both sides of a copy, which may not overlap. Those of the copy
// before may be nil.
func (x *Ranges) Ends(lastTo, lastFrom *Alloc, dst, src uint64, n int) (to, from *Alloc, err error) {
	if to, err = x.Near(lastTo, dst, n); err != nil {
		return nil, nil, fmt.Errorf("destination: %w", err)
	}
	if from, err = x.Near(lastFrom, src, n); err != nil {
		return nil, nil, fmt.Errorf("source: %w", err)
	}
	if dst < src+uint64(n) && src < dst+uint64(n) {
		return nil, nil, fmt.Errorf("source and destination overlap: %w", ascendrt.ErrInvalid)
	}
	return to, from, nil
}

// Exchange looks up both sides of an operation between ranks, of which there are
// that many.
func (x *Ranges) Exchange(r ascendrt.Record, ranks int) error {
	src := int(r.A[3]) * ascendrt.DType(r.A[4]).Size()
	dst := src
	switch r.Kind {
	case ascendrt.KindGatherAll:
		dst *= ranks
	case ascendrt.KindAllToAll:
		src *= ranks
		dst *= ranks
	}
	if _, err := x.Find(r.A[1], src); err != nil {
		return fmt.Errorf("source: %w", err)
	}
	if _, err := x.Find(r.A[2], dst); err != nil {
		return fmt.Errorf("destination: %w", err)
	}
	return nil
}

// Hold keeps allocations for a graph that names them, until Drop.
func Hold(allocs []*Alloc) {
	for _, a := range allocs {
		a.graphs.Add(1)
	}
}

// Drop is the end of a graph that named the allocations, once for each.
func Drop(allocs []*Alloc) {
	for _, a := range allocs {
		a.graphs.Add(-1)
	}
}
