#include "shim.h"
#include <stdlib.h>
#include <string.h>

#define A(i) (r[2 + (i)])
#define PAYLOAD (r + SL_REC_WORDS)

static sl_result launch(const uint64_t *r, sl_stream s) {
	size_t n = A(5);
	void *extra[] = { (void *)SL_LAUNCH_BUFFER_POINTER, (void *)PAYLOAD, (void *)SL_LAUNCH_BUFFER_SIZE, &n, NULL };
	if (A(4) >> 32) {
		struct CUlaunchAttribute_st overlap = { SL_LAUNCH_PROGRAMMATIC, { 0 }, { { 0 } } };
		overlap.value.programmatic = 1;
		struct CUlaunchConfig_st c = { (unsigned)A(1), (unsigned)(A(1) >> 32), (unsigned)A(2), (unsigned)(A(2) >> 32),
			(unsigned)A(3), (unsigned)(A(3) >> 32), (unsigned)A(4), s, &overlap, 1 };
		return CU.cuLaunchKernelEx(&c, (sl_func)A(0), NULL, n ? extra : NULL);
	}
	return CU.cuLaunchKernel((sl_func)A(0), (unsigned)A(1), (unsigned)(A(1) >> 32), (unsigned)A(2), (unsigned)(A(2) >> 32),
		(unsigned)A(3), (unsigned)(A(3) >> 32), (unsigned)A(4), s, NULL, n ? extra : NULL);
}

enum { INVALID_VALUE = 1, NOT_SUPPORTED = 801 };

static sl_result several(sl_ptr *dst, sl_ptr *src, size_t *size, size_t n, sl_stream s, const char **call) {
	size_t zero = 0, at = 0;
	if (CU.cuMemcpyBatchAsync && n) {
		struct CUmemcpyAttributes_st attr = { 1, { 0, 0 }, { 0, 0 }, 0 }; // in stream order
		*call = "cuMemcpyBatchAsync";
		sl_result rc = CU.cuMemcpyBatchAsync(dst, src, size, n, &attr, &zero, 1, &at, s);
		if (rc != INVALID_VALUE && rc != NOT_SUPPORTED) return rc; // else one by one
	}
	*call = "cuMemcpyAsync";
	for (size_t i = 0; i < n; i++) {
		sl_result rc = CU.cuMemcpyAsync(dst[i], src[i], size[i], s);
		if (rc) return rc;
	}
	return 0;
}

static sl_result batch(uint64_t *r, sl_stream s, const char **call) {
	size_t n = A(0);
	sl_ptr *dst = (sl_ptr *)PAYLOAD, *src = dst + n;
	return several(dst, src, (size_t *)(src + n), n, s, call);
}

// rows is one copy where the driver takes these, else one of each row.
static sl_result rows(const uint64_t *r, sl_stream s, const char **call) {
	if (CU.cuMemcpy2DAsync) {
		struct CUDA_MEMCPY2D_st c;
		memset(&c, 0, sizeof c);
		c.dstMemoryType = c.srcMemoryType = SL_MEMORY_UNIFIED;
		c.dstDevice = A(0), c.srcDevice = A(1), c.dstPitch = A(2), c.srcPitch = A(3), c.WidthInBytes = A(4), c.Height = A(5);
		*call = "cuMemcpy2DAsync";
		sl_result rc = CU.cuMemcpy2DAsync(&c, s);
		if (rc != INVALID_VALUE && rc != NOT_SUPPORTED) return rc;
	}
	for (uint64_t i = 0; i < A(5);) {
		sl_ptr dst[64], src[64];
		size_t size[64], n = 0;
		for (; n < 64 && i < A(5); n++, i++) dst[n] = A(0) + i * A(2), src[n] = A(1) + i * A(3), size[n] = A(4);
		sl_result rc = several(dst, src, size, n, s, call);
		if (rc) return rc;
	}
	return 0;
}

// one does a single record; *s is the current stream.
static int one(uint64_t *r, sl_stream *s, sl_err *e) {
	sl_result rc = 0;
	const char *call = "";
#define DO(name, ...) do { call = #name; rc = CU.name(__VA_ARGS__); } while (0)
	switch ((unsigned)r[0]) {
	case SL_COPY_HTOD: DO(cuMemcpyHtoDAsync, A(0), (const void *)A(1), A(2), *s); break;
	case SL_COPY_DTOH: DO(cuMemcpyDtoHAsync, (void *)A(0), A(1), A(2), *s); break;
	case SL_COPY_DTOD: DO(cuMemcpyDtoDAsync, A(0), A(1), A(2), *s); break;
	case SL_COPY_ANY: DO(cuMemcpyAsync, A(0), A(1), A(2), *s); break;
	case SL_COPY_BATCH: rc = batch(r, *s, &call); break;
	case SL_COPY_ROWS: rc = rows(r, *s, &call); break;
	case SL_FILL: DO(cuMemsetD8Async, A(0), (unsigned char)A(2), A(1), *s); break;
	case SL_LAUNCH: call = "cuLaunchKernel"; rc = launch(r, *s); break;
	case SL_RECORD:
		if (A(1) && !CU.cuEventRecordWithFlags) return sl_need(NULL, "cuEventRecordWithFlags", e);
		if (A(1)) DO(cuEventRecordWithFlags, (sl_event)A(0), *s, (unsigned)A(1));
		else DO(cuEventRecord, (sl_event)A(0), *s);
		break;
	case SL_WAIT_EVENT: DO(cuStreamWaitEvent, *s, (sl_event)A(0), (unsigned)A(1)); break;
	case SL_WAIT_WORD: DO(cuStreamWaitValue64, *s, A(0), A(1), SL_WAIT_GEQ); break;
	case SL_SIGNAL: DO(cuStreamWriteValue64, *s, A(0), A(1), 0); break;
	case SL_STREAM: *s = (sl_stream)A(0); break;
	case SL_GRAPH: DO(cuGraphLaunch, (sl_exec)A(0), *s); break;
	case SL_LT: {
		void *xwy[] = { (void *)A(1), (void *)A(2), (void *)A(3) };
		return sl_lt_run((sl_lt_plan *)A(0), xwy, (void *)A(4), A(5), *s, e);
	}
	case SL_REDUCE: case SL_GATHER_ALL: case SL_ALL_TO_ALL:
		return sl_nccl_run((unsigned)r[0], &A(0), PAYLOAD[0], *s, e);
	default:
		return sl_fail_text(SL_LIB_CUDA, -2, "replay", "unknown record", e);
	}
	return rc ? sl_fail(rc, call, e) : 0;
}

