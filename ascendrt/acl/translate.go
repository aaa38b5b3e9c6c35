//go:build cgo && linux

package acl

import (
	"cmp"
	"fmt"
	"slices"
	"sync"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/internal/base"
	"github.com/sluice-serving/sluice/ascendrt/internal/memory"
)

// translator turns the records of a buffer, with our handles and checked
// ranges, into records with the runtime's pointers, which C replays.
type translator struct {
	base.Records
	memory.Ranges
	d        *device
	streams  base.Used[*stream]
	signals  []eventPtr // by streams
	graphs   []*graphState
	events   []*eventState // named ones
	consumed []consumer
	slots    base.Slots
	args     []ascendrt.Tensor

	emission emission

	// Of a capture only.
	updatable []ascendrt.OpRef
	target    int // 1 + place in updatable of the command being translated
	opened    bool
	targets   []*target     // by updatable
	waits     []*eventState // external events that the graph consumes
	records   []*eventState // and those that it records
	nodes     int
}

var translators = sync.Pool{New: func() any { return new(translator) }}

func (t *translator) reset(d *device, s *stream, m base.Mode) {
	clear(t.slots)
	*t = translator{d: d, Records: base.Records{Words: t.Words[:0]}, Ranges: memory.Ranges{Table: &d.Table, Mode: m}, streams: t.streams, signals: t.signals[:0],
		graphs: t.graphs[:0], events: t.events[:0], consumed: t.consumed[:0], slots: t.slots[:0], args: t.args[:0], emission: emission{calls: t.emission.calls[:0]}}
	t.streams.Begin(s)
}

// aclnn appends a call of an operator with a workspace. The calls of an
// updatable command stand in a task group, behind an event that its graph waits
// for.
func (t *translator) aclnn(call []uint64, ws uint64, n int, _ bool) {
	t.open()
	t.nodes++
	t.Record(recOp, len(call), ws, uint64(n))
	t.Words = append(t.Words, call...)
}

func (t *translator) open() {
	if t.target == 0 || t.opened {
		return
	}
	t.opened = true
	x := t.targets[t.target-1]
	t.Record(recWait, 0, word(x.gate))
	t.Record(recReset, 0, word(x.gate))
	t.Record(recGroupBegin, 0)
}

// translate works up to the first wrong command; n is its index, the number of
// commands if there is none.
func (t *translator) translate(c *ascendrt.Commands) (n int, err error) {
	step := t.one
	if len(t.updatable) > 0 {
		step = t.updated
	}
	n, err = t.Each(&t.d.Core, c, step)
	t.target = 0
	return n, err
}

// updated is one for a capture with updatable commands.
func (t *translator) updated(r ascendrt.Record) error {
	t.target, t.opened = 1+slices.Index(t.updatable, ascendrt.OpRef(r.Index)), false
	before := len(t.Words)
	if err := t.one(r); err != nil {
		return err
	}
	if t.opened {
		t.targets[t.target-1].record = slices.Clone(t.Words[before+3*recWords:])
		t.targets[t.target-1].live = true
		t.Record(recGroupEnd, 0, uint64(t.target-1))
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
		return t.copy(r.A[0], r.A[1], int(r.A[2]), r.A[3])
	case ascendrt.KindCopyBatch:
		return t.batch(r.Payload)
	case ascendrt.KindFill:
		if r.A[1] == 0 {
			return nil
		}
		a, err := t.Find(r.A[0], int(r.A[1]))
		if err != nil {
			return err
		}
		if a.Host {
			return fmt.Errorf("this device fills its own memory alone: %w", ascendrt.ErrUnsupported)
		}
		t.nodes++
		t.Record(recFill, 0, r.A[0], r.A[1], r.A[2], r.A[3])
	case ascendrt.KindSlot:
		return t.slots.Set(r)
	case ascendrt.KindOp:
		o, err := base.Handle[*opState](&d.Core, r.A[0], "operation")
		if err != nil {
			return err
		}
		t.args = base.Tensors(t.args[:0], r)
		ws := base.Workspace(r)
		if t.target > 0 {
			x := t.targets[t.target-1]
			x.op, x.ws, x.args, x.slots = o, ws, slices.Clone(t.args), slices.Clone(t.slots)
		}
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
		t.events = append(t.events, e)
		if e.kind == ascendrt.EventExternal {
			return t.external(e, r.Kind)
		}
		kind := uint32(recRecord)
		if r.Kind == ascendrt.KindWaitEvent {
			kind = recWait
		}
		t.Record(kind, 0, word(e.raw))
	case ascendrt.KindWaitPoint:
		return t.waitPoint(r)
	case ascendrt.KindStream:
		if err := t.streams.Switch(&d.Core, r); err != nil {
			return err
		}
		t.Record(recStream, 0, word(t.streams.Current.raw))
	case ascendrt.KindGraph:
		g, err := base.Handle[*graphState](&d.Core, r.A[0], "graph")
		if err != nil {
			return err
		}
		return t.launch(g)
	case ascendrt.KindReduce, ascendrt.KindGatherAll, ascendrt.KindAllToAll:
		return t.collective(r)
	default:
		return fmt.Errorf("the ascend backend has no such command: %w", ascendrt.ErrUnsupported)
	}
	return nil
}

