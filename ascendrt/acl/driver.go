//go:build cgo && linux

package acl

/*
#cgo CFLAGS: -std=gnu11 -O2
#cgo LDFLAGS: -ldl -lpthread
#include <stdlib.h>
#include "aclnn.h"

#cgo noescape asc_load
#cgo nocallback asc_load
#cgo noescape asc_absent
#cgo nocallback asc_absent
#cgo noescape asc_has
#cgo nocallback asc_has
#cgo noescape asc_count
#cgo nocallback asc_count
#cgo noescape asc_describe
#cgo nocallback asc_describe
#cgo noescape asc_open
#cgo nocallback asc_open
#cgo noescape asc_release
#cgo nocallback asc_release
#cgo noescape asc_faults
#cgo nocallback asc_faults
#cgo noescape asc_live
#cgo nocallback asc_live
#cgo noescape asc_alive
#cgo nocallback asc_alive
#cgo noescape asc_limits
#cgo nocallback asc_limits
#cgo noescape asc_mem_info
#cgo nocallback asc_mem_info
#cgo noescape asc_mem_alloc
#cgo nocallback asc_mem_alloc
#cgo noescape asc_mem_free
#cgo nocallback asc_mem_free
#cgo noescape asc_host_alloc
#cgo nocallback asc_host_alloc
#cgo noescape asc_host_free
#cgo nocallback asc_host_free
#cgo noescape asc_mask
#cgo nocallback asc_mask
#cgo noescape asc_ipc_export
#cgo nocallback asc_ipc_export
#cgo noescape asc_ipc_import
#cgo nocallback asc_ipc_import
#cgo noescape asc_ipc_close
#cgo nocallback asc_ipc_close
#cgo noescape asc_can_peer
#cgo nocallback asc_can_peer
#cgo noescape asc_enable_peer
#cgo nocallback asc_enable_peer
#cgo noescape asc_stream_new
#cgo nocallback asc_stream_new
#cgo noescape asc_stream_free
#cgo nocallback asc_stream_free
#cgo noescape asc_event_new
#cgo nocallback asc_event_new
#cgo noescape asc_event_free
#cgo nocallback asc_event_free
#cgo noescape asc_event_done
#cgo nocallback asc_event_done
#cgo noescape asc_event_elapsed
#cgo nocallback asc_event_elapsed
#cgo noescape asc_event_wait
#cgo nocallback asc_event_wait
#cgo noescape asc_module_load
#cgo nocallback asc_module_load
#cgo noescape asc_module_free
#cgo nocallback asc_module_free
#cgo noescape asc_module_func
#cgo nocallback asc_module_func
#cgo noescape asc_replay
#cgo nocallback asc_replay
#cgo noescape asc_capture
#cgo nocallback asc_capture
#cgo noescape asc_graph_free
#cgo nocallback asc_graph_free
#cgo noescape asc_aclnn_need
#cgo nocallback asc_aclnn_need
*/
import "C"

import (
	"strconv"
	"strings"
	"time"
	"unsafe"

	"github.com/sluice-serving/sluice/ascendrt"
	_ "github.com/sluice-serving/sluice/ascendrt/internal/signals" // whose header loader.c includes
)

// Handles of the runtime, as pointers to C objects.
type (
	ctxPtr    = C.aclrtContext
	streamPtr = C.aclrtStream
	eventPtr  = C.aclrtEvent
	graphPtr  = C.aclmdlRI
	groupPtr  = C.aclrtTaskGrp
	modulePtr = C.aclrtBinHandle
	funcPtr   = C.aclrtFuncHandle
	commPtr   = C.HcclComm
)

// Kinds of translated records; those of shim.h.
const (
	recCopy        = C.ASC_COPY
	recBatch       = C.ASC_COPY_BATCH
	recFill        = C.ASC_FILL
	recRecord      = C.ASC_RECORD
	recWait        = C.ASC_WAIT
	recReset       = C.ASC_RESET
	recSignal      = C.ASC_SIGNAL
	recStream      = C.ASC_STREAM
	recGraph       = C.ASC_GRAPH
	recGroupBegin  = C.ASC_GROUP_BEGIN
	recGroupEnd    = C.ASC_GROUP_END
	recUpdateBegin = C.ASC_UPDATE_BEGIN
	recUpdateEnd   = C.ASC_UPDATE_END
	recLaunch      = C.ASC_LAUNCH
	recOp          = C.ASC_OP
	recReduce      = C.ASC_REDUCE
	recGatherAll   = C.ASC_GATHER_ALL
	recAllToAll    = C.ASC_ALL_TO_ALL
	recWords       = C.ASC_REC_WORDS
)

