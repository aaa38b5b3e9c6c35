package offload

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-serving/sluice/ascendrt"
)

// Way says how a DeviceMover copies on a device that takes blocks as they are named
// (Caps.BlockCopy). Others copy pieces.
type Way uint8

const (
	// Auto goes by what the device does: while it is busy (DeviceOptions.Busy) as Engine,
	// which leaves the compute units to the steps; else as Staged, which moves more.
	Auto Way = iota
	// Staged gathers blocks on the device; they cross as runs, by the copy engines. Blocks
	// of few pieces, or of pieces from 256 KiB on, are left to the copy engines as they are.
	Staged
	// Direct lets a few of the compute units copy between the blocks and the host.
	Direct
	// Engine leaves every piece to the copy engines.
	Engine
	// Pieces is Staged by lists of pieces, as on devices that take no blocks.
	Pieces
)

var ways = [...]string{"auto", "staged", "direct", "engine", "pieces"}

// String names the way.
func (w Way) String() string {
	if int(w) < len(ways) {
		return ways[w]
	}
	return fmt.Sprintf("Way(%d)", uint8(w))
}

// ParseWay reads the name of a way; empty is Auto.
func ParseWay(s string) (Way, error) {
	if s == "" {
		return Auto, nil
	}
	for i, name := range ways {
		if s == name {
			return Way(i), nil
		}
	}
	return Auto, fmt.Errorf("offload: %q is no way to copy; there are %s", s, strings.Join(ways[:], ", "))
}

// DeviceOptions are choices about the copies. Zero values are the defaults.
type DeviceOptions struct {
	Way     Way
	Width   int // groups of threads that gather, or copy directly, at a time; default 32, directly 8
	Stage   int // bytes that are prepared and submitted at a time; default 8 MiB
	Stages  int // of a direction: fillings that are gathered, or cross, beside each other; default 3
	Streams int // of a direction, on which the copy engines take turns; default 2 to the host and 1 from it
	Run     int // bytes that cross as one copy at most, so that a step's own copies get in between; default 512 KiB

	// Busy reports whether steps run on the device. Auto asks it before each filling, on
	// any goroutine; nil is never.
	Busy func() bool
}

func (o DeviceOptions) withDefaults() DeviceOptions {
	set := func(v *int, n int) {
		if *v <= 0 {
			*v = n
		}
	}
	if o.Way == Direct {
		set(&o.Width, 8) // enough for the bus
	}
	set(&o.Width, 32)
	set(&o.Stage, 8<<20)
	set(&o.Stages, 3)
	set(&o.Run, 512<<10)
	return o
}

// DeviceMover copies by the device, on streams of its own between its memory and
// pinned host memory, so that copies overlap the engine's steps.
type DeviceMover struct {
	dev     ascendrt.Device
	how     DeviceOptions
	blocks  bool // the device takes blocks as they are named
	regions []ascendrt.Buffer
	host    ascendrt.HostBuffer
	lanes   [2]lane

	prepared atomic.Int64 // ns
}

// lane is one direction. One batch at a time is built.
type lane struct {
	load   bool // to the device
	bus    []ascendrt.Stream
	units  ascendrt.Stream // of what is gathered or scattered; nil without stages
	stages []stage

	mu        sync.Mutex
	cond      *sync.Cond
	urgent    int // calls that the others wait for between two fillings
	turn      int // of streams and stages: fillings so far
	cmd       ascendrt.Commands
	areas     []ascendrt.BlockRegion
	ids       []int32         // 0, 1, 2, …
	near, far []ascendrt.View // of a batch: on the device, on the host
	pieces    []ascendrt.View // on the device, of a list
	rows      []ascendrt.View // and in the stage
	list      []move
}

var _ Mover = (*DeviceMover)(nil)

// NewDeviceMover opens the streams. regions are the buffers of the regions
// that the worker is given, in that order. The engine's stream must have
// computed what is saved, and must wait for what is loaded; both follow from
// the contract: only KV of applied steps is saved, and no step reads a load
// before it was received.
func NewDeviceMover(dev ascendrt.Device, regions []ascendrt.Buffer, o DeviceOptions) (*DeviceMover, error) {
	if o.Way > Pieces {
		return nil, fmt.Errorf("offload: %v is no way to copy", o.Way)
	}
	caps := dev.Caps()
	m := &DeviceMover{dev: dev, how: o.withDefaults(), blocks: caps.BlockCopy && o.Way != Pieces, regions: regions}
	for i, role := range []string{"offload save", "offload load"} {
		l := &m.lanes[i]
		l.load = i == 1
		l.cond = sync.NewCond(&l.mu)
		if err := m.open(l, role, caps.ListCopy && o.Way != Direct && o.Way != Engine); err != nil {
			return nil, errors.Join(fmt.Errorf("%s stream: %w", role, err), m.Close())
		}
	}
	return m, nil
}

