//go:build cgo && linux

package cuda

/*
#cgo CFLAGS: -std=gnu11 -O2
#cgo LDFLAGS: -ldl -lpthread
#include <stdlib.h>
#include "shim.h"

#cgo noescape sl_load
#cgo nocallback sl_load
#cgo noescape sl_count
#cgo nocallback sl_count
#cgo noescape sl_describe
#cgo nocallback sl_describe
#cgo noescape sl_open
#cgo nocallback sl_open
#cgo noescape sl_release
#cgo nocallback sl_release
#cgo noescape sl_alive
#cgo nocallback sl_alive
#cgo noescape sl_mem_info
#cgo nocallback sl_mem_info
#cgo noescape sl_mem_alloc
#cgo nocallback sl_mem_alloc
#cgo noescape sl_mem_free
#cgo nocallback sl_mem_free
#cgo noescape sl_pool_setup
#cgo nocallback sl_pool_setup
#cgo noescape sl_pool_alloc
#cgo nocallback sl_pool_alloc
#cgo noescape sl_pool_free
#cgo nocallback sl_pool_free
#cgo noescape sl_host_alloc
#cgo nocallback sl_host_alloc
#cgo noescape sl_host_free
#cgo nocallback sl_host_free
#cgo noescape sl_ipc_export
#cgo nocallback sl_ipc_export
#cgo noescape sl_ipc_import
#cgo nocallback sl_ipc_import
#cgo noescape sl_ipc_close
#cgo nocallback sl_ipc_close
#cgo noescape sl_can_peer
#cgo nocallback sl_can_peer
#cgo noescape sl_enable_peer
#cgo nocallback sl_enable_peer
#cgo noescape sl_stream_new
#cgo nocallback sl_stream_new
#cgo noescape sl_stream_free
#cgo nocallback sl_stream_free
#cgo noescape sl_event_new
#cgo nocallback sl_event_new
#cgo noescape sl_event_free
#cgo nocallback sl_event_free
#cgo noescape sl_event_done
#cgo nocallback sl_event_done
#cgo noescape sl_event_elapsed
#cgo nocallback sl_event_elapsed
#cgo noescape sl_words
#cgo nocallback sl_words
#cgo noescape sl_words_end
#cgo nocallback sl_words_end
#cgo noescape sl_stream_check
#cgo nocallback sl_stream_check
#cgo noescape sl_wait
#cgo nocallback sl_wait
#cgo noescape sl_module_load
#cgo nocallback sl_module_load
#cgo noescape sl_module_free
#cgo nocallback sl_module_free
#cgo noescape sl_module_func
#cgo nocallback sl_module_func
#cgo noescape sl_func_shared
#cgo nocallback sl_func_shared
#cgo noescape sl_func_clusters
#cgo nocallback sl_func_clusters
#cgo noescape sl_replay
#cgo nocallback sl_replay
#cgo noescape sl_capture
#cgo nocallback sl_capture
#cgo noescape sl_graph_free
#cgo nocallback sl_graph_free
#cgo noescape sl_update
#cgo nocallback sl_update
*/
import "C"

import (
	"strings"
	"time"
	"unsafe"

	"github.com/sluice-serving/sluice/ascendrt"
	_ "github.com/sluice-serving/sluice/ascendrt/internal/signals" // whose header loader.c includes
)

// Handles of the driver, as pointers to C objects.
type (
	ctxPtr    = C.sl_ctx
	streamPtr = C.sl_stream
	eventPtr  = C.sl_event
	modulePtr = C.sl_module
	funcPtr   = C.sl_func
	graphPtr  = C.sl_graph
	execPtr   = C.sl_exec
	nodePtr   = C.sl_node
)

// Kinds of translated records; those of shim.h.
const (
	recHtoD      = C.SL_COPY_HTOD
	recDtoH      = C.SL_COPY_DTOH
	recDtoD      = C.SL_COPY_DTOD
	recCopy      = C.SL_COPY_ANY
	recBatch     = C.SL_COPY_BATCH
	recRows      = C.SL_COPY_ROWS
	recFill      = C.SL_FILL
	recLaunch    = C.SL_LAUNCH
	recRecord    = C.SL_RECORD
	recWait      = C.SL_WAIT_EVENT
	recWaitWord  = C.SL_WAIT_WORD
	recSignal    = C.SL_SIGNAL
	recStream    = C.SL_STREAM
	recGraph     = C.SL_GRAPH
	recLt        = C.SL_LT
	recReduce    = C.SL_REDUCE
	recGatherAll = C.SL_GATHER_ALL
	recAllToAll  = C.SL_ALL_TO_ALL
	recWords     = C.SL_REC_WORDS
)