// Kinds of copies, by the vendor's numbers.
const (
	copyToDevice = C.SL_COPY_H2D
	copyToHost   = C.SL_COPY_D2H
	copyWithin   = C.SL_COPY_D2D
)

// word is a handle as a record carries it.
func word[T ~unsafe.Pointer](p T) uint64 { return uint64(uintptr(unsafe.Pointer(p))) }

// pointer turns an address of C memory into a pointer.
func pointer(p uint64) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&p)) }

func (b *loadedLibrary) load(lib library, list []string, all bool) {
	texts := make([]*C.char, len(list)+1)
	for i, c := range list {
		texts[i] = C.CString(c)
		defer C.free(unsafe.Pointer(texts[i]))
	}
	// The list itself is C memory too: it holds pointers.
	arr := (**C.char)(C.malloc(C.size_t(len(texts)) * C.size_t(unsafe.Sizeof(texts[0]))))
	defer C.free(unsafe.Pointer(arr))
	copy(unsafe.Slice(arr, len(texts)), texts)
	var out C.asc_lib
	var every C.int
	if all {
		every = 1
	}
	b.Restored = int(C.asc_load(C.int(lib), arr, every, &out))
	b.Path, b.Problem, b.Version = C.GoString(&out.path[0]), C.GoString(&out.problem[0]), C.GoString(&out.version[0])
	b.OK = out.loaded != 0
	for i := 0; ; i++ {
		s := C.asc_absent(C.int(lib), C.int(i))
		if s == nil {
			break
		}
		b.Absent = append(b.Absent, C.GoString(s))
	}
}

// has tells whether the runtime library has an optional symbol.
func has(symbol string) bool {
	s := C.CString(symbol)
	defer C.free(unsafe.Pointer(s))
	return C.asc_has(C.int(libACL), s) != 0
}

// toError makes the Go error of a failed call; what adds our arguments.
func toError(what string, e *C.asc_err) error {
	lib, code := library(e.lib), int(e.code)
	call := C.GoString(&e.call[0])
	if what != "" {
		call += " (" + what + ")"
	}
	text := strings.TrimSpace(C.GoString(&e.text[0]))
	if a := adviceFor(code); a != "" {
		if text != "" {
			text += ": "
		}
		text += a
	}
	return &ascendrt.Error{Backend: name, Call: call, Code: code, Name: codeName(lib, code), Text: text, Command: int(e.index), Class: classOf(lib, code)}
}

func newErr() C.asc_err { return C.asc_err{index: -1} }

func countDevices() (int, error) {
	e := newErr()
	var n C.uint32_t
	if C.asc_count(&n, &e) != 0 {
		return 0, toError("", &e)
	}
	return int(n), nil
}

func describe(ordinal int) ascendrt.Info {
	e := newErr()
	var d C.asc_device
	C.asc_describe(C.int(ordinal), &d, &e)
	soc := C.GoString(&d.soc[0])
	info := ascendrt.Info{Ordinal: ordinal, Name: soc, Arch: strings.ToLower(strings.TrimPrefix(soc, "Ascend")), TotalMemory: uint64(d.memory),
		ComputeUnits: int(d.cores), RuntimeVersion: libraries[libACL].Version, UUID: hexText(C.GoBytes(unsafe.Pointer(&d.uuid[0]), 16))}
	return info
}

func hexText(b []byte) string {
	const digits = "0123456789abcdef"
	var out strings.Builder
	zero := true
	for _, v := range b {
		zero = zero && v == 0
		out.WriteByte(digits[v>>4])
		out.WriteByte(digits[v&15])
	}
	if zero {
		return ""
	}
	return out.String()
}

func openContext(ordinal int) (ctxPtr, error) {
	e := newErr()
	var ctx ctxPtr
	if C.asc_open(C.int(ordinal), &ctx, &e) != 0 {
		return nil, toError("device "+strconv.Itoa(ordinal), &e)
	}
	return ctx, nil
}

func (d *device) releaseContext() error {
	e := newErr()
	if C.asc_release(d.ctx, C.int(d.info.Ordinal), &e) != 0 {
		return toError("", &e)
	}
	return nil
}

// injectFaults hands faults to an emulation; false: these libraries have none.
func injectFaults(text string) (bool, error) {
	s := C.CString(text)
	defer C.free(unsafe.Pointer(s))
	switch C.asc_faults(s) {
	case -1:
		return false, nil
	case 0:
		return true, nil
	}
	return true, invalid("open", "the faults "+text+" are not understood", ascendrt.ErrInvalid)
}

