//go:build cgo && linux

package cuda

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"unsafe"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/internal/base"
	"github.com/sluice-serving/sluice/ascendrt/internal/memory"
)

// translator turns the records of a buffer, with our handles and checked
// ranges, into records with the driver's pointers, which C replays.
type translator struct {
	base.Records
	memory.Ranges
	d       *device
	streams base.Used[*stream]
	graphs  []*graphState
	slots   base.Slots
	lists   []usedList // that kernels of this submission read
	small   copies     // of the batch in hand: those for a kernel
	large   copies     // and the others
	evenly  []evenly   // of the copy of blocks in hand

	// Of a capture only.
	updatable []ascendrt.OpRef
	nodes     []int // by updatable: 1 + place of its node's record, 0 if it has none
	args      []ascendrt.Tensor
}

var translators = sync.Pool{New: func() any { return new(translator) }}

func (t *translator) reset(d *device, s *stream, m base.Mode) {
	*t = translator{d: d, Records: base.Records{Words: t.Words[:0]}, Ranges: memory.Ranges{Table: &d.Table, Mode: m}, streams: t.streams,
		graphs: t.graphs[:0], slots: t.slots[:0], lists: t.lists[:0], small: t.small, large: t.large, evenly: t.evenly, args: t.args[:0]}
	t.streams.Begin(s)
}

// launch appends a kernel launch with 8-byte parameters.
func (t *translator) launch(k *kernel, grid [3]int, block, shared int, params ...uint64) error {
	return t.start(k, grid, block, uint64(shared), params)
}

// overlap is launch for a kernel that may start before the one ahead of it has
// ended, since it waits for that by itself.
func (t *translator) overlap(k *kernel, grid [3]int, block, shared int, params ...uint64) error {
	return t.start(k, grid, block, uint64(shared)|1<<32, params)
}

func (t *translator) start(k *kernel, grid [3]int, block int, shared uint64, params []uint64) error {
	if grid[0] <= 0 || grid[1] <= 0 || grid[2] <= 0 {
		return nil // nothing to do
	}
	if grid[0] > 1<<31-1 || grid[1] > 65535 || grid[2] > 65535 {
		return fmt.Errorf("a grid of %v blocks is larger than the device takes: %w", grid, ascendrt.ErrInvalid)
	}
	t.Record(recLaunch, len(params), word(unsafe.Pointer(k.fn)), uint64(grid[0])|uint64(grid[1])<<32,
		uint64(grid[2])|uint64(block)<<32, 1|1<<32, shared, uint64(8*len(params)))
	t.Words = append(t.Words, params...)
	return nil
}

// translate works up to the first wrong command; n is its index, the number of
// commands if there is none.
func (t *translator) translate(c *ascendrt.Commands) (n int, err error) {
	step := t.one
	if len(t.updatable) > 0 {
		step = t.updated
	}
	return t.Each(&t.d.Core, c, step)
}

// updated is one for a capture with updatable commands.
func (t *translator) updated(r ascendrt.Record) error {
	before, node := len(t.Words), slices.Index(t.updatable, ascendrt.OpRef(r.Index))
	if err := t.one(r); err != nil {
		return err
	}
	if node >= 0 && len(t.Words) > before {
		if r.Kind != ascendrt.KindOp && r.Kind != ascendrt.KindLaunch || uint32(t.Words[before]) != recLaunch {
			return errors.New("the command cannot be updated")
		}
		t.Words[before+1] |= uint64(node+1) << 32
		t.nodes[node] = before + 1
	}
	return nil
}

