// The C side on the emulated libraries, for the sanitizers: first what the
// emulation refuses, then eight threads that capture, update, launch and wait
// while others allocate, copy and fail on purpose.
// Usage: drive libascendcl.so libnnopbase.so libopapi.so
#include "../aclnn.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(c) do { if (!(c)) { fprintf(stderr, "line %d: %s: %s %d %s\n", __LINE__, #c, e.call, e.code, e.text); exit(1); } } while (0)
#define GIVES(code, call) do { int rc_ = (call); if (rc_ != (code)) { const char *m_ = ACL.aclGetRecentErrMsg(); fprintf(stderr, "line %d: %s gives %d, not %d: %s\n", __LINE__, #call, rc_, code, m_ ? m_ : ""); exit(1); } } while (0)
enum { THREADS = 8, ROUNDS = 15, N = 4096, OP_WORDS = ASC_REC_WORDS + 1 + 3 * ASC_TENSOR_WORDS };
static aclrtContext ctx;

static uint64_t *put(uint64_t *w, uint64_t kind, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t f) {
	uint64_t r[ASC_REC_WORDS] = { kind, 7, a, b, c, d, f };
	memcpy(w, r, sizeof r);
	return w + ASC_REC_WORDS;
}

// add appends y = a + b over one row of 16 floats each.
static uint64_t *add(uint64_t *w, void *a, void *b, void *y) {
	const uint64_t at[] = { (uint64_t)a, (uint64_t)b, (uint64_t)y };
	uint64_t *call = put(w, ASC_OP | (uint64_t)(OP_WORDS - ASC_REC_WORDS) << 32, 0, 0, 0, 0, 0);
	*call++ = ASC_OP_ADD | 3 << 16;
	for (int i = 0; i < 3; i++) {
		uint64_t t[ASC_TENSOR_WORDS] = { at[i], ACL_FLOAT | 2 << 8, 1, 16, 0, 0, 16, 1, 0, 0 };
		memcpy(call, t, sizeof t);
		call += ASC_TENSOR_WORDS;
	}
	return call;
}

static void *bare(void *out) {
	void *p;
	*(int *)out = ACL.aclrtMalloc(&p, 64, 0);
	return NULL;
}

struct ends { aclrtStream s; int rc; };
static void *foreign_end(void *p) {
	struct ends *x = p;
	aclmdlRI g;
	ACL.aclrtSetCurrentContext(ctx);
	x->rc = ACL.aclmdlRICaptureEnd(x->s, &g);
	return NULL;
}

