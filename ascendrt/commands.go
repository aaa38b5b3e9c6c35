package ascendrt

import "fmt"

// Commands is a reusable list of device work. The zero value is ready. It is
// a flat run of 64-bit words that hold no Go pointer, so a backend hands it to
// C as it is. It is not safe for concurrent use. A wrong argument is kept and
// returned by Err, Submit and Capture.
type Commands struct {
	buf  []uint64
	n    int
	err  error
	errN int // index of the command that err is about

	seen  []uint64 // blocks, as CopyBlocks checks them
	order []int32  // regions, likewise
}

// OpRef is the index of a command in its buffer; it names the command for
// Graph.Update.
type OpRef int

// Kind is the kind of a record.
type Kind uint32

// The record kinds. a is the six header words, behind the sizes; payload words
// follow the header.
const (
	KindNone       Kind = iota
	KindCopy            // a: dst addr, src addr, bytes, dst room
	KindCopyBatch       // a: count; payload: count × (dst addr, src addr, bytes, dst room)
	KindFill            // a: addr, bytes, value, room
	KindOp              // a: op, workspace addr, workspace bytes, tensor count; payload: tensors
	KindLaunch          // a: kernel, x|y<<32, z|bx<<32, by|bz<<32, shared bytes, argument bytes; payload: arguments
	KindRecord          // a: event
	KindWaitEvent       // a: event
	KindWaitPoint       // a: stream, sequence number
	KindStream          // a: stream that takes the commands behind this one
	KindGraph           // a: graph
	KindSlot            // a: slot, count; payload: values for the next op
	KindReduce          // a: communicator, src addr, dst addr, elements, type, reduction
	KindGatherAll       // a: communicator, src addr, dst addr, elements per rank, type
	KindAllToAll        // a: communicator, src addr, dst addr, elements per pair, type
	KindCopyBlocks      // a: regions, pairs, copy by, width, greatest dst block, greatest src block; payload: regions, dst block | src block<<32
)

// String names the kind.
func (k Kind) String() string {
	names := [...]string{"none", "copy", "copy batch", "fill", "op", "launch", "record", "wait event", "wait point",
		"stream", "graph", "slot", "all-reduce", "all-gather", "all-to-all", "copy blocks"}
	if int(k) < len(names) {
		return names[k]
	}
	return fmt.Sprintf("kind %d", uint32(k))
}

// HeaderWords is the length of a record's header: one word with the kind in
// the lower and the number of payload words in the upper half, then six.
const HeaderWords = 7

// TensorWords is the length of a tensor in a payload: address, view bytes,
// type | rank<<8, four dimensions, row stride.
const TensorWords = 8

// Reset empties the buffer and keeps its memory.
func (c *Commands) Reset() { c.buf, c.n, c.err, c.errN = c.buf[:0], 0, nil, 0 }

// Len is the number of commands.
func (c *Commands) Len() int { return c.n }

// Err is the first wrong argument, nil if there is none.
func (c *Commands) Err() error { return c.err }

// Words is the encoded buffer, valid until the next call.
func (c *Commands) Words() []uint64 { return c.buf }

func (c *Commands) fail(what, text string) {
	if c.err == nil {
		c.errN = c.n
		c.err = &Error{Backend: "commands", Call: what, Text: text, Command: c.n, Class: ErrInvalid}
	}
}

func (c *Commands) record(k Kind, payload int, a0, a1, a2, a3, a4, a5 uint64) OpRef {
	c.buf = append(c.buf, uint64(k)|uint64(payload)<<32, a0, a1, a2, a3, a4, a5)
	c.n++
	return OpRef(c.n - 1)
}

// Copy moves src.Len bytes from src to the start of dst; each side is device
// memory or pinned host memory.
func (c *Commands) Copy(dst, src View) OpRef {
	c.checkCopy(dst, src)
	return c.record(KindCopy, 0, uint64(dst.Addr), uint64(src.Addr), uint64(max(0, src.Len)), uint64(max(0, dst.Max)), 0, 0)
}

