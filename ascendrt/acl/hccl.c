#include "shim.h"
#include <stdio.h>

static int hccl_fail(uint32_t rc, const char *call, asc_err *e) { return asc_fail(ASC_LIB_HCCL, (int)rc, call, e); }

int asc_hccl_id(aclrtContext c, HcclRootInfo *out, asc_err *e) {
	ASC_CTX(c);
	uint32_t rc = HCCL.HcclGetRootInfo(out);
	return rc ? hccl_fail(rc, "HcclGetRootInfo", e) : 0;
}

int asc_hccl_init(aclrtContext c, const HcclRootInfo *id, uint32_t rank, uint32_t size, HcclComm *out, asc_err *e) {
	ASC_CTX(c);
	uint32_t rc = HCCL.HcclCommInitRootInfo(size, id, rank, out);
	return rc ? hccl_fail(rc, "HcclCommInitRootInfo", e) : 0;
}

int asc_hccl_free(aclrtContext c, HcclComm m, asc_err *e) {
	ASC_CTX(c);
	uint32_t rc = HCCL.HcclCommDestroy(m);
	return rc ? hccl_fail(rc, "HcclCommDestroy", e) : 0;
}

int asc_hccl_run(unsigned kind, const uint64_t *a, aclrtStream s, asc_err *e) {
	HcclComm m = (HcclComm)(uintptr_t)a[0];
	void *src = (void *)(uintptr_t)a[1], *dst = (void *)(uintptr_t)a[2];
	uint32_t type = (uint32_t)a[4], rc;
	switch (kind) {
	case ASC_REDUCE:
		rc = HCCL.HcclAllReduce(src, dst, a[3], type, (uint32_t)a[5], m, s);
		return rc ? hccl_fail(rc, "HcclAllReduce", e) : 0;
	case ASC_GATHER_ALL:
		rc = HCCL.HcclAllGather(src, dst, a[3], type, m, s);
		return rc ? hccl_fail(rc, "HcclAllGather", e) : 0;
	}
	rc = HCCL.HcclAlltoAll(src, a[3], type, dst, a[3], type, m, s);
	return rc ? hccl_fail(rc, "HcclAlltoAll", e) : 0;
}
