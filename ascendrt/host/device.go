package host

import (
	"context"
	"sync"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/internal/base"
)

type device struct {
	base.Core
	info    ascendrt.Info
	faults  *faults
	pool    *pool
	streams base.StreamSet[*stream]

	mem       sync.Mutex
	allocs    map[uint64]*alloc
	nextID    uint64
	devBytes  int
	hostBytes int
	live      struct{ buffers, hostBuffers int } // under mem
	ids       []string                           // of groups that this device has named, under mem

	members sync.WaitGroup // watches of communicators

	closeOnce sync.Once
	closeErr  error
	closing   chan struct{} // closed when Close begins
	abandoned chan struct{} // closed when Close gives up waiting
}

var (
	_ ascendrt.Device = (*device)(nil)
	_ ascendrt.Mapper = (*device)(nil)
)

// Lose loses the device, as a fault would: for tests of what stands above it.
func (d *device) Lose(reason string) {
	d.Fail(invalid("device", reason, ascendrt.ErrDeviceLost))
}

func (d *device) unsupported(call string) error {
	if err := d.Alive(); err != nil {
		return err
	}
	return invalid(call, "the host backend has no such thing", ascendrt.ErrUnsupported)
}

func (d *device) Info() ascendrt.Info { return d.info }

func (d *device) Caps() ascendrt.Caps {
	return ascendrt.Caps{
		Backend: name, Align: align, Graphs: true, GraphUpdate: ascendrt.UpdateReplay, DeviceSignal: true,
		SyncTimeout: true, BatchCopy: true, PeerCopy: false, Collectives: true, DeterministicReduce: true,
	}
}

func (d *device) Limits() ascendrt.Limits {
	return d.Core.Limits(min(addrMask, d.info.TotalMemory), -1, -1)
}

func (d *device) Live() ascendrt.Live {
	d.Reap()
	d.mem.Lock()
	l := ascendrt.Live{Buffers: d.live.buffers, HostBuffers: d.live.hostBuffers, Bytes: d.devBytes, HostBytes: d.hostBytes}
	d.mem.Unlock()
	d.FillLive(&l)
	return l
}

func (d *device) PeerAccess(peer ascendrt.Device) (ascendrt.PeerKind, error) {
	if err := d.Alive(); err != nil {
		return ascendrt.PeerNone, err
	}
	return ascendrt.PeerNone, nil
}

func (d *device) EnablePeer(ascendrt.Device) error { return d.unsupported("enable peer") }

func (d *device) LoadProgram(ascendrt.Program) (ascendrt.Module, error) {
	return nil, d.unsupported("load program")
}

func (d *device) Health() error { return d.Alive() }

// Close drains the streams within ctx and ends all goroutines.
func (d *device) Close(ctx context.Context) error {
	d.closeOnce.Do(func() {
		d.Shut()
		d.mem.Lock()
		close(d.closing) // no watch begins from here on
		d.mem.Unlock()
		d.endGroups()
		streams := d.streams.All()
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
		d.members.Wait()
		d.pool.close()
		d.streams.End()
		d.Forget()
		d.mem.Lock()
		d.allocs, d.devBytes, d.hostBytes = nil, 0, 0
		d.live.buffers, d.live.hostBuffers = 0, 0
		d.mem.Unlock()
	})
	return d.closeErr
}
