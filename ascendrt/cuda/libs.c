#include "shim.h"
#include "libs.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int sl_nvrtc_version(int *major, int *minor) { return NVRTC.nvrtcVersion ? (int)NVRTC.nvrtcVersion(major, minor) : -1; }

int sl_compile(const char *src, const char *name, int n, const char *const *opts, char **cubin, size_t *size, char **log, sl_err *e) {
	sl_program p = NULL;
	const char *call = "nvrtcCreateProgram";
	size_t logn = 0;
	*cubin = *log = NULL;
	*size = 0;
	unsigned rc = NVRTC.nvrtcCreateProgram(&p, src, name, 0, NULL, NULL);
	if (!rc) {
		call = "nvrtcCompileProgram";
		rc = NVRTC.nvrtcCompileProgram(p, n, opts);
		if (!NVRTC.nvrtcGetProgramLogSize(p, &logn) && logn > 1 && (*log = malloc(logn + 1))) {
			NVRTC.nvrtcGetProgramLog(p, *log);
			(*log)[logn] = 0;
		}
	}
	if (!rc) {
		call = "nvrtcGetCUBIN";
		rc = NVRTC.nvrtcGetCUBINSize(p, size);
		if (!rc && *size && (*cubin = malloc(*size))) rc = NVRTC.nvrtcGetCUBIN(p, *cubin);
		else if (!rc) rc = 5; // no cubin without a real architecture
	}
	if (p) NVRTC.nvrtcDestroyProgram(&p);
	return rc ? sl_fail_text(SL_LIB_NVRTC, (int)rc, call, NVRTC.nvrtcGetErrorString(rc), e) : 0;
}

static int lt_fail(unsigned rc, const char *call, sl_err *e) {
	return sl_fail_text(SL_LIB_CUBLASLT, (int)rc, call, LT.cublasLtGetStatusString ? LT.cublasLtGetStatusString(rc) : "", e);
}
#define LT_TRY(call, ...) do { unsigned rc_ = LT.call(__VA_ARGS__); if (rc_) { fail = lt_fail(rc_, #call, e); goto out; } } while (0)

int sl_lt_new(sl_ctx c, sl_lt *h, sl_err *e) {
	SL_CTX(c);
	unsigned rc = LT.cublasLtCreate(h);
	return rc ? lt_fail(rc, "cublasLtCreate", e) : 0;
}

int sl_lt_free(sl_ctx c, sl_lt h, sl_err *e) {
	SL_CTX(c);
	unsigned rc = LT.cublasLtDestroy(h);
	return rc ? lt_fail(rc, "cublasLtDestroy", e) : 0;
}

struct sl_lt_plan {
	sl_lt handle;
	sl_lt_desc desc;
	sl_lt_layout w, x, y;
	sl_lt_algo algo;
	float beta;
};

void sl_lt_plan_free(sl_lt_plan *p) {
	if (!p) return;
	if (p->desc) LT.cublasLtMatmulDescDestroy(p->desc);
	if (p->w) LT.cublasLtMatrixLayoutDestroy(p->w);
	if (p->x) LT.cublasLtMatrixLayoutDestroy(p->x);
	if (p->y) LT.cublasLtMatrixLayoutDestroy(p->y);
	free(p);
}

// The library is column-major: y as it lies is Y'[m,rows] = op(W)·X'[k,rows].
int sl_lt_plan_new(sl_ctx c, sl_lt h, int type, int out, int64_t rows, int64_t k, int64_t m, int km, int64_t xs, int64_t ws, int64_t ys, int add, size_t workspace, sl_lt_plan **plan, sl_err *e) {
	enum { R_32F = 0, COMPUTE_32F = 68, TRANSA = 3, MAX_WORKSPACE = 1 };
	int fail = 0, got = 0, trans = !km;
	sl_lt_pref pref = NULL;
	sl_lt_result best;
	SL_CTX(c);
	sl_lt_plan *p = calloc(1, sizeof *p);
	if (!p) return sl_fail_text(SL_LIB_CUBLASLT, 3, "calloc", "out of host memory", e);
	p->handle = h;
	p->beta = add ? 1 : 0;
	LT_TRY(cublasLtMatmulDescCreate, &p->desc, COMPUTE_32F, R_32F);
	LT_TRY(cublasLtMatmulDescSetAttribute, p->desc, TRANSA, &trans, sizeof trans);
	LT_TRY(cublasLtMatrixLayoutCreate, &p->w, (unsigned)type, (uint64_t)(km ? m : k), (uint64_t)(km ? k : m), ws);
	LT_TRY(cublasLtMatrixLayoutCreate, &p->x, (unsigned)type, (uint64_t)k, (uint64_t)rows, xs);
	LT_TRY(cublasLtMatrixLayoutCreate, &p->y, (unsigned)out, (uint64_t)m, (uint64_t)rows, ys);
	LT_TRY(cublasLtMatmulPreferenceCreate, &pref);
	LT_TRY(cublasLtMatmulPreferenceSetAttribute, pref, MAX_WORKSPACE, &workspace, sizeof workspace);
	LT_TRY(cublasLtMatmulAlgoGetHeuristic, h, p->desc, p->w, p->x, p->y, p->y, pref, 1, &best, &got);
	if (got < 1) { fail = sl_fail_text(SL_LIB_CUBLASLT, 15, "cublasLtMatmulAlgoGetHeuristic", "no algorithm for this shape", e); goto out; }
	p->algo = best.algo;
out:
	if (pref) LT.cublasLtMatmulPreferenceDestroy(pref);
	if (fail) sl_lt_plan_free(p);
	else *plan = p;
	return fail;
}