// run does all records. Behind a failed one only stream switches and signals
// run, so that the points of accepted work still pass.
static int run(sl_stream s, uint64_t *words, size_t n, unsigned flags, sl_node *nodes, sl_err *e) {
	sl_err ignored;
	int failed = 0;
	for (uint64_t *r = words; r < words + n; r += SL_REC_WORDS + (r[0] >> 32)) {
		if (failed && (unsigned)r[0] != SL_SIGNAL && (unsigned)r[0] != SL_STREAM) continue;
		int rc = one(r, &s, failed ? &ignored : e);
		if (!rc && (flags & SL_SYNC_EACH) && (unsigned)r[0] != SL_STREAM) {
			sl_result sync = CU.cuStreamSynchronize(s);
			if (sync) rc = sl_fail(sync, "cuStreamSynchronize", e);
		}
		if (!rc && nodes && r[1] >> 32) {
			unsigned status;
			uint64_t id;
			sl_graph g;
			const sl_node *deps;
			size_t count;
			sl_result info = CU.cuStreamGetCaptureInfo(s, &status, &id, &g, &deps, &count);
			if (info) rc = sl_fail(info, "cuStreamGetCaptureInfo", e);
			else if (count == 1) nodes[(r[1] >> 32) - 1] = deps[0];
		}
		if (rc && !failed) {
			failed = rc;
			e->index = (int32_t)(uint32_t)r[1];
		}
	}
	return failed;
}

int sl_replay(sl_ctx c, sl_stream s, uint64_t *words, size_t n, unsigned flags, sl_err *e) {
	SL_CTX(c);
	return run(s, words, n, flags, NULL, e);
}

// The whole capture is one call: the thread cannot change between begin and
// end, no other code of this thread runs in it, and every error reaches End.
int sl_capture(sl_ctx c, sl_stream s, uint64_t *words, size_t n, int upload, sl_graph *g, sl_exec *x, sl_node *nodes, size_t *count, sl_err *e) {
	*g = NULL;
	*x = NULL;
	SL_CTX(c);
	SL_TRY(cuStreamBeginCapture, s, SL_CAPTURE_THREAD_LOCAL);
	int failed = run(s, words, n, 0, nodes, e);
	sl_result rc = CU.cuStreamEndCapture(s, g);
	if (!failed && rc) failed = sl_fail(rc, "cuStreamEndCapture", e);
	if (!failed && (rc = CU.cuGraphGetNodes(*g, NULL, count))) failed = sl_fail(rc, "cuGraphGetNodes", e);
	if (!failed && (rc = CU.cuGraphInstantiateWithFlags(x, *g, 0))) failed = sl_fail(rc, "cuGraphInstantiateWithFlags", e);
	if (!failed && upload && CU.cuGraphUpload && (rc = CU.cuGraphUpload(*x, s))) failed = sl_fail(rc, "cuGraphUpload", e);
	if (failed) {
		if (*x) CU.cuGraphExecDestroy(*x);
		if (*g) CU.cuGraphDestroy(*g);
		*g = NULL;
		*x = NULL;
	}
	return failed;
}

int sl_graph_free(sl_ctx c, sl_graph g, sl_exec x, sl_err *e) {
	SL_CTX(c);
	SL_TRY(cuGraphExecDestroy, x);
	SL_TRY(cuGraphDestroy, g);
	return 0;
}

int sl_update(sl_ctx c, sl_exec x, sl_node node, uint64_t *r, sl_err *e) {
	size_t n = A(5);
	void *extra[] = { (void *)SL_LAUNCH_BUFFER_POINTER, PAYLOAD, (void *)SL_LAUNCH_BUFFER_SIZE, &n, NULL };
	struct CUDA_KERNEL_NODE_PARAMS_v2_st p;
	memset(&p, 0, sizeof p);
	p.func = (sl_func)A(0);
	p.gridDimX = (unsigned)A(1), p.gridDimY = (unsigned)(A(1) >> 32), p.gridDimZ = (unsigned)A(2);
	p.blockDimX = (unsigned)(A(2) >> 32), p.blockDimY = (unsigned)A(3), p.blockDimZ = (unsigned)(A(3) >> 32);
	p.sharedMemBytes = (unsigned)A(4);
	p.extra = n ? extra : NULL;
	SL_CTX(c);
	SL_NEED(cuGraphExecKernelNodeSetParams);
	SL_TRY(cuGraphExecKernelNodeSetParams, x, node, &p);
	return 0;
}
