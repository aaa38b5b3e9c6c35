//go:build cgo && linux

package cuda

/*
#include <stdlib.h>
#include "shim.h"

#cgo nocallback sl_compile
#cgo noescape sl_lt_new
#cgo nocallback sl_lt_new
#cgo noescape sl_lt_free
#cgo nocallback sl_lt_free
#cgo noescape sl_lt_plan_new
#cgo nocallback sl_lt_plan_new
#cgo noescape sl_lt_plan_free
#cgo nocallback sl_lt_plan_free
#cgo noescape sl_nccl_id_new
#cgo nocallback sl_nccl_id_new
#cgo noescape sl_nccl_init
#cgo nocallback sl_nccl_init
#cgo noescape sl_nccl_free
#cgo nocallback sl_nccl_free
*/
import "C"

import (
	"fmt"
	"strings"
	"sync"
	"unsafe"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/internal/base"
)

// nvrtc compiles a source; the compiler's log is in the error.
func nvrtc(p ascendrt.Program, opts []string) ([]byte, error) {
	src, pname := C.CString(string(p.Data)), C.CString(p.Name)
	defer C.free(unsafe.Pointer(src))
	defer C.free(unsafe.Pointer(pname))
	arr := (**C.char)(C.malloc(C.size_t(len(opts)+1) * C.size_t(unsafe.Sizeof(src))))
	defer C.free(unsafe.Pointer(arr))
	list := unsafe.Slice(arr, len(opts))
	for i, o := range opts {
		list[i] = C.CString(o)
		defer C.free(unsafe.Pointer(list[i]))
	}
	e := newErr()
	var cubin, log *C.char
	var size C.size_t
	rc := C.sl_compile(src, pname, C.int(len(opts)), arr, &cubin, &size, &log, &e)
	defer C.free(unsafe.Pointer(cubin))
	defer C.free(unsafe.Pointer(log))
	if rc != 0 {
		err := toError(p.Name, &e).(*ascendrt.Error)
		if log != nil {
			err.Text += "\n" + strings.TrimSpace(C.GoString(log))
		}
		return nil, err
	}
	return C.GoBytes(unsafe.Pointer(cubin), C.int(size)), nil
}

// blas is the device's cuBLASLt handle, made at first use.
type blas struct {
	mu     sync.Mutex
	handle C.sl_lt
	plans  map[blasShape]*C.sl_lt_plan
}

const blasWorkspace = 32 << 20

func (b *blas) get(d *device) (C.sl_lt, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.handle != nil {
		return b.handle, nil
	}
	if err := d.Alive(); err != nil { // a Close that comes later waits for the lock
		return nil, err
	}
	if err := need("matmul with SumFree", libCUBLASLt); err != nil {
		return nil, err
	}
	e := newErr()
	if C.sl_lt_new(d.ctx, &b.handle, &e) != 0 {
		return nil, d.failed("", &e)
	}
	return b.handle, nil
}

func (b *blas) close(d *device) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.plans {
		C.sl_lt_plan_free(p)
	}
	if b.handle != nil {
		e := newErr()
		C.sl_lt_free(d.ctx, b.handle, &e)
	}
	b.handle, b.plans = nil, nil
}

// blasShape is a product x[rows,in]·Wᵀ for which the library has a plan.
type blasShape struct {
	typ, out    ascendrt.DType
	rows, in, m int
	km, add     bool
	xs, ws, ys  int
}

// plan gives the library's plan of a shape, made once and kept for the device's
// life: graphs may hold it.
func (b *blas) plan(d *device, k blasShape) (*C.sl_lt_plan, error) {
	h, err := b.get(d)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if p := b.plans[k]; p != nil {
		return p, nil
	}
	number := func(t ascendrt.DType) C.int {
		if t == ascendrt.BFloat16 {
			return 14
		}
		return 0
	}
	flag := func(v bool) C.int {
		if v {
			return 1
		}
		return 0
	}
	var p *C.sl_lt_plan
	e := newErr()
	if C.sl_lt_plan_new(d.ctx, h, number(k.typ), number(k.out), C.int64_t(k.rows), C.int64_t(k.in), C.int64_t(k.m), flag(k.km),
		C.int64_t(k.xs), C.int64_t(k.ws), C.int64_t(k.ys), flag(k.add), blasWorkspace, &p, &e) != 0 {
		return nil, d.failed(fmt.Sprintf("%d rows, %d to %d", k.rows, k.in, k.m), &e)
	}
	if b.plans == nil {
		b.plans = map[blasShape]*C.sl_lt_plan{}
	}
	b.plans[k] = p
	return p, nil
}