// emulatedObjects counts what exists in an emulation of the runtime: streams,
// events, graphs, blocks of memory, and objects of operators; nil on real libraries.
func emulatedObjects() []int {
	var out []int
	count := func(lib library, symbol string, kinds int) {
		use(lib)
		s := C.CString(symbol)
		defer C.free(unsafe.Pointer(s))
		for k := range kinds {
			if n := C.asc_live(C.int(lib), s, C.int(k)); n >= 0 {
				out = append(out, int(n))
			}
		}
	}
	count(libACL, "sluice_emu_live", 4)
	count(libNNOP, "sluice_emu_objects", 1)
	return out
}

// failed makes the error of a call and notes a lost device.
func (d *device) failed(what string, e *C.asc_err) error {
	return d.Failed(toError(what, e))
}

func (d *device) driverAlive() error {
	e := newErr()
	if C.asc_alive(d.ctx, &e) != 0 {
		return d.failed("", &e)
	}
	return nil
}

func (d *device) driverLimits() (streams, events int) {
	e := newErr()
	var s, v C.int64_t
	if C.asc_limits(d.ctx, &s, &v, &e) != 0 {
		return -1, -1
	}
	return int(s), int(v)
}

func (d *device) driverMemInfo() (free, total uint64, err error) {
	e := newErr()
	var f, t C.size_t
	if C.asc_mem_info(d.ctx, &f, &t, &e) != 0 {
		return 0, 0, d.failed("", &e)
	}
	return uint64(f), uint64(t), nil
}

func (d *device) memAlloc(n int, shared C.int) (uint64, error) {
	e := newErr()
	var p unsafe.Pointer
	if C.asc_mem_alloc(d.ctx, C.size_t(n), shared, &p, &e) != 0 {
		return 0, d.failed("", &e)
	}
	return word(p), nil
}

func (d *device) driverAlloc(n int) (uint64, error) { return d.memAlloc(n, 0) }
func (d *device) sharedAlloc(n int) (uint64, error) { return d.memAlloc(n, 1) }

// driverFree and the other releases ignore errors: a lost device or an ending
// process answers them with the same code, and nobody can act on it.
func (d *device) driverFree(p uint64) {
	e := newErr()
	C.asc_mem_free(d.ctx, pointer(p), &e)
}

func (d *device) hostAlloc(n int) (uint64, error) {
	e := newErr()
	var p unsafe.Pointer
	if C.asc_host_alloc(d.ctx, C.size_t(n), &p, &e) != 0 {
		return 0, d.failed("", &e)
	}
	return word(p), nil
}

func (d *device) hostFree(p uint64) {
	e := newErr()
	C.asc_host_free(d.ctx, pointer(p), &e)
}

func (d *device) fillMask(p uint64, side int) error {
	e := newErr()
	if C.asc_mask(d.ctx, pointer(p), C.size_t(side), &e) != 0 {
		return d.failed("", &e)
	}
	return nil
}

const ipcKeyBytes = C.SL_IPC_KEY_BYTES

func (d *device) ipcExport(base uint64, n int) ([]byte, error) {
	e := newErr()
	out := make([]byte, ipcKeyBytes)
	if C.asc_ipc_export(d.ctx, pointer(base), C.size_t(n), (*C.char)(unsafe.Pointer(&out[0])), &e) != 0 {
		return nil, d.failed("", &e)
	}
	return out, nil
}

func (d *device) ipcImport(key []byte) (uint64, error) {
	e := newErr()
	var p unsafe.Pointer
	if C.asc_ipc_import(d.ctx, (*C.char)(unsafe.Pointer(&key[0])), &p, &e) != 0 {
		return 0, d.failed("", &e)
	}
	return word(p), nil
}

func (d *device) ipcClose(key []byte) {
	e := newErr()
	C.asc_ipc_close(d.ctx, (*C.char)(unsafe.Pointer(&key[0])), &e)
}

func (d *device) canPeer(peer int) (bool, error) {
	e := newErr()
	var can C.int
	if C.asc_can_peer(C.int(d.info.Ordinal), C.int(peer), &can, &e) != 0 {
		return false, d.failed("", &e)
	}
	return can != 0, nil
}

func (d *device) enablePeer(peer int) error {
	e := newErr()
	if C.asc_enable_peer(d.ctx, C.int(peer), &e) != 0 {
		return d.failed("", &e)
	}
	return nil
}

func (d *device) streamNew() (streamPtr, error) {
	e := newErr()
	var s streamPtr
	if C.asc_stream_new(d.ctx, &s, &e) != 0 {
		return nil, d.failed("", &e)
	}
	return s, nil
}

func (d *device) streamFree(s streamPtr) {
	e := newErr()
	C.asc_stream_free(d.ctx, s, &e)
}