int sl_lt_run(sl_lt_plan *p, void *const *xwy, void *ws, size_t wsn, sl_stream s, sl_err *e) {
	const float one = 1;
	unsigned rc = LT.cublasLtMatmul(p->handle, p->desc, &one, xwy[1], p->w, xwy[0], p->x, &p->beta, xwy[2], p->y, xwy[2], p->y, &p->algo, ws, wsn, s);
	return rc ? lt_fail(rc, "cublasLtMatmul", e) : 0;
}

static int nccl_fail(int rc, const char *call, sl_comm m, sl_err *e) {
	const char *last = NCCL.ncclGetLastError ? NCCL.ncclGetLastError(m) : NULL;
	char text[sizeof e->text];
	snprintf(text, sizeof text, "%s%s%.100s", NCCL.ncclGetErrorString(rc), last && *last ? ": " : "", last ? last : "");
	return sl_fail_text(SL_LIB_NCCL, rc, call, text, e);
}

int sl_nccl_id_new(unsigned char out[128], sl_err *e) {
	sl_nccl_id id;
	int rc = NCCL.ncclGetUniqueId(&id);
	memcpy(out, &id, sizeof id);
	return rc ? nccl_fail(rc, "ncclGetUniqueId", NULL, e) : 0;
}

int sl_nccl_init(sl_ctx c, const unsigned char in[128], int rank, int size, sl_comm *out, sl_err *e) {
	sl_nccl_id id;
	memcpy(&id, in, sizeof id);
	SL_CTX(c);
	int rc = NCCL.ncclCommInitRank(out, size, id, rank);
	return rc ? nccl_fail(rc, "ncclCommInitRank", NULL, e) : 0;
}

int sl_nccl_free(sl_ctx c, sl_comm m, int abort, sl_err *e) {
	SL_CTX(c);
	int rc = abort ? NCCL.ncclCommAbort(m) : NCCL.ncclCommDestroy(m);
	return rc ? nccl_fail(rc, abort ? "ncclCommAbort" : "ncclCommDestroy", NULL, e) : 0;
}

// a: comm, src, dst, count, type, op or ranks. Group state is the thread's: a
// group begins and ends within this call.
int sl_nccl_run(unsigned kind, const uint64_t *a, uint64_t elem, sl_stream s, sl_err *e) {
	sl_comm m = (sl_comm)a[0];
	const char *src = (const char *)a[1];
	char *dst = (char *)a[2];
	size_t n = a[3];
	int type = (int)a[4], rc, end;
	switch (kind) {
	case SL_REDUCE:
		rc = NCCL.ncclAllReduce(src, dst, n, type, (int)a[5], m, s);
		return rc ? nccl_fail(rc, "ncclAllReduce", m, e) : 0;
	case SL_GATHER_ALL:
		rc = NCCL.ncclAllGather(src, dst, n, type, m, s);
		return rc ? nccl_fail(rc, "ncclAllGather", m, e) : 0;
	}
	rc = NCCL.ncclGroupStart();
	for (uint64_t peer = 0; !rc && peer < a[5]; peer++) {
		rc = NCCL.ncclSend(src + peer * n * elem, n, type, (int)peer, m, s);
		if (!rc) rc = NCCL.ncclRecv(dst + peer * n * elem, n, type, (int)peer, m, s);
	}
	end = NCCL.ncclGroupEnd();
	return rc || end ? nccl_fail(rc ? rc : end, "ncclSend/ncclRecv", m, e) : 0;
}
