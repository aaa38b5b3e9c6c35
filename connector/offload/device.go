package offload

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/sluice-serving/sluice/ascendrt"
)

// DeviceMover copies by the device, on two streams of its own (one a
// direction) between its memory and pinned host memory, so that copies overlap
// the engine's steps.
type DeviceMover struct {
	dev     ascendrt.Device
	regions []ascendrt.Buffer
	host    ascendrt.HostBuffer
	lanes   [2]lane
}

// lane is one direction. One batch at a time is built; streams keep them in
// order.
type lane struct {
	stream    ascendrt.Stream
	load      bool            // to the device
	stage     ascendrt.Buffer // on the device; nil: none
	mu        sync.Mutex
	cmd       ascendrt.Commands
	near, far []ascendrt.View // of a batch: on the device, on the host
	rows      []ascendrt.View // of a batch: in the stage, piece by piece
	runs      []ascendrt.View // and run by run
}

var _ Mover = (*DeviceMover)(nil)

// NewDeviceMover opens the streams. regions are the buffers of the regions
// that the worker is given, in that order. The engine's stream must have
// computed what is saved, and must wait for what is loaded; both follow from
// the contract: only KV of applied steps is saved, and no step reads a load
// before it was received.
func NewDeviceMover(dev ascendrt.Device, regions []ascendrt.Buffer) (*DeviceMover, error) {
	m := &DeviceMover{dev: dev, regions: regions}
	for i, role := range []string{"offload save", "offload load"} {
		s, err := dev.NewStream(ascendrt.StreamOptions{Role: role})
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s stream: %w", role, err), m.Close())
		}
		m.lanes[i].stream, m.lanes[i].load = s, i == 1
		if dev.Caps().ListCopy {
			if b, err := dev.Alloc(stageBytes, ascendrt.PlaceDefault); err == nil { // else it goes without
				m.lanes[i].stage = b
			}
		}
	}
	return m, nil
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
func (m *DeviceMover) Save(ctx context.Context, moves []Move) error {
	return m.copy(ctx, &m.lanes[0], moves)
}

// Load copies to the device.
func (m *DeviceMover) Load(ctx context.Context, moves []Move) error {
	return m.copy(ctx, &m.lanes[1], moves)
}

// copy submits the moves and waits until the device has done what was submitted,
// also when ctx ends before or not all could be: a copy cannot be taken back.
func (m *DeviceMover) copy(ctx context.Context, l *lane, moves []Move) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	if len(moves) == 0 {
		return nil
	}
	p, err := m.submit(l, moves)
	return errors.Join(err, p.Wait(context.WithoutCancel(ctx)))
}

// submit gives the point behind all that was submitted.
func (m *DeviceMover) submit(l *lane, moves []Move) (ascendrt.Point, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stage != nil && gathers(moves) {
		return m.throughStage(l, moves)
	}
	l.cmd.Reset()
	m.straight(l, moves)
	return l.send(ascendrt.Point{})
}

// send submits what was appended; where that fails, before is the point that
// still counts.
func (l *lane) send(before ascendrt.Point) (ascendrt.Point, error) {
	if err := l.cmd.Err(); err != nil {
		return before, err
	}
	p, n, err := l.stream.Submit(&l.cmd)
	if err != nil && n == 0 {
		return before, err
	}
	return p, err
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

// straight copies each move by itself.
func (m *DeviceMover) straight(l *lane, moves []Move) {
	l.near, l.far = l.near[:0], l.far[:0]
	for _, v := range moves {
		l.near = append(l.near, m.regions[v.Region].Slice(int(v.Offset), v.Bytes))
		l.far = append(l.far, m.host.Slice(int(v.Host), v.Bytes))
	}
	l.copyAll(l.near, l.far)
}

// Close closes the streams and frees the memory.
func (m *DeviceMover) Close() error {
	var errs []error
	for i := range m.lanes {
		if s := m.lanes[i].stream; s != nil {
			errs = append(errs, s.Close())
			m.lanes[i].stream = nil
		}
		if b := m.lanes[i].stage; b != nil {
			errs = append(errs, b.FreeAfter(ascendrt.Point{}))
			m.lanes[i].stage = nil
		}
	}
	if m.host != nil {
		errs = append(errs, m.host.FreeAfter(ascendrt.Point{}))
		m.host = nil
	}
	return errors.Join(errs...)
}