// word is a handle as a record carries it.
func word(p unsafe.Pointer) uint64 { return uint64(uintptr(p)) }

func (b *loadedLibrary) load(lib library, candidates []string) {
	list := make([]*C.char, len(candidates)+1)
	for i, c := range candidates {
		list[i] = C.CString(c)
		defer C.free(unsafe.Pointer(list[i]))
	}
	// The list itself is C memory too: it holds pointers.
	arr := (**C.char)(C.malloc(C.size_t(len(list)) * C.size_t(unsafe.Sizeof(list[0]))))
	defer C.free(unsafe.Pointer(arr))
	copy(unsafe.Slice(arr, len(list)), list)
	var out C.sl_lib
	b.Restored = int(C.sl_load(C.int(lib), arr, &out))
	b.Path, b.Problem, b.number = C.GoString(&out.path[0]), C.GoString(&out.problem[0]), int(out.version)
	b.Version = versionText(lib, b.number)
	b.OK = out.loaded != 0
	for i := 0; ; i++ {
		s := C.sl_absent(C.int(lib), C.int(i))
		if s == nil {
			break
		}
		b.Absent = append(b.Absent, C.GoString(s))
	}
}

// toError makes the Go error of a failed call; what adds our arguments.
func toError(what string, e *C.sl_err) error {
	lib := library(e.lib)
	call := C.GoString(&e.call[0])
	if what != "" {
		call += " (" + what + ")"
	}
	err := &ascendrt.Error{Backend: name, Call: call, Code: int(e.code), Name: C.GoString(&e.name[0]),
		Text: C.GoString(&e.text[0]), Command: int(e.index), Class: classOf(lib, int(e.code))}
	if lib == libCUDA && e.code == 2 {
		err.Text = "out of memory"
	}
	return err
}

func newErr() C.sl_err { return C.sl_err{index: -1} }

func countDevices() (n, driver int, err error) {
	e := newErr()
	var cn, cd C.int
	if C.sl_count(&cn, &cd, &e) != 0 {
		return 0, 0, toError("", &e)
	}
	return int(cn), int(cd), nil
}

type description struct {
	info        ascendrt.Info
	cc          int // 90 for 9.0
	sharedOptin int // bytes of shared memory that a block may have
	pools       bool
	pci         string
}

func describe(ordinal int) (description, error) {
	e := newErr()
	var d C.sl_device
	if C.sl_describe(C.int(ordinal), &d, &e) != 0 {
		return description{}, toError("", &e)
	}
	const hex = "0123456789abcdef"
	var uuid strings.Builder
	uuid.WriteString("GPU-")
	for i, b := range d.uuid {
		if i == 4 || i == 6 || i == 8 || i == 10 {
			uuid.WriteByte('-')
		}
		uuid.WriteByte(hex[b>>4])
		uuid.WriteByte(hex[b&15])
	}
	out := description{cc: int(d.major)*10 + int(d.minor), sharedOptin: int(d.shared_optin), pools: d.pools != 0, pci: C.GoString(&d.pci[0])}
	out.info = ascendrt.Info{Ordinal: ordinal, Name: C.GoString(&d.name[0]), UUID: uuid.String(), TotalMemory: uint64(d.memory), ComputeUnits: int(d.sms)}
	return out, nil
}

func openContext(ordinal int) (ctx ctxPtr, low, high int, err error) {
	e := newErr()
	var l, h C.int
	if C.sl_open(C.int(ordinal), &ctx, &l, &h, &e) != 0 {
		return nil, 0, 0, toError("", &e)
	}
	return ctx, int(l), int(h), nil
}

func (d *device) releaseContext() error {
	e := newErr()
	if C.sl_release(C.int(d.info.Ordinal), &e) != 0 {
		return toError("", &e)
	}
	return nil
}

// failed makes the error of a call and notes a lost device.
func (d *device) failed(what string, e *C.sl_err) error {
	return d.Failed(toError(what, e))
}

func (d *device) driverAlive() error {
	e := newErr()
	if C.sl_alive(d.ctx, &e) != 0 {
		return d.failed("", &e)
	}
	return nil
}

func (d *device) driverMemInfo() (free, total uint64, err error) {
	e := newErr()
	var f, t C.size_t
	if C.sl_mem_info(d.ctx, &f, &t, &e) != 0 {
		return 0, 0, d.failed("", &e)
	}
	return uint64(f), uint64(t), nil
}

