//go:build cgo && linux

package acl

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/internal/base"
	"github.com/sluice-serving/sluice/ascendrt/internal/memory"
)

const tailPad = 32 // bytes behind a block that operators may touch

type device struct {
	base.Core
	memory.Table
	info     ascendrt.Info
	ctx      ctxPtr
	emulated bool
	streams  base.StreamSet[*stream]

	arenas memory.Arenas

	masking sync.Mutex
	mask    uint64 // of attention; 0 until first used
}

var (
	_ ascendrt.Backend     = Backend{}
	_ ascendrt.Device      = (*device)(nil)
	_ ascendrt.Collectives = (*device)(nil)
)

// captures is held over a capture: while one has a task group open, no other
// capture of the process may submit.
var captures sync.Mutex

// Open takes the device's default context, which it shares with every library
// in the process. OpenOptions.Faults works on the emulation of package emu
// alone; its grammar is there.
func (Backend) Open(ordinal int, o ascendrt.OpenOptions) (ascendrt.Device, error) {
	if err := need("open", libACL); err != nil {
		return nil, err
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
	d := &device{info: describe(ordinal)}
	d.Core.Init(name, o)
	d.Table.Init(&d.Core, d.memory())
	d.emulated = strings.HasSuffix(d.info.Name, "-emulated")
	if d.ctx, err = openContext(ordinal); err != nil {
		return nil, err
	}
	d.arenas.Init(tailPad, memory.Source{Grow: d.driverAlloc, Shrink: d.driverFree}, memory.Source{Grow: d.hostAlloc, Shrink: d.hostFree},
		memory.Source{Grow: d.sharedAlloc, Shrink: d.driverFree})
	if o.ArenaBytes > 0 {
		if err := d.arenas.Device.Reserve(int(o.ArenaBytes)); err != nil {
			return nil, errors.Join(err, d.Close(context.Background()))
		}
	}
	return d, nil
}

func (d *device) Info() ascendrt.Info { return d.info }

func (d *device) Caps() ascendrt.Caps {
	c := ascendrt.Caps{
		Backend: name, Align: memory.Align, TailPad: tailPad, Graphs: has("aclmdlRICaptureBegin"), HostLengths: true, SyncTimeout: true,
		RawKernels: has("aclrtLaunchKernelWithHostArgs") && has("aclrtBinaryLoadFromData"), BatchCopy: has("aclrtMemcpyBatchAsync"),
		IPCMemory: has("aclrtIpcMemGetExportKey"), PeerCopy: has("aclrtDeviceEnablePeerAccess"), Collectives: use(libHCCL).OK,
		DeterministicReduce: d.emulated,
	}
	if c.Graphs && has("aclmdlRICaptureTaskUpdateBegin") {
		c.GraphUpdate = ascendrt.UpdateTaskGroup
	}
	return c
}

func (d *device) Limits() ascendrt.Limits {
	streams, events := -1, -1
	if d.Alive() == nil {
		streams, events = d.driverLimits()
	}
	free, _, _ := d.MemInfo() // an error: nothing is free
	return d.Core.Limits(free, streams, events)
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

// giveBack releases all objects of an idle device.
func (d *device) giveBack(streams []*stream) error {
	d.Refs.Each(func(v any) {
		switch h := v.(type) {
		case *graphState:
			h.Free()
		case *eventState:
			d.eventFree(h.raw)
		case *module:
			d.moduleFree(h.raw)
		case *communicator:
			d.commFree(h.Raw)
		}
	})
	for _, s := range streams {
		s.free()
	}
	d.EndImports()
	d.masking.Lock()
	if d.mask != 0 {
		d.driverFree(d.mask)
	}
	d.masking.Unlock()
	d.arenas.Close()
	return d.releaseContext()
}

// attentionMask is the mask that attention takes: the upper triangle of
// maskSide × maskSide bytes, made once.
func (d *device) attentionMask() (uint64, error) {
	d.masking.Lock()
	defer d.masking.Unlock()
	if d.mask != 0 {
		return d.mask, nil
	}
	if err := d.Alive(); err != nil { // a Close that comes later waits for the lock
		return 0, err
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
