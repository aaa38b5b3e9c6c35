//go:build cgo && linux

package cuda

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/internal/base"
	"github.com/sluice-serving/sluice/ascendrt/internal/memory"
)

type device struct {
	base.Core
	memory.Table
	desc    description
	info    ascendrt.Info
	log     *slog.Logger
	ctx     ctxPtr
	low     int // numerically: the lowest priority
	high    int
	streams base.StreamSet[*stream]

	arenas memory.Arenas
	poolMu sync.Mutex
	pool   *stream // owns pool memory's order; nil until first used

	words    sync.Mutex
	pages    []wordPage
	nextWord int

	kernels kernels
	lists   copyLists
	fused   fused
	blas    blas
}

// wordPage is memory that the device writes sequence numbers to.
type wordPage struct {
	words *[pageWords]uint64
	dev   uint64
}

var (
	_ ascendrt.Backend      = Backend{}
	_ ascendrt.Device       = (*device)(nil)
	_ ascendrt.Collectives  = (*device)(nil)
	_ ascendrt.RowAllocator = (*device)(nil)
)

// Open retains the device's primary context, which it shares with every
// library in the process.
func (Backend) Open(ordinal int, o ascendrt.OpenOptions) (ascendrt.Device, error) {
	if o.Faults != "" {
		return nil, invalid("open", "a real device injects no faults", ascendrt.ErrUnsupported)
	}
	if err := need("open", libCUDA); err != nil {
		return nil, err
	}
	n, driver, err := countDevices()
	if err != nil {
		return nil, err
	}
	if ordinal < 0 || ordinal >= n {
		return nil, invalid("open", fmt.Sprintf("ordinal %d: the driver sees %d devices (CUDA_VISIBLE_DEVICES=%q)", ordinal, n, os.Getenv("CUDA_VISIBLE_DEVICES")), ascendrt.ErrUnavailable)
	}
	d := &device{}
	if d.desc, err = describe(ordinal); err != nil {
		return nil, err
	}
	d.Core.Init(name, o)
	d.Table.Init(&d.Core, d.memory())
	d.info = d.desc.info
	d.info.RuntimeVersion = versionText(libCUDA, driver)
	d.info.Arch = fmt.Sprintf("sm_%d", d.desc.cc)
	d.info.Note = d.desc.pci
	if d.log = o.Logger; d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	if o.CacheDir == "" {
		if c, err := os.UserCacheDir(); err == nil {
			d.Options.CacheDir = filepath.Join(c, "sluice", "kernels")
		}
	}
	if d.ctx, d.low, d.high, err = openContext(ordinal); err != nil {
		return nil, err
	}
	d.arenas.Init(0, memory.Source{Grow: d.driverAlloc, Shrink: d.driverFree}, memory.Source{Grow: d.hostAlloc, Shrink: d.hostFree},
		memory.Source{Grow: d.sharedAlloc, Shrink: d.driverFree})
	if o.ArenaBytes > 0 {
		err = d.arenas.Device.Reserve(int(o.ArenaBytes))
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

func (d *device) Info() ascendrt.Info { return d.info }

func (d *device) Caps() ascendrt.Caps {
	has := func(symbol string) bool { return !slices.Contains(libraries[libCUDA].Absent, symbol) }
	c := ascendrt.Caps{
		Backend: name, Align: memory.Align, Graphs: true, DeviceSignal: true, RawKernels: use(libNVRTC).OK,
		BatchCopy: has("cuMemcpyBatchAsync"), ListCopy: use(libNVRTC).OK, BlockCopy: true, IPCMemory: has("cuIpcGetMemHandle"), IPCEvents: has("cuIpcGetEventHandle"),
		PeerCopy: has("cuCtxEnablePeerAccess"), Collectives: use(libNCCL).OK, DeterministicReduce: true,
	}
	if has("cuGraphExecKernelNodeSetParams") {
		c.GraphUpdate = ascendrt.UpdateNodeParam
	}
	return c
}

func (d *device) Limits() ascendrt.Limits {
	free, _, _ := d.MemInfo() // an error: nothing is free
	return d.Core.Limits(free, -1, -1)
}

func (d *device) Health() error {
	if err := d.Alive(); err != nil {
		return err
	}
	return d.driverAlive()
}

// Close waits for the streams within ctx, then gives everything back.
func (d *device) Close(ctx context.Context) error {
	err := base.Close(ctx, &d.Core, &d.streams, d.giveBack)
	d.Table.Forget()
	return err
}

// giveBack releases all driver objects of an idle device.
func (d *device) giveBack(streams []*stream) error {
	d.Refs.Each(func(v any) {
		switch h := v.(type) {
		case *eventState:
			d.eventFree(h.raw)
		case *graphState:
			h.Free()
		case modulePtr:
			d.moduleFree(h)
		}
	})
	d.blas.close(d)
	d.kernels.close(d)
	d.lists.program.close(d)
	d.fused.close(d)
	for _, s := range streams {
		s.freed = true
		d.streamFree(s.raw)
	}
	for _, p := range d.pages {
		d.endWords(p.words)
	}
	d.EndImports()
	d.arenas.Close()
	return d.releaseContext()
}
