//go:build cgo && linux

package acl

/*
#include "shim.h"

#cgo noescape asc_hccl_id
#cgo nocallback asc_hccl_id
#cgo noescape asc_hccl_init
#cgo nocallback asc_hccl_init
#cgo noescape asc_hccl_free
#cgo nocallback asc_hccl_free
*/
import "C"

import (
	"fmt"
	"unsafe"

	"github.com/sluice-serving/sluice/ascendrt"
	"github.com/sluice-serving/sluice/ascendrt/internal/base"
)

const rootInfoBytes = C.sizeof_HcclRootInfo

// communicator is a rank of an HCCL group.
type communicator = base.Rank[commPtr]

func (d *device) UniqueID() ([]byte, error) {
	if err := d.Alive(); err != nil {
		return nil, err
	}
	if err := need("collectives", libHCCL); err != nil {
		return nil, err
	}
	id := make([]byte, rootInfoBytes)
	e := newErr()
	if C.asc_hccl_id(d.ctx, (*C.HcclRootInfo)(unsafe.Pointer(&id[0])), &e) != 0 {
		return nil, d.failed("", &e)
	}
	return id, nil
}

func (d *device) NewCommunicator(id []byte, rank, size int) (ascendrt.Communicator, error) {
	if err := d.Alive(); err != nil {
		return nil, err
	}
	if err := need("collectives", libHCCL); err != nil {
		return nil, err
	}
	if err := d.CheckRank(id, rootInfoBytes, rank, size); err != nil {
		return nil, err
	}
	var raw commPtr
	e := newErr()
	if C.asc_hccl_init(d.ctx, (*C.HcclRootInfo)(unsafe.Pointer(&id[0])), C.uint32_t(rank), C.uint32_t(size), &raw, &e) != 0 {
		return nil, d.failed("", &e)
	}
	return base.NewRank(&d.Core, raw, rank, size, d.leave), nil
}

// leave leaves a group. On a lost device nothing is left to give back.
func (d *device) leave(raw commPtr, lost bool) error {
	if lost {
		return nil
	}
	return d.commFree(raw)
}

func (d *device) commFree(raw commPtr) error {
	e := newErr()
	if C.asc_hccl_free(d.ctx, raw, &e) != 0 {
		return d.failed("", &e)
	}
	return nil
}

// hcclTypes are the numbers that HCCL gives to types.
var hcclTypes = map[ascendrt.DType]uint64{
	ascendrt.Int32: C.SL_HCCL_INT32, ascendrt.Float16: C.SL_HCCL_FP16, ascendrt.Float32: C.SL_HCCL_FP32, ascendrt.Int64: C.SL_HCCL_INT64,
	ascendrt.Uint8: C.SL_HCCL_UINT8, ascendrt.BFloat16: C.SL_HCCL_BFP16,
}

// collective translates one.
func (t *translator) collective(r ascendrt.Record) error {
	c, err := base.Handle[*communicator](&t.d.Core, r.A[0], "communicator")
	if err != nil {
		return err
	}
	typ := ascendrt.DType(r.A[4])
	number, ok := hcclTypes[typ]
	if !ok {
		return fmt.Errorf("type %v: %w", typ, ascendrt.ErrUnsupported)
	}
	n := int(r.A[3])
	if n == 0 {
		return nil
	}
	kind := uint32(recReduce)
	op := [...]uint64{C.SL_HCCL_SUM, C.SL_HCCL_MAX, C.SL_HCCL_MIN}[min(r.A[5], 2)]
	switch r.Kind {
	case ascendrt.KindGatherAll:
		kind = recGatherAll
	case ascendrt.KindAllToAll:
		kind = recAllToAll
	}
	if err := t.Exchange(r, c.Size()); err != nil {
		return err
	}
	t.nodes++
	t.Record(kind, 0, word(c.Raw), r.A[1], r.A[2], uint64(n), number, op)
	return nil
}
