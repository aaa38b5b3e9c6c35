//go:build cgo && linux

package acl

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/internal/arena"
	"github.com/sluice-serving/sluice/ascendrt/internal/handles"
)

const (
	align       = 512
	tailPad     = 32 // bytes behind a block that operators may touch
	deviceChunk = 64 << 20
	pinnedChunk = 8 << 20
	defaultSpin = 50 * time.Microsecond
)

type device struct {
	opts     ascendrt.OpenOptions
	info     ascendrt.Info
	ctx      ctxPtr
	emulated bool

	refs  handles.Registry
	leaks handles.Leaks
	// life orders the end of the runtime's handles and of memory against the
	// submissions that name them: submitters hold it for reading.
	life sync.RWMutex

	mem      sync.RWMutex // allocations below
	device   arena.Arena
	shared   arena.Arena // memory that another process may map
	pinned   arena.Arena
	sorted   []*alloc // by address
	used     int
	hostUsed int
	counts   struct{ buffers, hostBuffers int }
	imports  map[string]*imported
	peers    atomic.Pointer[[]*device] // whose memory this device may access

	internals sync.Mutex // imports, peers, the mask
	mask      uint64     // of attention; 0 until first used

	late    sync.Mutex
	pending []pendingFree // what waits for points

	handles  sync.Mutex
	streams  map[*stream]bool
	nstreams int
	nevents  int
	nops     int
	nmodules int
	ngraphs  int
	ncomms   int

	closed    atomic.Bool
	closeOnce sync.Once
	closeErr  error
	loss      sync.Mutex
	lossErr   error
	lost      chan struct{}
}

type pendingFree struct {
	points []ascendrt.Point
	fn     func()
}

var (
	_ ascendrt.Backend     = Backend{}
	_ ascendrt.Device      = (*device)(nil)
	_ ascendrt.Collectives = (*device)(nil)
)

// captures is held over a capture: while one has a task group open, no other
// capture of the process may submit.
var captures sync.Mutex

func itoa(n int) string { return strconv.Itoa(n) }

// Open takes the device's default context, which it shares with every library
// in the process. OpenOptions.Faults works on the emulation of package emu
// alone; its grammar is there.
func (Backend) Open(ordinal int, o ascendrt.OpenOptions) (ascendrt.Device, error) {
	if b := use(libACL); !b.ok {
		return nil, unready("open", libACL, b.problem+": "+advice(libACL))
	}
	n, err := countDevices()
	if err != nil {
		return nil, err
	}
	if ordinal < 0 || ordinal >= n {
		return nil, invalid("open", fmt.Sprintf("ordinal %d: the runtime sees %d devices (ASCEND_RT_VISIBLE_DEVICES=%q)", ordinal, n, os.Getenv("ASCEND_RT_VISIBLE_DEVICES")), ascendrt.ErrUnavailable)
	}
	if o.Faults != "" {
		known, err := injectFaults(o.Faults)
		if err != nil {
			return nil, err
		}
		if !known {
			return nil, invalid("open", "a real device injects no faults", ascendrt.ErrUnsupported)
		}
	}
	d := &device{opts: o, info: describe(ordinal), lost: make(chan struct{}), streams: map[*stream]bool{}, imports: map[string]*imported{}}
	d.emulated = strings.HasSuffix(d.info.Name, "-emulated")
	d.leaks.Log = o.Logger
	if o.WaitSpin == 0 {
		d.opts.WaitSpin = defaultSpin
	}
	if d.ctx, err = openContext(ordinal); err != nil {
		return nil, err
	}
	d.device = arena.Arena{Chunk: deviceChunk, Align: align, Grow: d.driverAlloc, Shrink: d.driverFree}
	d.shared = arena.Arena{Chunk: 1, Align: align, Grow: d.sharedAlloc, Shrink: d.driverFree}
	d.pinned = arena.Arena{Chunk: pinnedChunk, Align: align, Grow: d.hostAlloc, Shrink: d.hostFree}
	if o.ArenaBytes > 0 {
		if err := d.device.Reserve(int(o.ArenaBytes)); err != nil {
			return nil, errors.Join(err, d.Close(context.Background()))
		}
	}
	return d, nil
}

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

func (d *device) lose(err error) {
	d.loss.Lock()
	defer d.loss.Unlock()
	if d.lossErr == nil {
		d.lossErr = err
		close(d.lost)
	}
}

func (d *device) Info() ascendrt.Info { return d.info }

func (d *device) Caps() ascendrt.Caps {
	c := ascendrt.Caps{
		Backend: name, Align: align, TailPad: tailPad, Graphs: has("aclmdlRICaptureBegin"), HostLengths: true, SyncTimeout: true,
		RawKernels: has("aclrtLaunchKernelWithHostArgs") && has("aclrtBinaryLoadFromData"), BatchCopy: has("aclrtMemcpyBatchAsync"),
		IPCMemory: has("aclrtIpcMemGetExportKey"), PeerCopy: has("aclrtDeviceEnablePeerAccess"), Collectives: use(libHCCL).ok,
		DeterministicReduce: d.emulated,
	}
	if c.Graphs && has("aclmdlRICaptureTaskUpdateBegin") {
		c.GraphUpdate = ascendrt.UpdateTaskGroup
	}
	return c
}

