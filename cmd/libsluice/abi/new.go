package abi

// #include "sluice.h"
import "C"

import (
	"fmt"
	"unsafe"
)

// create runs a constructor and puts what it made behind a handle.
func create(k kind, data *C.char, size C.size_t, out *C.sluice_handle, text *C.char, textSize C.size_t, make func([]byte) (*object, error)) (status C.int) {
	refuse := func(err error) C.int {
		copyText(text, textSize, err.Error())
		return statusOf(err)
	}
	defer func() {
		if p := recover(); p != nil {
			status = refuse(faultf(C.SLUICE_E_BROKEN, "a broken invariant: %v", p))
		}
	}()
	switch {
	case out == nil:
		return refuse(faultf(C.SLUICE_E_ARGUMENT, "the place for the handle is NULL"))
	case data == nil:
		return refuse(faultf(C.SLUICE_E_ARGUMENT, "config is NULL"))
	case size > 1<<30:
		return refuse(faultf(C.SLUICE_E_ARGUMENT, "config is said to have %d bytes", uint64(size)))
	}
	*out = 0
	o, err := make(unsafe.Slice((*byte)(unsafe.Pointer(data)), int(size)))
	if err != nil {
		return refuse(faultf(C.SLUICE_E_CONFIG, "%s", err))
	}
	h := objects.put(k, o)
	if h == 0 {
		return refuse(faultf(C.SLUICE_E_ARGUMENT, "too many handles are open"))
	}
	*out = C.sluice_handle(h)
	copyText(text, textSize, "")
	return C.SLUICE_OK
}

//export sluiceGoNew
func sluiceGoNew(data *C.char, size C.size_t, out *C.sluice_handle, text *C.char, textSize C.size_t) C.int {
	return create(schedulerKind, data, size, out, text, textSize, func(data []byte) (*object, error) {
		cfg, err := parseConfig(data)
		if err != nil {
			return nil, err
		}
		m := &memory{}
		k, err := newCore(cfg, m)
		if err != nil {
			return nil, err
		}
		k.out.mem = m
		return &object{core: k, graphs: k.graphs}, nil
	})
}

//export sluiceGoGraphsNew
func sluiceGoGraphsNew(data *C.char, size C.size_t, out *C.sluice_handle, text *C.char, textSize C.size_t) C.int {
	return create(graphsKind, data, size, out, text, textSize, func(data []byte) (*object, error) {
		var cfg graphsConfig
		if err := parse(data, &cfg); err != nil {
			return nil, err
		}
		if err := checkOwn(config{Graphs: &cfg}); err != nil {
			return nil, err
		}
		d, err := newDispatcher(cfg)
		if err != nil {
			return nil, err
		}
		return &object{graphs: d}, nil
	})
}

//export sluiceGoFree
func sluiceGoFree(h C.sluice_handle) (status C.int) {
	o, status := enter(h)
	switch {
	case status == C.SLUICE_E_BROKEN: // nothing of it can be trusted, its memory stays
		if o = objects.get(handle(h)); o != nil {
			objects.drop(o)
		}
		return C.SLUICE_OK
	case status != C.SLUICE_OK:
		return status
	}
	objects.drop(o) // and stays entered
	defer func() {
		if p := recover(); p != nil {
			status = C.SLUICE_E_BROKEN
		}
	}()
	if k := o.core; k != nil {
		if k.rec != nil && k.rec.close() != nil {
			status = C.SLUICE_E_IO
		}
		k.s.Close()
		k.out.close()
		if k.out.mem.bytes != 0 {
			panic(fmt.Sprintf("%d bytes of C memory are left", k.out.mem.bytes))
		}
	}
	o.core, o.graphs = nil, nil
	return status
}

//export sluiceGoInfo
func sluiceGoInfo(h C.sluice_handle, info *C.sluice_info_t) (status C.int) {
	o, status := enterScheduler(h)
	if status != C.SLUICE_OK {
		return status
	}
	defer o.leave(&status)
	if info == nil {
		return o.missing("info")
	}
	if st := o.sized("info", info.struct_size, unsafe.Sizeof(*info)); st != C.SLUICE_OK {
		return st
	}
	k := o.core
	cfg := k.s.Config()
	info.blocks = C.int32_t(k.blocks)
	info.block_size = C.int32_t(k.cache.BlockSize())
	info.groups = C.int32_t(k.cache.Groups())
	info.max_len = C.int32_t(k.s.MaxLen())
	info.max_rows = C.int32_t(cfg.MaxNumSeqs)
	info.max_tokens = C.int32_t(cfg.MaxScheduledTokens)
	info.in_flight = C.int32_t(cfg.InFlight)
	info.drafts = C.int32_t(cfg.Drafts)
	info.graph_keys = 0
	if o.graphs != nil {
		info.graph_keys = C.int32_t(len(o.graphs.d.Keys()))
	}
	return C.SLUICE_OK
}