// multiply appends a product by the library; work has blasWorkspace bytes.
func (t *translator) multiply(k blasShape, x, w, y, work uint64) error {
	if k.rows == 0 {
		return nil
	}
	p, err := t.d.blas.plan(t.d, k)
	if err != nil {
		return err
	}
	t.Record(recLt, 0, word(unsafe.Pointer(p)), x, w, y, work, blasWorkspace)
	return nil
}

// planFreeMatmul sends a matmul to cuBLASLt.
func (d *device) planFreeMatmul(s *opState, m ascendrt.MatmulAttr) error {
	if _, err := d.blas.get(d); err != nil {
		return err
	}
	s.ws = blasWorkspace
	s.emit = func(t *translator, ws ascendrt.View, a []ascendrt.Tensor) error {
		return t.multiply(blasShape{typ: s.Spec.Type, out: m.OutType, rows: a[0].Rows(), in: m.In, m: m.Out, km: m.Weights == ascendrt.WeightsKM,
			xs: a[0].Stride(), ws: a[1].Stride(), ys: a[2].Stride()}, at(&a[0]), at(&a[1]), at(&a[2]), uint64(ws.Addr))
	}
	return nil
}

// communicator is a rank of an NCCL group.
type communicator = base.Rank[C.sl_comm]

const idBytes = 128

func (d *device) UniqueID() ([]byte, error) {
	if err := d.Alive(); err != nil {
		return nil, err
	}
	if err := need("collectives", libNCCL); err != nil {
		return nil, err
	}
	id := make([]byte, idBytes)
	e := newErr()
	if C.sl_nccl_id_new((*C.uchar)(&id[0]), &e) != 0 {
		return nil, d.failed("", &e)
	}
	return id, nil
}

func (d *device) NewCommunicator(id []byte, rank, size int) (ascendrt.Communicator, error) {
	if err := d.Alive(); err != nil {
		return nil, err
	}
	if err := need("collectives", libNCCL); err != nil {
		return nil, err
	}
	if err := d.CheckRank(id, idBytes, rank, size); err != nil {
		return nil, err
	}
	var raw C.sl_comm
	e := newErr()
	if C.sl_nccl_init(d.ctx, (*C.uchar)(&id[0]), C.int(rank), C.int(size), &raw, &e) != 0 {
		return nil, d.failed("", &e)
	}
	return base.NewRank(&d.Core, raw, rank, size, d.leave), nil
}

// leave leaves a group. On a lost device the group is aborted instead, which
// waits for nobody.
func (d *device) leave(raw C.sl_comm, lost bool) error {
	var abort C.int
	if lost {
		abort = 1
	}
	e := newErr()
	if C.sl_nccl_free(d.ctx, raw, abort, &e) != 0 {
		return d.failed("", &e)
	}
	return nil
}

// collective translates one: types and reductions get NCCL's numbers.
func (t *translator) collective(r ascendrt.Record) error {
	c, err := base.Handle[*communicator](&t.d.Core, r.A[0], "communicator")
	if err != nil {
		return err
	}
	typ := ascendrt.DType(r.A[4])
	number, ok := map[ascendrt.DType]uint64{ascendrt.Uint8: 1, ascendrt.Int32: 2, ascendrt.Int64: 4, ascendrt.Float16: 6, ascendrt.Float32: 7, ascendrt.BFloat16: 9}[typ]
	if !ok {
		return fmt.Errorf("type %v: %w", typ, ascendrt.ErrUnsupported)
	}
	n := int(r.A[3])
	if n == 0 {
		return nil
	}
	kind, last := uint32(recReduce), []uint64{0, 2, 3}[min(r.A[5], 2)]
	switch r.Kind {
	case ascendrt.KindGatherAll:
		kind, last = recGatherAll, 0
	case ascendrt.KindAllToAll:
		kind, last = recAllToAll, uint64(c.Size())
	}
	if err := t.Exchange(r, c.Size()); err != nil {
		return err
	}
	t.Record(kind, 1, word(unsafe.Pointer(c.Raw)), r.A[1], r.A[2], uint64(n), number, last)
	t.Words = append(t.Words, uint64(typ.Size()))
	return nil
}