func (d *device) driverAlloc(n int) (uint64, error) {
	e := newErr()
	var p C.sl_ptr
	if C.sl_mem_alloc(d.ctx, C.size_t(n), &p, &e) != 0 {
		return 0, d.failed("", &e)
	}
	return uint64(p), nil
}

// driverFree and the other releases ignore errors: a lost device or an ending
// process answers them with the same code, and nobody can act on it.
func (d *device) driverFree(p uint64) {
	e := newErr()
	C.sl_mem_free(d.ctx, C.sl_ptr(p), &e)
}

func (d *device) poolSetup() error {
	e := newErr()
	if C.sl_pool_setup(d.ctx, C.int(d.info.Ordinal), &e) != 0 {
		return d.failed("", &e)
	}
	return nil
}

func (d *device) poolAlloc(n int, s streamPtr) (uint64, error) {
	e := newErr()
	var p C.sl_ptr
	if C.sl_pool_alloc(d.ctx, C.size_t(n), s, &p, &e) != 0 {
		return 0, d.failed("", &e)
	}
	return uint64(p), nil
}

func (d *device) poolFree(p uint64, s streamPtr) {
	e := newErr()
	C.sl_pool_free(d.ctx, C.sl_ptr(p), s, &e)
}

// hostAlloc takes pinned memory that the device addresses as the CPU does.
func (d *device) hostAlloc(n int) (uint64, error) {
	e := newErr()
	var p unsafe.Pointer
	var dev C.sl_ptr
	if C.sl_host_alloc(d.ctx, C.size_t(n), &p, &dev, &e) != 0 {
		return 0, d.failed("", &e)
	}
	if uint64(dev) != uint64(uintptr(p)) {
		C.sl_host_free(d.ctx, p, &e)
		return 0, invalid("cuMemHostAlloc", "this system has no unified addressing", ascendrt.ErrUnsupported)
	}
	return uint64(dev), nil
}

func (d *device) hostFree(p uint64) {
	e := newErr()
	C.sl_host_free(d.ctx, pointer(p), &e)
}

// pointer turns an address of C memory into a pointer.
func pointer(p uint64) unsafe.Pointer {
	return *(*unsafe.Pointer)(unsafe.Pointer(&p))
}

func (d *device) ipcExport(base uint64) ([]byte, error) {
	e := newErr()
	out := make([]byte, 64)
	if C.sl_ipc_export(d.ctx, C.sl_ptr(base), (*C.uchar)(&out[0]), &e) != 0 {
		return nil, d.failed("", &e)
	}
	return out, nil
}

func (d *device) ipcImport(h []byte) (uint64, error) {
	e := newErr()
	var p C.sl_ptr
	if C.sl_ipc_import(d.ctx, (*C.uchar)(&h[0]), &p, &e) != 0 {
		return 0, d.failed("", &e)
	}
	d.wantLists()
	return uint64(p), nil
}

func (d *device) ipcClose(p uint64) {
	e := newErr()
	C.sl_ipc_close(d.ctx, C.sl_ptr(p), &e)
}

func (d *device) canPeer(peer int) (bool, error) {
	e := newErr()
	var can C.int
	if C.sl_can_peer(C.int(d.info.Ordinal), C.int(peer), &can, &e) != 0 {
		return false, d.failed("", &e)
	}
	return can != 0, nil
}

func (d *device) enablePeer(peer ctxPtr) error {
	e := newErr()
	if C.sl_enable_peer(d.ctx, peer, &e) != 0 {
		return d.failed("", &e)
	}
	return nil
}

func (d *device) streamNew(priority int) (streamPtr, error) {
	e := newErr()
	var s streamPtr
	if C.sl_stream_new(d.ctx, C.int(priority), &s, &e) != 0 {
		return nil, d.failed("", &e)
	}
	return s, nil
}

func (d *device) streamFree(s streamPtr) {
	e := newErr()
	C.sl_stream_free(d.ctx, s, &e)
}

func (d *device) eventNew(flags uint32) (eventPtr, error) {
	e := newErr()
	var ev eventPtr
	if C.sl_event_new(d.ctx, C.uint(flags), &ev, &e) != 0 {
		return nil, d.failed("", &e)
	}
	return ev, nil
}

func (d *device) eventFree(ev eventPtr) {
	e := newErr()
	C.sl_event_free(d.ctx, ev, &e)
}

func (d *device) eventDone(ev eventPtr) (bool, error) {
	e := newErr()
	var done C.int
	if C.sl_event_done(d.ctx, ev, &done, &e) != 0 {
		return false, d.failed("", &e)
	}
	return done != 0, nil
}