func (d *device) Limits() ascendrt.Limits {
	l := ascendrt.Limits{Streams: -1, StreamsFree: -1, Events: -1, EventsFree: -1, GraphNodes: -1}
	if free, _, err := d.MemInfo(); err == nil {
		l.LargestAlloc = free
	}
	if d.alive() == nil {
		l.StreamsFree, l.EventsFree = d.driverLimits()
	}
	d.handles.Lock()
	defer d.handles.Unlock()
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
	d.mem.RLock()
	l := ascendrt.Live{Buffers: d.counts.buffers, HostBuffers: d.counts.hostBuffers, Bytes: d.used, HostBytes: d.hostUsed}
	d.mem.RUnlock()
	d.handles.Lock()
	defer d.handles.Unlock()
	l.Streams, l.Events, l.Ops, l.Modules, l.Graphs, l.Communicators = d.nstreams, d.nevents, d.nops, d.nmodules, d.ngraphs, d.ncomms
	l.Leaked = d.leaks.Count()
	return l
}

// take counts a new handle against a limit.
func (d *device) take(n *int, limit int, what string) error {
	d.handles.Lock()
	defer d.handles.Unlock()
	if limit > 0 && *n >= limit {
		return invalid(what, strconv.Itoa(limit)+" exist: close some", ascendrt.ErrResourceLimit)
	}
	*n++
	return nil
}

func (d *device) give(n *int) {
	d.handles.Lock()
	*n--
	d.handles.Unlock()
}

// later runs fn once the points have passed, at some later call, or at Close.
func (d *device) later(points []ascendrt.Point, fn func()) {
	for _, p := range points {
		if !p.Done() {
			d.late.Lock()
			d.pending = append(d.pending, pendingFree{points, fn})
			d.late.Unlock()
			return
		}
	}
	fn()
}

// reap runs what waits for points that have passed.
func (d *device) reap() {
	d.late.Lock()
	if len(d.pending) == 0 {
		d.late.Unlock()
		return
	}
	var ready []pendingFree
	keep := d.pending[:0]
next:
	for _, f := range d.pending {
		for _, p := range f.points {
			if !p.Done() {
				keep = append(keep, f)
				continue next
			}
		}
		ready = append(ready, f)
	}
	d.pending = keep
	d.late.Unlock()
	for _, f := range ready {
		f.fn()
	}
}

func (d *device) Health() error {
	if err := d.alive(); err != nil {
		return err
	}
	return d.driverAlive()
}

// Close waits for the streams within ctx, then gives everything back. A lost
// device is left as it is: its driver answers nothing but the fault.
func (d *device) Close(ctx context.Context) error {
	d.closeOnce.Do(func() {
		d.closed.Store(true)
		d.leaks.Stop()
		d.handles.Lock()
		var streams []*stream
		for s := range d.streams {
			streams = append(streams, s)
		}
		d.handles.Unlock()
		for _, s := range streams {
			s.submit.Lock()
			s.stopped = true
			last := s.seq.Load()
			s.submit.Unlock()
			if d.lostError() != nil || d.closeErr != nil {
				continue
			}
			if err := s.Wait(ctx, last); err != nil && !errors.Is(err, ascendrt.ErrDeviceLost) {
				d.closeErr = invalid("close", "work was still running: "+err.Error(), ascendrt.ErrTimeout)
			}
		}
		if d.lostError() == nil && d.closeErr == nil {
			d.giveBack(streams)
		}
		d.handles.Lock()
		d.streams, d.nstreams, d.nevents, d.nops, d.nmodules, d.ngraphs, d.ncomms = nil, 0, 0, 0, 0, 0, 0
		d.handles.Unlock()
		d.mem.Lock()
		d.sorted, d.used, d.hostUsed = nil, 0, 0
		d.counts.buffers, d.counts.hostBuffers = 0, 0
		d.mem.Unlock()
	})
	return d.closeErr
}

// giveBack releases all objects of an idle device.
func (d *device) giveBack(streams []*stream) {
	d.life.Lock()
	defer d.life.Unlock()
	d.late.Lock()
	pending := d.pending
	d.pending = nil
	d.late.Unlock()
	for _, f := range pending {
		f.fn()
	}
	d.refs.Each(func(v any) {
		switch h := v.(type) {
		case *graphState:
			h.end(d)
		case *eventState:
			d.eventFree(h.raw)
		case *module:
			d.moduleFree(h.raw)
		case *communicator:
			d.commFree(h.raw)
		}
	})
	for _, s := range streams {
		s.free()
	}
	for key := range d.imports {
		d.ipcClose([]byte(key))
	}
	if d.mask != 0 {
		d.driverFree(d.mask)
	}
	d.pinned.Close()
	d.shared.Close()
	d.device.Close()
	if err := d.releaseContext(); err != nil {
		d.closeErr = err
	}
}

// attentionMask is the mask that attention takes: the upper triangle of
// maskSide × maskSide bytes, made once.
func (d *device) attentionMask() (uint64, error) {
	d.internals.Lock()
	defer d.internals.Unlock()
	if d.mask != 0 {
		return d.mask, nil
	}
	p, err := d.driverAlloc(maskSide*maskSide + tailPad)
	if err != nil {
		return 0, err
	}
	if err := d.fillMask(p, maskSide); err != nil {
		d.driverFree(p)
		return 0, err
	}
	d.mask = p
	return p, nil
}