func (t *translator) one(r ascendrt.Record) error {
	if err := t.slots.Before(r.Kind); err != nil {
		return err
	}
	d := t.d
	switch r.Kind {
	case ascendrt.KindCopy:
		return t.copy(r.A[0], r.A[1], int(r.A[2]))
	case ascendrt.KindCopyBatch:
		return t.batch(r.Payload)
	case ascendrt.KindCopyBlocks:
		return t.blocks(r)
	case ascendrt.KindFill:
		if r.A[1] == 0 {
			return nil
		}
		if _, err := t.Find(r.A[0], int(r.A[1])); err != nil {
			return err
		}
		t.Record(recFill, 0, r.A[0], r.A[1], r.A[2])
	case ascendrt.KindSlot:
		return t.slots.Set(r)
	case ascendrt.KindOp:
		o, err := base.Handle[*opState](&d.Core, r.A[0], "operation")
		if err != nil {
			return err
		}
		t.args = base.Tensors(t.args[:0], r)
		ws := base.Workspace(r)
		err = t.op(o, ws, t.args)
		t.slots = t.slots[:0]
		return err
	case ascendrt.KindLaunch:
		return t.raw(r)
	case ascendrt.KindRecord, ascendrt.KindWaitEvent:
		e, err := base.Handle[*eventState](&d.Core, r.A[0], "event")
		if err != nil {
			return err
		}
		var flags uint64
		if t.Mode == base.Capturing && e.kind == ascendrt.EventExternal {
			flags = 1
		}
		kind := uint32(recRecord)
		if r.Kind == ascendrt.KindWaitEvent {
			kind = recWait
		}
		t.Record(kind, 0, word(unsafe.Pointer(e.raw)), flags)
	case ascendrt.KindWaitPoint:
		return t.waitPoint(r)
	case ascendrt.KindStream:
		if err := t.streams.Switch(&d.Core, r); err != nil {
			return err
		}
		t.Record(recStream, 0, word(unsafe.Pointer(t.streams.Current.raw)))
	case ascendrt.KindGraph:
		g, err := base.Handle[*graphState](&d.Core, r.A[0], "graph")
		if err != nil {
			return err
		}
		t.graphs = append(t.graphs, g)
		t.Record(recGraph, 0, word(unsafe.Pointer(g.exec)))
	case ascendrt.KindReduce, ascendrt.KindGatherAll, ascendrt.KindAllToAll:
		return t.collective(r)
	default:
		return fmt.Errorf("the cuda backend has no such command: %w", ascendrt.ErrUnsupported)
	}
	return nil
}

func (t *translator) waitPoint(r ascendrt.Record) error {
	s, seq, err := base.Point(&t.d.Core, r, (*stream).submitted)
	if s != nil && err == nil && s != t.streams.Current {
		t.Record(recWaitWord, 0, s.word, seq)
	}
	return err
}

func (t *translator) copy(dst, src uint64, n int) error {
	if n == 0 {
		return nil
	}
	to, from, err := t.Ends(nil, nil, dst, src, n)
	if err != nil {
		return err
	}
	if done, err := t.byKernel(to, from, dst, src, n); done || err != nil {
		return err
	}
	t.Record(direction(to, from), 0, dst, src, uint64(n))
	return nil
}

// direction is the driver's call for a copy.
func direction(to, from *memory.Alloc) uint32 {
	switch {
	case to.Host && from.Host:
		return recCopy
	case from.Host:
		return recHtoD
	case to.Host:
		return recDtoH
	case to.From <= memory.FromShared && from.From <= memory.FromShared:
		return recDtoD
	}
	return recCopy
}

func (t *translator) batch(p []uint64) error {
	t.small.reset()
	t.large.reset()
	var to, from *memory.Alloc
	for ; len(p) >= 4; p = p[4:] {
		if p[2] == 0 {
			continue
		}
		var err error
		to, from, err = t.Ends(to, from, p[0], p[1], int(p[2]))
		switch {
		case err != nil:
			return err
		case fits(to, from, p[0], p[1], p[2]):
			t.small.add(p)
		default:
			t.large.add(p)
		}
	}
	if done, err := t.list(&t.small); err != nil {
		return err
	} else if !done {
		t.recordBatch(&t.small)
	}
	t.recordBatch(&t.large)
	return nil
}

// recordBatch leaves copies to the copy engine.
func (t *translator) recordBatch(c *copies) {
	if n := len(c.dst); n > 0 {
		t.Record(recBatch, 3*n, uint64(n))
		t.Words = append(append(append(t.Words, c.dst...), c.src...), c.size...)
	}
}

// copies are those of a batch.
type copies struct{ dst, src, size []uint64 }

func (c *copies) reset() { c.dst, c.src, c.size = c.dst[:0], c.src[:0], c.size[:0] }

func (c *copies) add(p []uint64) {
	c.dst, c.src, c.size = append(c.dst, p[0]), append(c.src, p[1]), append(c.size, p[2])
}

// raw translates a launch of a program's kernel.
func (t *translator) raw(r ascendrt.Record) error {
	k, err := base.Handle[*kernel](&t.d.Core, r.A[0], "kernel")
	if err != nil {
		return err
	}
	if n := int(r.A[5]); k.params > 0 && n != k.params {
		return fmt.Errorf("kernel %s takes %d bytes of arguments, not %d: %w", k.name, k.params, n, ascendrt.ErrInvalid)
	}
	dims := [6]uint32{uint32(r.A[1]), uint32(r.A[1] >> 32), uint32(r.A[2]), uint32(r.A[2] >> 32), uint32(r.A[3]), uint32(r.A[3] >> 32)}
	for _, v := range dims {
		if v == 0 {
			return fmt.Errorf("kernel %s: a grid of %v: %w", k.name, dims, ascendrt.ErrInvalid)
		}
	}
	t.Record(recLaunch, len(r.Payload), word(unsafe.Pointer(k.fn)), r.A[1], r.A[2], r.A[3], r.A[4], r.A[5])
	t.Words = append(t.Words, r.Payload...)
	return nil
}