func (d *device) eventElapsed(from, to eventPtr) (time.Duration, error) {
	e := newErr()
	var ms C.float
	if C.sl_event_elapsed(d.ctx, from, to, &ms, &e) != 0 {
		return 0, d.failed("an event was not reached, or has no time", &e)
	}
	return time.Duration(float64(ms) * float64(time.Millisecond)), nil
}

const pageWords = C.SL_PAGE_WORDS

// newWords makes a page of words that the device writes at dev.
func (d *device) newWords() (page *[pageWords]uint64, dev uint64, err error) {
	e := newErr()
	var p unsafe.Pointer
	var dp C.sl_ptr
	if C.sl_words(d.ctx, &p, &dp, &e) != 0 {
		return nil, 0, d.failed("", &e)
	}
	return (*[pageWords]uint64)(p), uint64(dp), nil
}

func (d *device) endWords(page *[pageWords]uint64) {
	e := newErr()
	C.sl_words_end(d.ctx, unsafe.Pointer(page), &e)
}

// pollWord waits in C for at most the given time.
func pollWord(p *uint64, seq uint64, at time.Duration) bool {
	return C.sl_wait((*C.uint64_t)(p), C.uint64_t(seq), C.int64_t(at.Microseconds())) != 0
}

func (d *device) streamCheck(s streamPtr) error {
	e := newErr()
	if C.sl_stream_check(d.ctx, s, &e) != 0 {
		return d.failed("", &e)
	}
	return nil
}

func (d *device) moduleLoad(image []byte) (modulePtr, error) {
	e := newErr()
	var m modulePtr
	if C.sl_module_load(d.ctx, unsafe.Pointer(&image[0]), &m, &e) != 0 {
		return nil, d.failed("", &e)
	}
	return m, nil
}

func (d *device) moduleFree(m modulePtr) {
	e := newErr()
	C.sl_module_free(d.ctx, m, &e)
}

func (d *device) moduleFunc(m modulePtr, fn string) (f funcPtr, params int, err error) {
	e := newErr()
	cs := C.CString(fn)
	defer C.free(unsafe.Pointer(cs))
	var n C.uint64_t
	if C.sl_module_func(d.ctx, m, cs, &f, &n, &e) != 0 {
		return nil, 0, d.failed(fn, &e)
	}
	return f, int(n), nil
}

func (d *device) funcShared(f funcPtr, n int) error {
	e := newErr()
	if C.sl_func_shared(d.ctx, f, C.int(n), &e) != 0 {
		return d.failed("", &e)
	}
	return nil
}

// funcClusters is how many clusters of so many blocks of a kernel find room at once,
// on the multiprocessors that this process may use; 0 if the driver cannot tell.
func (d *device) funcClusters(f funcPtr, width, threads, shared int) (int, error) {
	var n C.int
	e := newErr()
	if C.sl_func_clusters(d.ctx, f, C.unsigned(width), C.unsigned(threads), C.unsigned(shared), &n, &e) != 0 {
		return 0, d.failed("", &e)
	}
	return int(n), nil
}

// replay submits translated records in one crossing.
func (d *device) replay(s streamPtr, words []uint64) error {
	var flags C.uint
	if d.Options.Debug == ascendrt.DebugSync {
		flags = C.SL_SYNC_EACH
	}
	e := newErr()
	if C.sl_replay(d.ctx, s, (*C.uint64_t)(&words[0]), C.size_t(len(words)), flags, &e) != 0 {
		return d.failed("", &e)
	}
	return nil
}

// captureGraph records translated records as a graph in one crossing.
func (d *device) captureGraph(s streamPtr, words []uint64, upload bool, nodes []nodePtr) (g graphPtr, x execPtr, count int, err error) {
	e := newErr()
	var first *C.uint64_t
	if len(words) > 0 {
		first = (*C.uint64_t)(&words[0])
	}
	var np *nodePtr
	if len(nodes) > 0 {
		np = &nodes[0]
	}
	var up C.int
	if upload {
		up = 1
	}
	var n C.size_t
	if C.sl_capture(d.ctx, s, first, C.size_t(len(words)), up, &g, &x, np, &n, &e) != 0 {
		return nil, nil, 0, d.failed("", &e)
	}
	return g, x, int(n), nil
}

func (d *device) graphFree(g graphPtr, x execPtr) {
	e := newErr()
	C.sl_graph_free(d.ctx, g, x, &e)
}

func (d *device) updateNode(x execPtr, n nodePtr, record []uint64) error {
	e := newErr()
	if C.sl_update(d.ctx, x, n, (*C.uint64_t)(&record[0]), &e) != 0 {
		return d.failed("", &e)
	}
	return nil
}
