#include "aclnn.h"
#include <stdlib.h>
#include <string.h>

#define A(i) (r[2 + (i)])
#define PAYLOAD (r + ASC_REC_WORDS)
#define P(x) ((void *)(uintptr_t)(x))

static int batch(uint64_t *r, aclrtStream s, const char **call) {
	size_t n = A(0), at = 0, failed = 0;
	void **dst = (void **)PAYLOAD, **src = dst + n;
	size_t *size = (size_t *)(src + n), *room = size + n;
	uint32_t kind = A(1) == 1 ? SL_COPY_H2D : SL_COPY_D2H;
	if (ACL.aclrtMemcpyBatchAsync && n && A(1)) {
		aclrtMemcpyBatchAttr attr;
		memset(&attr, 0, sizeof attr);
		aclrtMemLocation host = { 0, SL_LOC_HOST }, device = { (uint32_t)A(2), SL_LOC_DEVICE };
		attr.dstLoc = A(1) == 1 ? device : host;
		attr.srcLoc = A(1) == 1 ? host : device;
		*call = "aclrtMemcpyBatchAsync";
		int rc = ACL.aclrtMemcpyBatchAsync(dst, room, src, size, n, &attr, &at, 1, &failed, s);
		if (rc != ACL_ERROR_RT_FEATURE_NOT_SUPPORT) return rc; // else one by one
		if (ACL.aclGetRecentErrMsg) ACL.aclGetRecentErrMsg();
	}
	*call = "aclrtMemcpyAsync";
	for (size_t i = 0; i < n; i++) {
		int rc = ACL.aclrtMemcpyAsync(dst[i], room[i], src[i], size[i], A(1) ? kind : SL_COPY_D2D, s);
		if (rc) return rc;
	}
	return 0;
}

// one does a single record; *s is the current stream.
static int one(uint64_t *r, aclrtStream *s, aclrtTaskGrp *groups, asc_err *e) {
	int rc = 0;
	const char *call = "";
#define DO(name, ...) do { call = #name; rc = ACL.name(__VA_ARGS__); } while (0)
	switch ((unsigned)r[0]) {
	case ASC_COPY: DO(aclrtMemcpyAsync, P(A(0)), A(4), P(A(1)), A(2), (uint32_t)A(3), *s); break;
	case ASC_COPY_BATCH: rc = batch(r, *s, &call); break;
	case ASC_FILL: DO(aclrtMemsetAsync, P(A(0)), A(3), (int32_t)A(2), A(1), *s); break;
	case ASC_RECORD: case ASC_SIGNAL: DO(aclrtRecordEvent, P(A(0)), *s); break;
	case ASC_WAIT: DO(aclrtStreamWaitEvent, *s, P(A(0))); break;
	case ASC_RESET: DO(aclrtResetEvent, P(A(0)), *s); break;
	case ASC_STREAM: *s = P(A(0)); break;
	case ASC_GRAPH: DO(aclmdlRIExecuteAsync, P(A(0)), *s); break;
	case ASC_GROUP_BEGIN: DO(aclmdlRICaptureTaskGrpBegin, *s); break;
	case ASC_GROUP_END: DO(aclmdlRICaptureTaskGrpEnd, *s, &groups[A(0)]); break;
	case ASC_UPDATE_BEGIN: DO(aclmdlRICaptureTaskUpdateBegin, *s, P(A(0))); break;
	case ASC_UPDATE_END: DO(aclmdlRICaptureTaskUpdateEnd, *s); break;
	case ASC_LAUNCH:
		ASC_NEED(aclrtLaunchKernelWithHostArgs);
		DO(aclrtLaunchKernelWithHostArgs, P(A(0)), (uint32_t)A(1), *s, NULL, PAYLOAD, A(2), NULL, 0);
		break;
	case ASC_OP: return asc_aclnn_run(PAYLOAD, P(A(0)), A(1), *s, e);
	case ASC_REDUCE: case ASC_GATHER_ALL: case ASC_ALL_TO_ALL: return asc_hccl_run((unsigned)r[0], &A(0), *s, e);
	default: return asc_fail_text(ASC_LIB_ACL, -2, "replay", "unknown record", e);
	}
	return rc ? asc_fail(ASC_LIB_ACL, rc, call, e) : 0;
}

// run does all records. Behind a failed one only stream switches, signals and
// ends of updates run, so that the points of accepted work still pass and no
// update stays open.
static int run(aclrtStream s, uint64_t *words, size_t n, unsigned flags, aclrtTaskGrp *groups, asc_err *e) {
	asc_err ignored;
	int failed = 0, updating = 0;
	for (uint64_t *r = words; r < words + n; r += ASC_REC_WORDS + (r[0] >> 32)) {
		unsigned kind = (unsigned)r[0];
		if (failed && kind != ASC_SIGNAL && kind != ASC_STREAM && !(kind == ASC_UPDATE_END && updating)) continue;
		int rc = one(r, &s, groups, failed ? &ignored : e);
		if (kind == ASC_UPDATE_BEGIN) updating = rc == 0;
		if (kind == ASC_UPDATE_END) updating = 0;
		// A gate holds its graph back, and what it waits for may stand behind it.
		if (!rc && (flags & ASC_SYNC_EACH) && (kind == ASC_COPY || kind == ASC_FILL || kind == ASC_OP || kind == ASC_LAUNCH) && !updating) {
			int sync = ACL.aclrtSynchronizeStreamWithTimeout(s, -1);
			if (sync) rc = asc_fail(ASC_LIB_ACL, sync, "aclrtSynchronizeStreamWithTimeout", e);
		}
		if (rc && !failed) {
			failed = rc;
			e->index = (int32_t)(uint32_t)r[1];
		}
	}
	return failed;
}

int asc_replay(aclrtContext c, aclrtStream s, uint64_t *words, size_t n, unsigned flags, asc_err *e) {
	ASC_CTX(c);
	return run(s, words, n, flags, NULL, e);
}

// The whole capture is one call: the thread cannot change between begin and
// end, no other code of this thread runs in it, and every error reaches End.
int asc_capture(aclrtContext c, aclrtStream s, uint64_t *words, size_t n, aclmdlRI *g, aclrtTaskGrp *groups, asc_err *e) {
	*g = NULL;
	ASC_CTX(c);
	ASC_NEED(aclmdlRICaptureBegin);
	ASC_NEED(aclmdlRICaptureEnd);
	ASC_NEED(aclmdlRIExecuteAsync);
	ASC_NEED(aclmdlRIDestroy);
	ASC_TRY(aclmdlRICaptureBegin, s, SL_CAPTURE_THREAD_LOCAL);
	int failed = run(s, words, n, 0, groups, e);
	int rc = ACL.aclmdlRICaptureEnd(s, g);
	if (!failed && rc) failed = asc_fail(ASC_LIB_ACL, rc, "aclmdlRICaptureEnd", e);
	else if (rc && ACL.aclGetRecentErrMsg) ACL.aclGetRecentErrMsg();
	if (failed && *g) {
		ACL.aclmdlRIDestroy(*g);
		*g = NULL;
	}
	return failed;
}

int asc_graph_free(aclrtContext c, aclmdlRI g, asc_err *e) {
	ASC_CTX(c);
	ASC_TRY(aclmdlRIDestroy, g);
	return 0;
}