static void refusals(void) {
	asc_err e;
	memset(&e, 0, sizeof e);
	pthread_t t;
	int rc;
	pthread_create(&t, NULL, bare, &rc);
	pthread_join(t, NULL);
	GIVES(ACL_ERROR_RT_CONTEXT_NULL, rc);

	aclrtStream s, s2;
	aclrtEvent ev, flag;
	void *p, *host, *gone;
	char pageable[64] = "";
	CHECK(!asc_stream_new(ctx, &s, &e) && !asc_stream_new(ctx, &s2, &e) && !asc_event_new(ctx, SL_EVENT_SYNC, 0, &ev, &e));
	CHECK(!asc_event_new(ctx, SL_EVENT_EXTERNAL, 1, &flag, &e) && !asc_mem_alloc(ctx, 256, 0, &p, &e) && !asc_host_alloc(ctx, 64, &host, &e));
	CHECK(!asc_mem_alloc(ctx, 256, 0, &gone, &e) && !asc_mem_free(ctx, gone, &e));

	// The text belongs to the failure, once.
	GIVES(ACL_ERROR_RT_PARAM_INVALID, ACL.aclrtMalloc(&gone, 0, 0));
	const char *m = ACL.aclGetRecentErrMsg();
	CHECK(m && strstr(m, "aclrtMalloc"));
	CHECK(ACL.aclGetRecentErrMsg() == NULL);

	GIVES(ACL_ERROR_RT_PARAM_INVALID, ACL.aclrtFree(gone));
	GIVES(ACL_ERROR_RT_PARAM_INVALID, ACL.aclrtMemsetAsync(gone, 64, 0, 64, s));
	GIVES(ACL_ERROR_RT_PARAM_INVALID, ACL.aclrtMemcpyAsync(p, 32, host, 64, SL_COPY_H2D, s)); // destMax
	GIVES(ACL_ERROR_RT_PARAM_INVALID, ACL.aclrtMemcpyAsync((char *)p + 280, 64, host, 64, SL_COPY_H2D, s));
	GIVES(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, ACL.aclrtMemcpyAsync(host, 8, (char *)host + 32, 8, SL_COPY_H2H, s));
	GIVES(0, ACL.aclrtMemcpyAsync(p, 64, pageable, 64, SL_COPY_H2D, s)); // waits
	GIVES(ACL_ERROR_RT_INVALID_HANDLE, ACL.aclrtDestroyEvent(s));
	GIVES(ACL_ERROR_RT_FEATURE_NOT_SUPPORT, ACL.aclrtResetEvent(ev, s));
	GIVES(0, ACL.aclrtStreamWaitEvent(s, flag));
	GIVES(ACL_ERROR_RT_STREAM_SYNC_TIMEOUT, ACL.aclrtSynchronizeStreamWithTimeout(s, 5)); // nobody sets the flag
	GIVES(ACL_ERROR_RT_EVENT_SYNC_TIMEOUT, ACL.aclrtSynchronizeEventWithTimeout(flag, 5));
	GIVES(0, ACL.aclrtRecordEvent(flag, s2));
	GIVES(0, ACL.aclrtSynchronizeStreamWithTimeout(s, -1));

	GIVES(0, ACL.aclrtResetEvent(flag, s));
	GIVES(0, ACL.aclrtSynchronizeStreamWithTimeout(s, -1)); // before the flag is set on another stream
	GIVES(0, ACL.aclrtStreamWaitEvent(s, flag));
	GIVES(0, ACL.aclrtRecordEvent(ev, s));
	GIVES(ACL_ERROR_RT_PARAM_INVALID, ACL.aclrtDestroyEvent(ev)); // still queued
	GIVES(0, ACL.aclrtRecordEvent(flag, s2));
	GIVES(0, ACL.aclrtSynchronizeStreamWithTimeout(s, -1));

	// Captures.
	aclmdlRI g;
	aclrtTaskGrp grp;
	uint32_t status;
	GIVES(ACL_ERROR_RT_STREAM_CAPTURE_IMPLICIT, ACL.aclmdlRICaptureBegin(NULL, SL_CAPTURE_THREAD_LOCAL));
	GIVES(ACL_ERROR_RT_STREAM_NOT_CAPTURED, ACL.aclmdlRICaptureEnd(s, &g));
	GIVES(ACL_ERROR_RT_STREAM_NOT_CAPTURED, ACL.aclmdlRICaptureTaskGrpBegin(s));
#define BEGIN() GIVES(0, ACL.aclmdlRICaptureBegin(s, SL_CAPTURE_THREAD_LOCAL))
#define BROKEN() do { GIVES(0, ACL.aclmdlRICaptureGetInfo(s, &status, NULL)); GIVES(SL_CAPTURE_INVALIDATED, (int)status); \
		GIVES(ACL_ERROR_RT_CAPTURE_INVALIDATED, ACL.aclmdlRICaptureEnd(s, &g)); } while (0)
	BEGIN();
	struct ends x = { s, 0 };
	pthread_create(&t, NULL, foreign_end, &x);
	pthread_join(t, NULL);
	GIVES(ACL_ERROR_RT_STREAM_CAPTURE_WRONG_THREAD, x.rc);
	GIVES(ACL_ERROR_RT_STREAM_CAPTURED, ACL.aclrtStreamQuery(s, &status));
	BROKEN();
	BEGIN();
	GIVES(ACL_ERROR_RT_CAPTURE_MODE_BLOCK_ASYNC, ACL.aclrtMemcpyAsync(p, 64, pageable, 64, SL_COPY_H2D, s));
	BROKEN();
	BEGIN();
	GIVES(ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT, ACL.aclrtMemcpy(p, 64, host, 64, SL_COPY_H2D));
	BROKEN();
	BEGIN();
	uint32_t relaxed = SL_CAPTURE_RELAXED; // a library within a capture asks for a moment of peace
	GIVES(0, ACL.aclmdlRICaptureThreadExchangeMode(&relaxed));
	GIVES(0, ACL.aclrtMemcpy(p, 64, host, 64, SL_COPY_H2D));
	GIVES(0, ACL.aclmdlRICaptureThreadExchangeMode(&relaxed));
	GIVES(ACL_ERROR_RT_CAPTURE_DEPENDENCY, ACL.aclrtStreamWaitEvent(s, ev));
	BROKEN();
	BEGIN();
	GIVES(0, ACL.aclrtRecordEvent(ev, s));
	GIVES(ACL_ERROR_RT_EVENT_CAPTURED, ACL.aclrtSynchronizeEventWithTimeout(ev, 5));
	BROKEN();
	BEGIN();
	GIVES(0, ACL.aclrtRecordEvent(ev, s));
	GIVES(0, ACL.aclrtStreamWaitEvent(s2, ev));
	GIVES(ACL_ERROR_RT_STREAM_CAPTURE_UNMATCHED, ACL.aclmdlRICaptureEnd(s2, &g));
	GIVES(0, ACL.aclrtMemsetAsync(p, 64, 0, 64, s2));
	GIVES(ACL_ERROR_RT_STREAM_UNJOINED, ACL.aclmdlRICaptureEnd(s, &g));
	BEGIN();
	GIVES(0, ACL.aclmdlRICaptureTaskGrpBegin(s));
	GIVES(ACL_ERROR_STREAM_TASK_GROUP_STATUS, ACL.aclrtMemsetAsync(p, 64, 0, 64, s)); // operators alone
	BROKEN();
	BEGIN();
	GIVES(0, ACL.aclmdlRICaptureBegin(s2, SL_CAPTURE_THREAD_LOCAL));
	GIVES(0, ACL.aclmdlRICaptureTaskGrpBegin(s));
	GIVES(ACL_ERROR_STREAM_TASK_GROUP_INTR, ACL.aclrtMemsetAsync(p, 64, 0, 64, s2)); // another capture
	GIVES(ACL_ERROR_RT_CAPTURE_INVALIDATED, ACL.aclmdlRICaptureEnd(s2, &g));
	GIVES(0, ACL.aclmdlRICaptureTaskGrpEnd(s, &grp));
	GIVES(0, ACL.aclmdlRICaptureEnd(s, &g));

	// Updates.
	uint64_t words[2 * OP_WORDS];
	GIVES(ACL_ERROR_STREAM_TASK_GROUP_STATUS, ACL.aclmdlRICaptureTaskUpdateEnd(s2));
	GIVES(0, ACL.aclmdlRICaptureTaskUpdateBegin(s2, grp));
	GIVES(ACL_ERROR_STREAM_TASK_GROUP_STATUS, ACL.aclmdlRICaptureTaskUpdateBegin(s, grp)); // one at a time
	GIVES(ACL_ERROR_STREAM_TASK_GROUP_STATUS, ACL.aclrtRecordEvent(ev, s2));
	add(words, p, p, p);
	CHECK(!asc_aclnn_run(words + ASC_REC_WORDS, NULL, 0, s2, &e));
	GIVES(ACL_ERROR_RT_MODEL_UPDATE_FAILED, ACL.aclmdlRICaptureTaskUpdateEnd(s2)); // the group was empty
	GIVES(0, ACL.aclmdlRIExecuteAsync(g, s));
	GIVES(0, ACL.aclrtSynchronizeStreamWithTimeout(s, -1));
	GIVES(0, ACL.aclmdlRIDestroy(g));
	GIVES(ACL_ERROR_RT_INVALID_HANDLE, ACL.aclmdlRIDestroy(g));
	GIVES(ACL_ERROR_RT_INVALID_HANDLE, ACL.aclmdlRICaptureTaskUpdateBegin(s2, grp));

	// Operators: one first phase, one second phase; aligned, live, not overlapping memory.
	int64_t dims[] = { 16 };
	float one = 1;
	uint64_t need;
	aclOpExecutor *ex;
	aclTensor *a = NNOP.aclCreateTensor(dims, 1, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, dims, 1, p), *b;
	aclScalar *alpha = NNOP.aclCreateScalar(&one, ACL_FLOAT);
	GIVES(0, OPS.aclnnAddGetWorkspaceSize(a, a, alpha, a, &need, &ex));
	GIVES(0, OPS.aclnnAdd(NULL, 0, ex, s));
	GIVES(ACLNN_ERR_INNER_NULLPTR, OPS.aclnnAdd(NULL, 0, ex, s));
	GIVES(ACLNN_ERR_PARAM_NULLPTR, OPS.aclnnAddGetWorkspaceSize(a, NULL, alpha, a, &need, &ex));
	b = NNOP.aclCreateTensor(dims, 1, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, dims, 1, (char *)p + 32);
	GIVES(0, OPS.aclnnAddGetWorkspaceSize(a, a, alpha, b, &need, &ex));
	GIVES(ACLNN_ERR_PARAM_INVALID, OPS.aclnnAdd(NULL, 0, ex, s)); // half of the input is the output
	NNOP.aclDestroyTensor(b);
	b = NNOP.aclCreateTensor(dims, 1, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, dims, 1, (char *)p + 68);
	GIVES(0, OPS.aclnnAddGetWorkspaceSize(b, b, alpha, b, &need, &ex));
	GIVES(ACLNN_ERR_PARAM_INVALID, OPS.aclnnAdd(NULL, 0, ex, s)); // alignment
	GIVES(0, OPS.aclnnAddGetWorkspaceSize(a, a, alpha, a, &need, &ex));
	GIVES(ACLNN_ERR_PARAM_INVALID, NNOP.aclDestroyAclOpExecutor(ex)); // its run frees it
	GIVES(0, NNOP.aclSetAclOpExecutorRepeatable(ex));
	GIVES(0, OPS.aclnnAdd(NULL, 0, ex, s));
	GIVES(0, OPS.aclnnAdd(NULL, 0, ex, s));
	GIVES(0, NNOP.aclDestroyAclOpExecutor(ex));
	GIVES(0, NNOP.aclDestroyTensor(a));
	GIVES(ACLNN_ERR_PARAM_INVALID, NNOP.aclDestroyTensor(a));
	GIVES(0, NNOP.aclDestroyTensor(b));
	GIVES(0, NNOP.aclDestroyScalar(alpha));
	GIVES(0, ACL.aclrtSynchronizeStreamWithTimeout(s, -1));

	CHECK(!asc_event_free(ctx, ev, &e) && !asc_event_free(ctx, flag, &e) && !asc_stream_free(ctx, s, &e) && !asc_stream_free(ctx, s2, &e));
	GIVES(ACL_ERROR_RT_INVALID_HANDLE, ACL.aclrtDestroyStream(s));
	CHECK(!asc_mem_free(ctx, p, &e) && !asc_host_free(ctx, host, &e));
}