// external handles an event that is a flag of the hardware: a record sets it,
// the wait behind it clears it again.
func (t *translator) external(e *eventState, kind ascendrt.Kind) error {
	switch {
	case t.Mode == base.Capturing && kind == ascendrt.KindRecord:
		t.records = append(t.records, e)
	case t.Mode == base.Capturing:
		t.waits = append(t.waits, e)
	case kind == ascendrt.KindRecord:
		if err := t.setFlag(e); err != nil {
			return err
		}
	case !e.pending.Swap(false):
		return nil // nothing was recorded since the last wait
	default:
		t.consumed = append(t.consumed, consumer{e, t.streams.Current})
	}
	if kind == ascendrt.KindRecord {
		t.Record(recRecord, 0, word(e.raw))
		return nil
	}
	t.Record(recWait, 0, word(e.raw))
	t.Record(recReset, 0, word(e.raw))
	return nil
}

// consumer is a stream that waits for an external event in this buffer.
type consumer struct {
	e *eventState
	s *stream
}

// setFlag prepares a record of an external event: it must come behind the wait
// that clears the flag of the record before it, wherever that is.
func (t *translator) setFlag(e *eventState) error {
	if e.pending.Load() {
		return fmt.Errorf("the external event's last record was not waited for: %w", ascendrt.ErrInvalid)
	}
	for _, c := range t.consumed {
		if c.e == e && c.s != t.streams.Current {
			return fmt.Errorf("the external event is recorded again while another stream of this buffer waits for it: %w", ascendrt.ErrInvalid)
		}
	}
	e.pending.Store(true)
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, p := range e.last {
		s, ok := p.Stream.(*stream)
		if !ok || s == t.streams.Current || s.done.Load() >= p.Seq {
			continue
		}
		if ev := s.pending(p.Seq); ev != nil {
			t.Record(recWait, 0, word(ev))
		}
	}
	return nil
}

// waitPoint waits for the event behind the point's submission. Should that be
// recorded again before this submission reaches the runtime, the stream waits
// for the later record, which depends on nothing of this submission.
func (t *translator) waitPoint(r ascendrt.Record) error {
	s, seq, err := base.Point(&t.d.Core, r, (*stream).submitted)
	if s == nil || err != nil {
		return err
	}
	if s == t.streams.Current || s.done.Load() >= seq {
		return nil
	}
	if ev := s.pending(seq); ev != nil {
		t.Record(recWait, 0, word(ev))
	}
	return nil
}

func (t *translator) copy(dst, src uint64, n int, room uint64) error {
	if n == 0 {
		return nil
	}
	kind, room, err := t.direction(dst, src, n, room)
	if err != nil {
		return err
	}
	t.nodes++
	t.Record(recCopy, 0, dst, src, uint64(n), uint64(kind), room)
	return nil
}

// direction gives the kind of a copy and the room behind its destination.
func (t *translator) direction(dst, src uint64, n int, room uint64) (kind uint32, left uint64, err error) {
	to, from, err := t.Ends(nil, nil, dst, src, n)
	if err != nil {
		return 0, 0, err
	}
	room = min(room, to.Room(dst))
	switch {
	case to.Host && from.Host:
		return 0, 0, fmt.Errorf("this device does not copy from host to host: use the CPU: %w", ascendrt.ErrUnsupported)
	case from.Host:
		return copyToDevice, room, nil
	case to.Host:
		return copyToHost, room, nil
	}
	return copyWithin, room, nil
}

func (t *translator) batch(p []uint64) error {
	var dst, src, size, rooms []uint64
	way := uint32(0)
	for ; len(p) >= 4; p = p[4:] {
		if p[2] == 0 {
			continue
		}
		kind, room, err := t.direction(p[0], p[1], int(p[2]), p[3])
		if err != nil {
			return err
		}
		if way != 0 && kind != way {
			return fmt.Errorf("one batch has one direction: %w", ascendrt.ErrInvalid)
		}
		way = kind
		dst, src, size, rooms = append(dst, p[0]), append(src, p[1]), append(size, p[2]), append(rooms, room)
	}
	if len(dst) == 0 {
		return nil
	}
	var direction uint64
	switch way {
	case copyToDevice:
		direction = 1
	case copyToHost:
		direction = 2
	}
	t.Record(recBatch, 4*len(dst), uint64(len(dst)), direction, uint64(t.d.info.Ordinal))
	t.Words = append(append(append(append(t.Words, dst...), src...), size...), rooms...)
	return nil
}

// raw translates a launch of a program's kernel: the arguments are 8-byte
// words, and the grid is one number of blocks.
func (t *translator) raw(r ascendrt.Record) error {
	k, err := base.Handle[*kernel](&t.d.Core, r.A[0], "kernel")
	if err != nil {
		return err
	}
	x, y, z := uint32(r.A[1]), uint32(r.A[1]>>32), uint32(r.A[2])
	if x == 0 || max(y, 1) != 1 || max(z, 1) != 1 || r.A[4] != 0 {
		return fmt.Errorf("kernel %s: a grid of %d×%d×%d blocks: this device takes X alone, and no shared memory: %w", k.name, x, y, z, ascendrt.ErrInvalid)
	}
	if t.target > 0 {
		t.targets[t.target-1].raw = true
	}
	t.open()
	t.nodes++
	t.Record(recLaunch, len(r.Payload), word(k.fn), uint64(x), 8*uint64(len(r.Payload)))
	t.Words = append(t.Words, r.Payload...)
	return nil
}

// lockGraphs holds the graphs of a submission, so that launches of one graph on
// two streams reach the runtime in one order.
func (t *translator) lockGraphs() {
	if len(t.graphs) > 1 {
		slices.SortFunc(t.graphs, func(a, b *graphState) int { return cmp.Compare(a.Ref(), b.Ref()) })
		t.graphs = slices.Compact(t.graphs)
	}
	for _, g := range t.graphs {
		g.order.Lock()
	}
}

func (t *translator) unlockGraphs() {
	for _, g := range t.graphs {
		g.order.Unlock()
	}
}