func (c *Commands) checkCopy(dst, src View) {
	switch {
	case !src.Valid():
		c.fail("copy", "the source leaves its buffer")
	case !dst.Valid():
		c.fail("copy", "the destination leaves its buffer")
	case src.Len > dst.Len:
		c.fail("copy", fmt.Sprintf("%d bytes do not fit into %d", src.Len, dst.Len))
	}
}

// CopyBatch is Copy of each pair, in no stated order among the pairs. One
// batch has one direction. Illegal under capture.
func (c *Commands) CopyBatch(dst, src []View) OpRef {
	if len(dst) != len(src) {
		c.fail("copy batch", fmt.Sprintf("%d destinations for %d sources", len(dst), len(src)))
	}
	n := min(len(dst), len(src))
	ref := c.record(KindCopyBatch, 4*n, uint64(n), 0, 0, 0, 0, 0)
	c.n-- // errors of a pair are errors of this command
	for i := range n {
		c.checkCopy(dst[i], src[i])
		c.buf = append(c.buf, uint64(dst[i].Addr), uint64(src[i].Addr), uint64(max(0, src[i].Len)), uint64(max(0, dst[i].Max)))
	}
	c.n++
	return ref
}

// Fill sets every byte of dst to b.
func (c *Commands) Fill(dst View, b byte) OpRef {
	if !dst.Valid() {
		c.fail("fill", "the destination leaves its buffer")
	}
	return c.record(KindFill, 0, uint64(dst.Addr), uint64(max(0, dst.Len)), uint64(b), uint64(max(0, dst.Max)), 0, 0)
}

// Op runs a planned operation. The workspace has at least Op.Workspace bytes
// (the zero View if it needs none); the arguments are those of its kind.
func (c *Commands) Op(o Op, workspace View, args ...Tensor) OpRef {
	if o == nil {
		c.fail("op", "nil operation")
		return c.record(KindOp, 0, 0, 0, 0, 0, 0, 0)
	}
	if !workspace.Valid() {
		c.fail("op", "the workspace leaves its buffer")
	}
	ref := c.record(KindOp, TensorWords*len(args), uint64(o.Ref()), uint64(workspace.Addr), uint64(max(0, workspace.Len)), uint64(len(args)), 0, 0)
	c.n--
	for i := range args {
		t := &args[i]
		b := t.Bytes()
		switch {
		case b < 0:
			c.fail("op", fmt.Sprintf("argument %d has an invalid shape or type", i))
		case !t.View.Valid() || b > t.Len:
			c.fail("op", fmt.Sprintf("argument %d leaves its buffer: %d bytes in a view of %d", i, b, t.Len))
		}
		c.buf = append(c.buf, uint64(t.Addr), uint64(max(0, t.Len)), uint64(t.Type)|uint64(max(0, t.Rank))<<8,
			uint64(t.Dim[0]), uint64(t.Dim[1]), uint64(t.Dim[2]), uint64(t.Dim[3]), uint64(t.RowStride))
	}
	c.n++
	return ref
}

// Launch runs a raw kernel. args is its parameter block in the kernel's own
// layout, copied; Ascend wants 8-byte words.
func (c *Commands) Launch(k Kernel, g Grid, args []byte) OpRef {
	var ref Ref
	if k == nil {
		c.fail("launch", "nil kernel")
	} else {
		ref = k.Ref()
	}
	words := (len(args) + 7) / 8
	r := c.record(KindLaunch, words, uint64(ref), uint64(g.X)|uint64(g.Y)<<32, uint64(g.Z)|uint64(g.BX)<<32,
		uint64(g.BY)|uint64(g.BZ)<<32, uint64(g.SharedBytes), uint64(len(args)))
	for len(args) > 0 {
		var w uint64
		n := min(8, len(args))
		for i := n - 1; i >= 0; i-- {
			w = w<<8 | uint64(args[i])
		}
		c.buf = append(c.buf, w)
		args = args[n:]
	}
	return r
}

// Record marks the position in the current stream.
func (c *Commands) Record(e Event) OpRef {
	var ref Ref
	if e == nil {
		c.fail("record", "nil event")
	} else {
		ref = e.Ref()
	}
	return c.record(KindRecord, 0, uint64(ref), 0, 0, 0, 0, 0)
}