// Flags of events.
const (
	eventSync     = C.SL_EVENT_SYNC
	eventTimeLine = C.SL_EVENT_TIME_LINE
	eventExternal = C.SL_EVENT_EXTERNAL
)

// eventNew makes an event whose records overwrite each other, or, of the
// external kind, a flag of the hardware.
func (d *device) eventNew(flags uint32) (eventPtr, error) {
	e := newErr()
	var ev eventPtr
	var hardware C.int
	if flags&eventExternal != 0 {
		hardware = 1
	}
	if C.asc_event_new(d.ctx, C.uint32_t(flags), hardware, &ev, &e) != 0 {
		return nil, d.failed("", &e)
	}
	return ev, nil
}

func (d *device) eventFree(ev eventPtr) {
	e := newErr()
	C.asc_event_free(d.ctx, ev, &e)
}

func (d *device) eventDone(ev eventPtr) (bool, error) {
	e := newErr()
	var done C.int
	if C.asc_event_done(d.ctx, ev, &done, &e) != 0 {
		bad := e // the record itself stays on the stack
		return false, d.failed("", &bad)
	}
	return done != 0, nil
}

func (d *device) eventElapsed(from, to eventPtr) (time.Duration, error) {
	e := newErr()
	var ms C.float
	if C.asc_event_elapsed(d.ctx, from, to, &ms, &e) != 0 {
		return 0, d.failed("an event was not reached, or has no time", &e)
	}
	return time.Duration(float64(ms) * float64(time.Millisecond)), nil
}

// eventWait waits in C for at most the given time, whole milliseconds.
func (d *device) eventWait(ev eventPtr, at time.Duration) (bool, error) {
	e := newErr()
	var done C.int
	ms := max(1, at.Milliseconds())
	if C.asc_event_wait(d.ctx, ev, C.int(ms), &done, &e) != 0 {
		bad := e // the record itself stays on the stack
		return false, d.failed("", &bad)
	}
	return done != 0, nil
}

func (d *device) moduleLoad(data []byte) (modulePtr, error) {
	e := newErr()
	var m modulePtr
	if C.asc_module_load(d.ctx, unsafe.Pointer(&data[0]), C.size_t(len(data)), &m, &e) != 0 {
		return nil, d.failed("", &e)
	}
	return m, nil
}

func (d *device) moduleFree(m modulePtr) {
	e := newErr()
	C.asc_module_free(d.ctx, m, &e)
}

func (d *device) moduleFunc(m modulePtr, fn string) (funcPtr, error) {
	e := newErr()
	cs := C.CString(fn)
	defer C.free(unsafe.Pointer(cs))
	var f funcPtr
	if C.asc_module_func(d.ctx, m, cs, &f, &e) != 0 {
		return nil, d.failed(fn, &e)
	}
	return f, nil
}

// replay submits translated records in one crossing.
func (d *device) replay(s streamPtr, words []uint64) error {
	var flags C.uint
	if d.Options.Debug == ascendrt.DebugSync {
		flags = C.ASC_SYNC_EACH
	}
	e := newErr()
	if C.asc_replay(d.ctx, s, (*C.uint64_t)(&words[0]), C.size_t(len(words)), flags, &e) != 0 {
		bad := e // the record itself stays on the stack
		return d.failed("", &bad)
	}
	return nil
}

// captureGraph records translated records as a graph in one crossing; groups
// takes the handles of its task groups.
func (d *device) captureGraph(s streamPtr, words []uint64, groups []groupPtr) (graphPtr, error) {
	e := newErr()
	var first *C.uint64_t
	if len(words) > 0 {
		first = (*C.uint64_t)(&words[0])
	}
	var gp *groupPtr
	if len(groups) > 0 {
		gp = &groups[0]
	}
	var g graphPtr
	if C.asc_capture(d.ctx, s, first, C.size_t(len(words)), &g, gp, &e) != 0 {
		return nil, d.failed("", &e)
	}
	return g, nil
}

func (d *device) graphFree(g graphPtr) {
	e := newErr()
	C.asc_graph_free(d.ctx, g, &e)
}

const tensorWords = C.ASC_TENSOR_WORDS

// aclnnNeed is the workspace of a call of an operator.
func (d *device) aclnnNeed(call []uint64) (int, error) {
	for _, l := range []library{libNNOP, libOPAPI} {
		if err := need("plan", l); err != nil {
			return 0, err
		}
	}
	e := newErr()
	var n C.uint64_t
	if C.asc_aclnn_need(d.ctx, (*C.uint64_t)(&call[0]), &n, &e) != 0 {
		return 0, d.failed("", &e)
	}
	return int(n), nil
}
