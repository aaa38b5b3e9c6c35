//go:build cgo && linux

package cuda

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/internal/arena"
	"github.com/sluice-serving/sluice/ascendrt/internal/handles"
)

const (
	align       = 512
	deviceChunk = 64 << 20
	pinnedChunk = 8 << 20
	defaultSpin = 50 * time.Microsecond
)

type device struct {
	opts ascendrt.OpenOptions
	desc description
	info ascendrt.Info
	log  *slog.Logger
	ctx  ctxPtr
	low  int // numerically: the lowest priority
	high int

	refs handles.Registry
	// life orders the end of driver handles and of memory against the
	// submissions that name them: submitters hold it for reading.
	life sync.RWMutex

	mem       sync.RWMutex // allocations below
	device    arena.Arena
	pinned    arena.Arena
	sorted    []*alloc // by address
	used      int
	hostUsed  int
	counts    struct{ buffers, hostBuffers int }
	imports   map[string]*imported
	peers     atomic.Pointer[[]*device] // whose memory this device may access
	poolMu    sync.Mutex
	pool      *stream    // owns pool memory's order; nil until first used
	internals sync.Mutex // imports, pages, peers
	pages     []wordPage
	nextWord  int

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
	leaks    handles.Leaks

	kernels kernels
	fused   fused
	blas    blas

	closed    atomic.Bool
	closeOnce sync.Once
	closeErr  error
	loss      sync.Mutex
	lossErr   error
	lost      chan struct{}
}

// wordPage is memory that the device writes sequence numbers to.
type wordPage struct {
	words *[pageWords]uint64
	dev   uint64
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

// Open retains the device's primary context, which it shares with every
// library in the process.
func (Backend) Open(ordinal int, o ascendrt.OpenOptions) (ascendrt.Device, error) {
	if o.Faults != "" {
		return nil, invalid("open", "a real device injects no faults", ascendrt.ErrUnsupported)
	}
	if b := use(libCUDA); !b.ok {
		return nil, unready("open", libCUDA, b.problem+": "+advice(libCUDA))
	}
	n, driver, err := countDevices()
	if err != nil {
		return nil, err
	}
	if ordinal < 0 || ordinal >= n {
		return nil, invalid("open", fmt.Sprintf("ordinal %d: the driver sees %d devices (CUDA_VISIBLE_DEVICES=%q)", ordinal, n, os.Getenv("CUDA_VISIBLE_DEVICES")), ascendrt.ErrUnavailable)
	}
	d := &device{opts: o, lost: make(chan struct{}), streams: map[*stream]bool{}, imports: map[string]*imported{}}
	if d.desc, err = describe(ordinal); err != nil {
		return nil, err
	}
	d.info = d.desc.info
	d.info.RuntimeVersion = versionText(libCUDA, driver)
	d.info.Arch = fmt.Sprintf("sm_%d", d.desc.cc)
	d.info.Note = d.desc.pci
	if d.log = o.Logger; d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	d.leaks.Log = d.log
	if o.WaitSpin == 0 {
		d.opts.WaitSpin = defaultSpin
	}
	if o.CacheDir == "" {
		if c, err := os.UserCacheDir(); err == nil {
			d.opts.CacheDir = filepath.Join(c, "sluice", "kernels")
		}
	}
	if d.ctx, d.low, d.high, err = openContext(ordinal); err != nil {
		return nil, err
	}
	d.device = arena.Arena{Chunk: deviceChunk, Align: align, Grow: d.driverAlloc, Shrink: d.driverFree}
	d.pinned = arena.Arena{Chunk: pinnedChunk, Align: align, Grow: d.hostAlloc, Shrink: d.hostFree}
	if o.ArenaBytes > 0 {
		err = d.device.Reserve(int(o.ArenaBytes))
	}
	if err == nil {
		err = d.signalTrial()
	}
	if err != nil {
		return nil, errors.Join(err, d.Close(context.Background()))
	}
	return d, nil
}

// signalTrial shows that a stream can write a word of pinned memory, on which
// all completion rests.
func (d *device) signalTrial() error {
	s, err := d.newStream(ascendrt.StreamOptions{Role: "trial"})
	if err != nil {
		return err
	}
	defer s.end()
	p, _, err := s.Submit(&ascendrt.Commands{})
	if err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(context.Background(), 10*time.Second)
	defer stop()
	if err := p.Wait(ctx); err != nil {
		return fmt.Errorf("the device does not signal through pinned memory: %w", err)
	}
	return nil
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
	has := func(absent string) bool {
		for _, a := range libraries[libCUDA].absent {
			if a == absent {
				return false
			}
		}
		return true
	}
	c := ascendrt.Caps{
		Backend: name, Align: align, Graphs: true, DeviceSignal: true, RawKernels: use(libNVRTC).ok,
		BatchCopy: has("cuMemcpyBatchAsync"), IPCMemory: has("cuIpcGetMemHandle"), IPCEvents: has("cuIpcGetEventHandle"),
		PeerCopy: has("cuCtxEnablePeerAccess"), Collectives: use(libNCCL).ok, DeterministicReduce: true,
	}
	if has("cuGraphExecKernelNodeSetParams") {
		c.GraphUpdate = ascendrt.UpdateNodeParam
	}
	return c
}

func (d *device) Limits() ascendrt.Limits {
	l := ascendrt.Limits{Streams: -1, StreamsFree: -1, Events: -1, EventsFree: -1, GraphNodes: -1}
	if free, _, err := d.MemInfo(); err == nil {
		l.LargestAlloc = free
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

// reap runs what waits for points that have passed. It crosses nothing: a point
// is a word in pinned memory.
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

// giveBack releases all driver objects of an idle device.
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
		case *eventState:
			d.eventFree(h.raw)
		case *graphState:
			d.graphFree(h.graph, h.exec)
		case modulePtr:
			d.moduleFree(h)
		}
	})
	d.blas.close(d)
	d.kernels.close(d)
	d.fused.close(d)
	for _, s := range streams {
		s.freed = true
		d.streamFree(s.raw)
	}
	for _, p := range d.pages {
		d.endWords(p.words)
	}
	for _, im := range d.imports {
		d.ipcClose(im.base)
	}
	d.pinned.Close()
	d.device.Close()
	if err := d.releaseContext(); err != nil {
		d.closeErr = err
	}
}