// WaitEvent holds the current stream until the event's latest record is reached.
func (c *Commands) WaitEvent(e Event) OpRef {
	var ref Ref
	if e == nil {
		c.fail("wait event", "nil event")
	} else {
		ref = e.Ref()
	}
	return c.record(KindWaitEvent, 0, uint64(ref), 0, 0, 0, 0, 0)
}

// WaitPoint holds the current stream until the point has passed. The zero
// Point holds nobody. Illegal under capture.
func (c *Commands) WaitPoint(p Point) OpRef {
	var ref Ref
	if p.Stream != nil {
		ref = p.Stream.Ref()
	}
	return c.record(KindWaitPoint, 0, uint64(ref), p.Seq, 0, 0, 0, 0)
}

// OnStream sends the following commands to s. Order against the stream before
// is made by events. In a capture s must first wait for an event that the
// capture recorded, and must be joined the same way before the end.
func (c *Commands) OnStream(s Stream) OpRef {
	var ref Ref
	if s == nil {
		c.fail("on stream", "nil stream")
	} else {
		ref = s.Ref()
	}
	return c.record(KindStream, 0, uint64(ref), 0, 0, 0, 0, 0)
}

// Graph launches a captured graph. Illegal under capture.
func (c *Commands) Graph(g Graph) OpRef {
	var ref Ref
	if g == nil {
		c.fail("graph", "nil graph")
	} else {
		ref = g.Ref()
	}
	return c.record(KindGraph, 0, uint64(ref), 0, 0, 0, 0, 0)
}

// SlotValues gives host values to a slot of the next Op, e.g. the lengths of
// OpAttention where Caps.HostLengths asks for them.
func (c *Commands) SlotValues(slot int, values ...int64) OpRef {
	if slot < 0 {
		c.fail("slot", "negative slot")
	}
	r := c.record(KindSlot, len(values), uint64(slot), uint64(len(values)), 0, 0, 0, 0)
	for _, v := range values {
		c.buf = append(c.buf, uint64(v))
	}
	return r
}

// AllReduce combines src of all ranks into dst of each.
func (c *Commands) AllReduce(m Communicator, dst, src Tensor, r Reduce) OpRef {
	c.checkCollective(m, "all-reduce", dst, src, 1)
	return c.collective(KindReduce, m, dst, src, uint64(r))
}

// AllGather puts src of all ranks into dst of each, in the order of ranks.
func (c *Commands) AllGather(m Communicator, dst, src Tensor) OpRef {
	c.checkCollective(m, "all-gather", dst, src, 0)
	return c.collective(KindGatherAll, m, dst, src, 0)
}

// AllToAll sends the i-th part of src to rank i and puts the part received
// from rank i into the i-th part of dst.
func (c *Commands) AllToAll(m Communicator, dst, src Tensor) OpRef {
	c.checkCollective(m, "all-to-all", dst, src, 1)
	return c.collective(KindAllToAll, m, dst, src, 0)
}

func (c *Commands) checkCollective(m Communicator, what string, dst, src Tensor, times int) {
	if m == nil {
		c.fail(what, "nil communicator")
		return
	}
	if times == 0 {
		times = m.Size()
	}
	s, d := src.Bytes(), dst.Bytes()
	switch {
	case s < 0 || d < 0 || !src.Valid() || !dst.Valid() || s > src.Len || d > dst.Len:
		c.fail(what, "a tensor leaves its buffer or has an invalid shape")
	case src.Type != dst.Type:
		c.fail(what, "source and destination differ in type")
	case d != s*times:
		c.fail(what, fmt.Sprintf("the destination has %d bytes, not %d", d, s*times))
	}
}

func (c *Commands) collective(k Kind, m Communicator, dst, src Tensor, r uint64) OpRef {
	if m == nil {
		return c.record(k, 0, 0, 0, 0, 0, 0, 0)
	}
	n := 0
	if s := src.Type.Size(); s > 0 {
		n = max(0, src.Bytes()) / s
	}
	if k == KindAllToAll && m.Size() > 0 {
		n /= m.Size()
	}
	return c.record(k, 0, uint64(m.Ref()), uint64(src.Addr), uint64(dst.Addr), uint64(n), uint64(src.Type), r)
}
