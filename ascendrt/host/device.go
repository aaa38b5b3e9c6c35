package host

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/internal/handles"
)

type device struct {
	opts   ascendrt.OpenOptions
	info   ascendrt.Info
	faults *faults
	pool   *pool

	refs handles.Registry
	pins sync.Mutex // orders FreeAfter against Capture's and Update's claims

	mem       sync.Mutex
	allocs    map[uint64]*alloc
	foreign   []foreignFree
	nextID    uint64
	devBytes  int
	hostBytes int
	live      struct{ buffers, hostBuffers int } // under mem

	handles  sync.Mutex
	streams  map[*stream]bool
	nstreams int // under handles, as the rest
	nevents  int
	nops     int
	ngraphs  int
	leaks    handles.Leaks

	closed    atomic.Bool
	closeOnce sync.Once
	closeErr  error
	loss      sync.Mutex
	lossErr   error
	lost      chan struct{} // closed at loss
	abandoned chan struct{} // closed when Close gives up waiting
}

var (
	_ ascendrt.Device = (*device)(nil)
	_ ascendrt.Mapper = (*device)(nil)
)

// alive is the gate of every method: nil, ErrDeviceLost or ErrClosed.
func (d *device) alive() error {
	if d.closed.Load() {
		return invalid("device", "closed", ascendrt.ErrClosed)
	}
	return d.lostError()
}

func (d *device) lostError() error {
	select {
	case <-d.lost:
		d.loss.Lock()
		defer d.loss.Unlock()
		return d.lossErr
	default:
		return nil
	}
}

// lose makes the device answer ErrDeviceLost from now on.
func (d *device) lose(err error) {
	d.loss.Lock()
	defer d.loss.Unlock()
	if d.lossErr == nil {
		d.lossErr = err
		close(d.lost)
	}
}

// Lose loses the device, as a fault would: for tests of what stands above it.
func (d *device) Lose(reason string) {
	d.lose(invalid("device", reason, ascendrt.ErrDeviceLost))
}

func (d *device) unsupported(call string) error {
	if err := d.alive(); err != nil {
		return err
	}
	return invalid(call, "the host backend has no such thing", ascendrt.ErrUnsupported)
}

func (d *device) Info() ascendrt.Info { return d.info }

func (d *device) Caps() ascendrt.Caps {
	return ascendrt.Caps{
		Backend: name, Align: align, Graphs: true, GraphUpdate: ascendrt.UpdateReplay, DeviceSignal: true,
		SyncTimeout: true, BatchCopy: true, PeerCopy: false, DeterministicReduce: true,
	}
}

func (d *device) Limits() ascendrt.Limits {
	d.handles.Lock()
	defer d.handles.Unlock()
	l := ascendrt.Limits{Streams: -1, StreamsFree: -1, Events: -1, EventsFree: -1, GraphNodes: -1, LargestAlloc: min(addrMask, d.info.TotalMemory)}
	if n := d.opts.MaxStreams; n > 0 {
		l.Streams, l.StreamsFree = n, n-d.nstreams
	}
	if n := d.opts.MaxEvents; n > 0 {
		l.Events, l.EventsFree = n, n-d.nevents
	}
	return l
}

func (d *device) Live() ascendrt.Live {
	d.reap()
	d.mem.Lock()
	l := ascendrt.Live{Buffers: d.live.buffers, HostBuffers: d.live.hostBuffers, Bytes: d.devBytes, HostBytes: d.hostBytes}
	d.mem.Unlock()
	d.handles.Lock()
	defer d.handles.Unlock()
	l.Streams, l.Events, l.Ops, l.Graphs = d.nstreams, d.nevents, d.nops, d.ngraphs
	l.Leaked = d.leaks.Count()
	return l
}

func (d *device) PeerAccess(peer ascendrt.Device) (ascendrt.PeerKind, error) {
	if err := d.alive(); err != nil {
		return ascendrt.PeerNone, err
	}
	return ascendrt.PeerNone, nil
}

func (d *device) EnablePeer(ascendrt.Device) error { return d.unsupported("enable peer") }

func (d *device) LoadProgram(ascendrt.Program) (ascendrt.Module, error) {
	return nil, d.unsupported("load program")
}

func (d *device) Health() error { return d.alive() }

// Close drains the streams within ctx and ends all goroutines.
func (d *device) Close(ctx context.Context) error {
	d.closeOnce.Do(func() {
		d.closed.Store(true)
		d.leaks.Stop()
		d.handles.Lock()
		streams := make([]*stream, 0, len(d.streams))
		for s := range d.streams {
			streams = append(streams, s)
		}
		d.handles.Unlock()
		for _, s := range streams {
			s.endQueue()
		}
		for _, s := range streams {
			select {
			case <-s.ended:
			case <-ctx.Done():
				d.closeErr = invalid("close", "work was still running: "+ctx.Err().Error(), ascendrt.ErrTimeout)
			}
		}
		close(d.abandoned)
		for _, s := range streams {
			<-s.ended
		}
		d.pool.close()
		d.handles.Lock()
		d.streams, d.nstreams, d.nevents, d.nops, d.ngraphs = nil, 0, 0, 0, 0
		d.handles.Unlock()
		d.mem.Lock()
		d.allocs, d.foreign, d.devBytes, d.hostBytes = nil, nil, 0, 0
		d.live.buffers, d.live.hostBuffers = 0, 0
		d.mem.Unlock()
	})
	return d.closeErr
}