static pthread_mutex_t capturing_now = PTHREAD_MUTEX_INITIALIZER;

static void wait_for(aclrtEvent ev) {
	asc_err e;
	memset(&e, 0, sizeof e);
	for (int done = 0; !done;) CHECK(!asc_event_wait(ctx, ev, 2, &done, &e));
}

static void *work(void *arg) {
	const int capturing = (long)arg % 2;
	asc_err e;
	memset(&e, 0, sizeof e);
	aclrtStream s, fork, update;
	aclrtEvent ev, back, point, tail, gate;
	void *host, *dev;
	CHECK(!asc_stream_new(ctx, &s, &e) && !asc_stream_new(ctx, &fork, &e) && !asc_stream_new(ctx, &update, &e));
	CHECK(!asc_event_new(ctx, SL_EVENT_SYNC, 0, &ev, &e) && !asc_event_new(ctx, SL_EVENT_SYNC, 0, &back, &e));
	CHECK(!asc_event_new(ctx, SL_EVENT_SYNC, 0, &point, &e) && !asc_event_new(ctx, SL_EVENT_SYNC, 0, &tail, &e));
	CHECK(!asc_event_new(ctx, SL_EVENT_EXTERNAL, 1, &gate, &e));
	CHECK(!asc_host_alloc(ctx, N, &host, &e));
	for (int i = 1; i <= ROUNDS; i++) {
		uint64_t words[64 * ASC_REC_WORDS], *w = words;
		CHECK(!asc_mem_alloc(ctx, N, 0, &dev, &e));
		w = put(w, ASC_FILL, (uint64_t)dev, N, (uint64_t)i, N, 0);
		w = put(w, ASC_RECORD, (uint64_t)ev, 0, 0, 0, 0);
		w = put(w, ASC_STREAM, (uint64_t)fork, 0, 0, 0, 0);
		w = put(w, ASC_WAIT, (uint64_t)ev, 0, 0, 0, 0);
		w = put(w, ASC_COPY, (uint64_t)host, (uint64_t)dev, N, SL_COPY_D2H, N);
		uint64_t *unjoined = w;
		w = put(w, ASC_RECORD, (uint64_t)back, 0, 0, 0, 0);
		w = put(w, ASC_STREAM, (uint64_t)s, 0, 0, 0, 0);
		w = put(w, ASC_WAIT, (uint64_t)back, 0, 0, 0, 0);
		if (capturing) {
			aclmdlRI g;
			aclrtTaskGrp grp;
			uint64_t run[64 * ASC_REC_WORDS], *r = run;
			w = put(w, ASC_WAIT, (uint64_t)gate, 0, 0, 0, 0);
			w = put(w, ASC_RESET, (uint64_t)gate, 0, 0, 0, 0);
			w = put(w, ASC_GROUP_BEGIN, 0, 0, 0, 0, 0);
			w = add(w, dev, dev, (char *)dev + 64);
			w = put(w, ASC_GROUP_END, 0, 0, 0, 0, 0);
			pthread_mutex_lock(&capturing_now); // one task group at a time
			CHECK(!asc_capture(ctx, s, words, w - words, &g, &grp, &e));
			pthread_mutex_unlock(&capturing_now);
			for (int k = 0; k < 3; k++) {
				r = put(r, ASC_STREAM, (uint64_t)update, 0, 0, 0, 0);
				r = put(r, ASC_WAIT, (uint64_t)tail, 0, 0, 0, 0);
				r = put(r, ASC_STREAM, (uint64_t)s, 0, 0, 0, 0);
				r = put(r, ASC_GRAPH, (uint64_t)g, 0, 0, 0, 0);
				r = put(r, ASC_RECORD, (uint64_t)tail, 0, 0, 0, 0);
				r = put(r, ASC_STREAM, (uint64_t)update, 0, 0, 0, 0);
				r = put(r, ASC_UPDATE_BEGIN, (uint64_t)grp, 0, 0, 0, 0);
				r = add(r, dev, (char *)dev + 64 * (k + 1), (char *)dev + 1024);
				r = put(r, ASC_UPDATE_END, 0, 0, 0, 0, 0);
				r = put(r, ASC_SIGNAL, (uint64_t)gate, 0, 0, 0, 0);
			}
			r = put(r, ASC_STREAM, (uint64_t)s, 0, 0, 0, 0);
			r = put(r, ASC_SIGNAL, (uint64_t)point, 0, 0, 0, 0);
			CHECK(!asc_replay(ctx, s, run, r - run, 0, &e));
			wait_for(point);
			CHECK(!asc_graph_free(ctx, g, &e));
			// A capture that fails: the fork is never joined.
			pthread_mutex_lock(&capturing_now);
			CHECK(asc_capture(ctx, s, words, unjoined - words, &g, NULL, &e) == ACL_ERROR_RT_STREAM_UNJOINED && !g);
			pthread_mutex_unlock(&capturing_now);
		} else {
			w = put(w, ASC_SIGNAL, (uint64_t)point, 0, 0, 0, 0);
			CHECK(!asc_replay(ctx, s, words, w - words, i % 2 ? ASC_SYNC_EACH : 0, &e));
			wait_for(point);
			uint64_t bad[2 * ASC_REC_WORDS];
			put(put(bad, ASC_FILL, (uint64_t)dev + N, N, 0, N, 0), ASC_SIGNAL, (uint64_t)point, 0, 0, 0, 0);
			CHECK(asc_replay(ctx, s, bad, 2 * ASC_REC_WORDS, 0, &e) == ACL_ERROR_RT_PARAM_INVALID && e.index == 7 && strstr(e.text, "aclrtMemsetAsync"));
			wait_for(point);
		}
		for (int k = 0; k < N; k++) CHECK(((unsigned char *)host)[k] == i);
		// No allocation begins there; dev itself may be another thread's once it is free.
		CHECK(asc_mem_free(ctx, (char *)dev + 1, &e) == ACL_ERROR_RT_PARAM_INVALID && strstr(e.text, "aclrtFree"));
		CHECK(!asc_mem_free(ctx, dev, &e));
	}
	aclrtEvent all[] = { ev, back, point, tail, gate };
	for (int i = 0; i < 5; i++) CHECK(!asc_event_free(ctx, all[i], &e));
	CHECK(!asc_stream_free(ctx, s, &e) && !asc_stream_free(ctx, fork, &e) && !asc_stream_free(ctx, update, &e));
	CHECK(!asc_host_free(ctx, host, &e));
	return NULL;
}