// open makes a lane's streams and stages. Without memory for a stage it has none.
func (m *DeviceMover) open(l *lane, role string, staged bool) error {
	streams := m.how.Streams
	if streams <= 0 {
		streams = 2
		if l.load {
			streams = 1 // faster, see docs/measurements/connector.md
		}
	}
	for range streams {
		s, err := m.dev.NewStream(ascendrt.StreamOptions{Role: role})
		if err != nil {
			return err
		}
		l.bus = append(l.bus, s)
	}
	for len(l.stages) < m.how.Stages && staged {
		var s stage
		var err error
		if s.memory, err = m.dev.Alloc(m.how.Stage, ascendrt.PlaceDefault); err != nil {
			break
		}
		l.stages = append(l.stages, s)
	}
	if len(l.stages) == 0 {
		return nil
	}
	for i := range l.stages {
		for _, e := range []*ascendrt.Event{&l.stages[i].full, &l.stages[i].free} {
			var err error
			if *e, err = m.dev.NewEvent(ascendrt.EventOrder); err != nil {
				return err
			}
		}
	}
	var err error
	l.units, err = m.dev.NewStream(ascendrt.StreamOptions{Role: role})
	return err
}

// Alloc pins the memory.
func (m *DeviceMover) Alloc(bytes int64) ([]byte, error) {
	h, err := m.dev.AllocHost(int(bytes))
	if err != nil {
		return nil, err
	}
	m.host = h
	return h.Bytes(), nil
}

// Save copies to the host.
func (m *DeviceMover) Save(ctx context.Context, c Copies) error {
	return m.copy(ctx, &m.lanes[0], c)
}

// Load copies to the device.
func (m *DeviceMover) Load(ctx context.Context, c Copies) error {
	return m.copy(ctx, &m.lanes[1], c)
}

// ahead is how many fillings a call submits before it waits for the first of them. To
// notice an end takes longer than one filling takes to cross.
const ahead = 4

// copy submits filling by filling, a few ahead of the device: another call gets its
// turn between two of them, and an urgent one all turns. It waits until the device has
// done what was submitted, also when ctx ends before or not all could be: a copy cannot
// be taken back.
func (m *DeviceMover) copy(ctx context.Context, l *lane, c Copies) error {
	bytes := c.bytes()
	if len(c.Blocks) != len(c.Slots) {
		return fmt.Errorf("offload: %d blocks for %d slots", len(c.Blocks), len(c.Slots))
	}
	if bytes == 0 {
		return nil
	}
	for _, p := range c.Parts {
		if p.Region < 0 || p.Region >= len(m.regions) {
			return fmt.Errorf("offload: region %d of %d", p.Region, len(m.regions))
		}
	}
	if c.Urgent {
		l.hurry(1)
		defer l.hurry(-1)
	}
	var points [ahead]ascendrt.Point // of the last fillings
	var err error
	n := max(1, m.how.Stage/bytes)
	for first := 0; first < len(c.Blocks) && err == nil; first += n {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
			break
		}
		if err = points[0].Wait(context.WithoutCancel(ctx)); err != nil {
			break
		}
		var p ascendrt.Point
		p, err = m.submit(l, c.sub(first, min(first+n, len(c.Blocks))), bytes)
		copy(points[:], points[1:])
		points[ahead-1] = p
	}
	for _, p := range points {
		err = errors.Join(err, p.Wait(context.WithoutCancel(ctx)))
	}
	return err
}

// hurry counts urgent calls.
func (l *lane) hurry(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.urgent += n
	l.cond.Broadcast()
}

// Prepared is how long copies were prepared and submitted so far, in both directions.
func (m *DeviceMover) Prepared() time.Duration { return time.Duration(m.prepared.Load()) }

