package host

import (
	"fmt"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/internal/base"
)

// node is one decoded and checked command.
type node struct {
	kind   ascendrt.Kind
	index  int
	what   string
	run    func(*scratch) error // copy, fill, op
	event  *eventState          // record, wait
	stream *stream              // stream switch, wait for a point
	seq    uint64
	graph  *graphState
	member *communicator // of an operation between ranks

	op     *opState // what Graph.Update needs to bind the command again
	args   []ascendrt.Tensor
	slots  base.Slots
	allocs []*alloc // memory that the command names
}

// compile decodes the buffer up to its first wrong command; n is that
// command's index, the number of commands if there is none.
func (d *device) compile(c *ascendrt.Commands) (nodes []*node, n int, err error) {
	stop, wrong := c.ErrorAt()
	var slots base.Slots
	for r := range ascendrt.Records(c.Words()) {
		if wrong != nil && r.Index == stop {
			return nodes, stop, wrong
		}
		if r.Kind == ascendrt.KindSlot {
			if err := slots.Set(r); err != nil {
				return nodes, r.Index, d.Wrap(r.Kind.String(), r.Index, err)
			}
			continue
		}
		x, err := d.decode(r, slots)
		if err != nil {
			return nodes, r.Index, d.Wrap(r.Kind.String(), r.Index, err)
		}
		slots = nil
		if x != nil {
			nodes = append(nodes, x)
		}
	}
	return nodes, c.Len(), wrong
}

func (d *device) decode(r ascendrt.Record, slots base.Slots) (*node, error) {
	x := &node{kind: r.Kind, index: r.Index, what: r.Kind.String()}
	err := slots.Before(r.Kind)
	if err != nil {
		return nil, err
	}
	switch r.Kind {
	case ascendrt.KindCopy:
		var run func()
		if run, err = d.copying(x, r.A[0], r.A[1], int(r.A[2])); err != nil {
			return nil, err
		}
		x.run = func(*scratch) error { run(); return nil }
	case ascendrt.KindCopyBatch:
		runs := make([]func(), 0, r.A[0])
		for p := r.Payload; len(p) >= 4; p = p[4:] {
			run, err := d.copying(x, p[0], p[1], int(p[2]))
			if err != nil {
				return nil, err
			}
			runs = append(runs, run)
		}
		x.run = func(*scratch) error {
			for _, run := range runs {
				run()
			}
			return nil
		}
	case ascendrt.KindFill:
		b, a, err := d.resolve(ascendrt.Addr(r.A[0]), int(r.A[1]))
		if err != nil {
			return nil, err
		}
		x.name(a)
		v := byte(r.A[2])
		x.run = func(*scratch) error {
			fill(b, v)
			return nil
		}
	case ascendrt.KindOp:
		if x.op, err = base.Handle[*opState](&d.Core, r.A[0], "operation"); err != nil {
			return nil, err
		}
		x.what = "op " + string(x.op.Spec.Kind)
		x.slots = slots
		x.args = base.Tensors(nil, r)
		if err := d.bind(x); err != nil {
			return nil, err
		}
	case ascendrt.KindRecord, ascendrt.KindWaitEvent:
		if x.event, err = base.Handle[*eventState](&d.Core, r.A[0], "event"); err != nil {
			return nil, err
		}
	case ascendrt.KindWaitPoint:
		if r.A[0] == 0 {
			return nil, nil
		}
		if x.stream, err = base.Handle[*stream](&d.Core, r.A[0], "stream of the point"); err != nil {
			return nil, err
		}
		if x.seq = r.A[1]; x.seq > x.stream.seq.Load() {
			return nil, fmt.Errorf("the point was never submitted: %w", ascendrt.ErrInvalid)
		}
	case ascendrt.KindStream:
		if x.stream, err = base.Handle[*stream](&d.Core, r.A[0], "stream"); err != nil {
			return nil, err
		}
	case ascendrt.KindGraph:
		if x.graph, err = base.Handle[*graphState](&d.Core, r.A[0], "graph"); err != nil {
			return nil, err
		}
	case ascendrt.KindReduce, ascendrt.KindGatherAll, ascendrt.KindAllToAll:
		if err := d.collective(x, r); err != nil {
			return nil, err
		}
	default:
		return nil, fmt.Errorf("the host backend has no such command: %w", ascendrt.ErrUnsupported)
	}
	return x, nil
}

// fill doubles what is filled, so that nearly all of it is a block copy.
func fill(b []byte, v byte) {
	if v == 0 || len(b) == 0 {
		clear(b)
		return
	}
	b[0] = v
	for n := 1; n < len(b); n *= 2 {
		copy(b[n:], b[:n])
	}
}

func (x *node) name(a *alloc) {
	if a != nil {
		x.allocs = append(x.allocs, a)
	}
}

func (d *device) copying(x *node, dst, src uint64, n int) (func(), error) {
	to, da, err := d.resolve(ascendrt.Addr(dst), n)
	if err != nil {
		return nil, fmt.Errorf("destination: %w", err)
	}
	from, sa, err := d.resolve(ascendrt.Addr(src), n)
	if err != nil {
		return nil, fmt.Errorf("source: %w", err)
	}
	if n > 0 && dst < src+uint64(n) && src < dst+uint64(n) {
		return nil, fmt.Errorf("source and destination overlap: %w", ascendrt.ErrInvalid)
	}
	x.name(da)
	x.name(sa)
	return func() { copy(to, from) }, nil
}

// items appends what a stream does for the command; marks are taken now, so
// the caller holds the locks of the streams.
func (x *node) items(q []item) []item {
	switch x.kind {
	case ascendrt.KindRecord:
		return append(q, item{reach: x.event.record()})
	case ascendrt.KindWaitEvent:
		if m := x.event.latest(); m != nil {
			return append(q, item{wait: m})
		}
		return q
	case ascendrt.KindWaitPoint:
		return append(q, item{other: x.stream, seq: x.seq})
	case ascendrt.KindGraph:
		return x.graph.launch(q)
	}
	if x.member != nil {
		x.member.submit()
	}
	return append(q, item{run: x.run, index: x.index, what: x.what})
}
