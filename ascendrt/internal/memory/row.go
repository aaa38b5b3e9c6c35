package memory

import (
	"fmt"
	"sync/atomic"

	"github.com/sluice-serving/sluice/ascendrt"
)

// row is an allocation of the driver that several buffers share.
type row struct {
	whole *Alloc // not in the table
	left  atomic.Int32
}

// NewRow takes device memory for n buffers of the same size that lie at equal distances,
// one after the other; see ascendrt.RowAllocator.
func (t *Table) NewRow(n, bytes int, p ascendrt.Placement) ([]ascendrt.Buffer, error) {
	t.core.Reap()
	if err := t.core.Enter(); err != nil {
		return nil, err
	}
	defer t.core.Leave()
	if n < 1 || bytes < 1 || bytes > absurd || n > absurd/bytes {
		return nil, t.core.Invalid(fmt.Sprintf("alloc row(%d, %d)", n, bytes), "a number or size is below 1 or absurd", ascendrt.ErrInvalid)
	}
	stride := (bytes + Align - 1) &^ (Align - 1)
	whole, err := t.newAlloc(n*stride, false, p)
	if err != nil {
		return nil, err
	}
	r := &row{whole: whole}
	r.left.Store(int32(n))
	t.mu.Lock()
	t.drop(whole)
	allocs := make([]*Alloc, n)
	for i := range allocs {
		allocs[i] = &Alloc{Addr: whole.Addr + uint64(i*stride), Len: bytes, From: whole.From, Piece: whole.Piece, row: r, stack: whole.stack}
		t.add(allocs[i])
	}
	t.mu.Unlock()
	out := make([]ascendrt.Buffer, n)
	for i, a := range allocs {
		out[i] = t.holder(a)
	}
	return out, nil
}