int main(int argc, char **argv) {
	asc_err e;
	asc_lib lib;
	memset(&e, 0, sizeof e);
	if (argc < 4) return 2;
	for (int l = ASC_LIB_ACL; l <= ASC_LIB_OPAPI; l++) {
		const char *candidates[] = { "/nonexistent/lib.so", argv[1 + l], NULL };
		if (asc_load(l, candidates, 0, &lib) < 0) { fprintf(stderr, "%s\n", lib.problem); return 1; }
	}
	CHECK(!asc_open(0, &ctx, &e));
	refusals();
	pthread_t t[THREADS];
	for (long i = 0; i < THREADS; i++) pthread_create(&t[i], NULL, work, (void *)i);
	for (int i = 0; i < THREADS; i++) pthread_join(t[i], NULL);
	void *dev;
	CHECK(!asc_mem_alloc(ctx, N, 0, &dev, &e) && !asc_mem_free(ctx, dev, &e));
	CHECK(asc_mem_free(ctx, dev, &e) == ACL_ERROR_RT_PARAM_INVALID); // twice
	for (int k = 0; k < 4; k++) CHECK(asc_live(ASC_LIB_ACL, "sluice_emu_live", k) == 0);
	CHECK(asc_live(ASC_LIB_NNOP, "sluice_emu_objects", 0) == 0);
	CHECK(!asc_release(ctx, 0, &e));
	puts("ok");
	return 0;
}