// submit gives the point behind one filling.
func (m *DeviceMover) submit(l *lane, c Copies, bytes int) (ascendrt.Point, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.urgent > 0 && !c.Urgent {
		l.cond.Wait()
	}
	begin := time.Now()
	defer func() { m.prepared.Add(int64(time.Since(begin))) }()
	bus := l.bus[l.turn%len(l.bus)]
	last := bus // on which the filling ends
	way := m.how.way()
	l.cmd.Reset()
	switch {
	case len(l.stages) > 0 && bytes <= m.how.Stage && way != Engine && gathers(c, bytes):
		st := &l.stages[l.turn%len(l.stages)]
		if l.load {
			last = l.units
		}
		if m.blocks {
			m.staged(l, st, bus, c, bytes)
		} else {
			m.stagedPieces(l, st, bus, c)
		}
	case m.blocks:
		by := ascendrt.CopyByEngine
		if way == Direct {
			by = ascendrt.CopyByUnits
		}
		m.straight(l, c, by)
	default:
		m.pieces(l, c)
	}
	l.turn++
	if err := l.cmd.Err(); err != nil {
		return ascendrt.Point{}, err
	}
	p, _, err := last.Submit(&l.cmd) // with an error too the point is behind what was accepted, be it part of a command
	return p, err
}

// way is how the next filling goes.
func (o DeviceOptions) way() Way {
	switch {
	case o.Way != Auto:
		return o.Way
	case o.Busy != nil && o.Busy():
		return Engine
	}
	return Staged
}

// straight appends copies between the blocks and the host.
func (m *DeviceMover) straight(l *lane, c Copies, by ascendrt.CopyBy) {
	l.areas = l.areas[:0]
	host := m.host.View()
	for _, p := range c.Parts {
		l.area(m.regions[p.Region].View(), p.Bytes, p.Bytes, host.Slice(int(p.Offset), host.Len-int(p.Offset)), int(c.SlotBytes))
	}
	l.copyBlocks(c.Blocks, c.Slots, by, m.how.Width)
}

// area appends a region whose blocks lie on the device and in what is on its other side.
func (l *lane) area(device ascendrt.View, bytes, stride int, other ascendrt.View, otherStride int) {
	r := ascendrt.BlockRegion{Dst: other, Src: device, DstStride: otherStride, SrcStride: stride, Bytes: bytes}
	if l.load {
		r.Dst, r.Src, r.DstStride, r.SrcStride = r.Src, r.Dst, r.SrcStride, r.DstStride
	}
	l.areas = append(l.areas, r)
}

// copyBlocks appends the copies of the areas, in the lane's direction.
func (l *lane) copyBlocks(blocks, other []int32, by ascendrt.CopyBy, width int) {
	b := ascendrt.BlockCopy{Regions: l.areas, Dst: other, Src: blocks, By: by, Width: width}
	if l.load {
		b.Dst, b.Src = b.Src, b.Dst
	}
	l.cmd.CopyBlocks(&b)
}

// copyAll appends one batch in the lane's direction: from the device to the host,
// or back.
func (l *lane) copyAll(device, host []ascendrt.View) {
	if l.load {
		l.cmd.CopyBatch(device, host)
	} else {
		l.cmd.CopyBatch(host, device)
	}
}

// pieces copies each move by itself.
func (m *DeviceMover) pieces(l *lane, c Copies) {
	l.near, l.far = l.near[:0], l.far[:0]
	for v := range c.moves {
		l.near = append(l.near, m.regions[v.region].Slice(int(v.offset), v.bytes))
		l.far = append(l.far, m.host.Slice(int(v.host), v.bytes))
	}
	l.copyAll(l.near, l.far)
}

// Close closes the streams and frees the memory.
func (m *DeviceMover) Close() error {
	var errs []error
	for i := range m.lanes {
		l := &m.lanes[i]
		for _, s := range append(l.bus, l.units) {
			if s != nil {
				errs = append(errs, s.Close())
			}
		}
		for _, s := range l.stages {
			for _, e := range []ascendrt.Event{s.full, s.free} {
				if e != nil {
					errs = append(errs, e.Close())
				}
			}
			errs = append(errs, s.memory.FreeAfter(ascendrt.Point{}))
		}
		l.bus, l.units, l.stages = nil, nil, nil
	}
	if m.host != nil {
		errs = append(errs, m.host.FreeAfter(ascendrt.Point{}))
		m.host = nil
	}
	return errors.Join(errs...)
}
