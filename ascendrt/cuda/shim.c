#include "shim.h"
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

int sl_count(int *n, int *driver, sl_err *e) {
	SL_TRY(cuDriverGetVersion, driver);
	SL_TRY(cuDeviceGetCount, n);
	return 0;
}

int sl_describe(int ordinal, sl_device *out, sl_err *e) {
	int dev, v = 0;
	size_t total;
	memset(out, 0, sizeof *out);
	SL_TRY(cuDeviceGet, &dev, ordinal);
	SL_TRY(cuDeviceGetName, out->name, sizeof out->name, dev);
	SL_TRY(cuDeviceTotalMem, &total, dev);
	out->memory = total;
	SL_TRY(cuDeviceGetAttribute, &out->sms, SL_ATTR_SM_COUNT, dev);
	SL_TRY(cuDeviceGetAttribute, &out->major, SL_ATTR_CC_MAJOR, dev);
	SL_TRY(cuDeviceGetAttribute, &out->minor, SL_ATTR_CC_MINOR, dev);
	SL_TRY(cuDeviceGetAttribute, &out->shared_optin, SL_ATTR_SHARED_OPTIN, dev);
	if (!CU.cuDeviceGetAttribute(&v, SL_ATTR_POOLS, dev)) out->pools = v;
	if (CU.cuDeviceGetUuid) CU.cuDeviceGetUuid((struct CUuuid_st *)out->uuid, dev);
	if (CU.cuDeviceGetPCIBusId) CU.cuDeviceGetPCIBusId(out->pci, sizeof out->pci, dev);
	return 0;
}

// The primary context is shared with every library in the process.
int sl_open(int ordinal, sl_ctx *ctx, int *low, int *high, sl_err *e) {
	int dev;
	SL_TRY(cuDeviceGet, &dev, ordinal);
	SL_TRY(cuDevicePrimaryCtxRetain, ctx, dev);
	SL_CTX(*ctx);
	SL_TRY(cuCtxGetStreamPriorityRange, low, high);
	return 0;
}

int sl_release(int ordinal, sl_err *e) {
	int dev;
	SL_TRY(cuDeviceGet, &dev, ordinal);
	SL_TRY(cuDevicePrimaryCtxRelease, dev);
	return 0;
}

// A free of nothing reports a sticky fault and touches nothing.
int sl_alive(sl_ctx c, sl_err *e) {
	SL_CTX(c);
	SL_TRY(cuMemFree, 0);
	return 0;
}

int sl_mem_info(sl_ctx c, size_t *avail, size_t *total, sl_err *e) {
	SL_CTX(c);
	SL_TRY(cuMemGetInfo, avail, total);
	return 0;
}

int sl_mem_alloc(sl_ctx c, size_t n, sl_ptr *p, sl_err *e) {
	SL_CTX(c);
	SL_TRY(cuMemAlloc, p, n);
	return 0;
}

int sl_mem_free(sl_ctx c, sl_ptr p, sl_err *e) {
	SL_CTX(c);
	SL_TRY(cuMemFree, p);
	return 0;
}

// Freed pool memory stays with the process: trimming at each sync costs more
// than it gives back.
int sl_pool_setup(sl_ctx c, int ordinal, sl_err *e) {
	int dev;
	sl_pool pool;
	uint64_t keep = UINT64_MAX;
	SL_CTX(c);
	SL_NEED(cuDeviceGetDefaultMemPool);
	SL_NEED(cuMemPoolSetAttribute);
	SL_NEED(cuMemAllocAsync);
	SL_NEED(cuMemFreeAsync);
	SL_TRY(cuDeviceGet, &dev, ordinal);
	SL_TRY(cuDeviceGetDefaultMemPool, &pool, dev);
	SL_TRY(cuMemPoolSetAttribute, pool, SL_POOL_RELEASE_THRESHOLD, &keep);
	return 0;
}

int sl_pool_alloc(sl_ctx c, size_t n, sl_stream s, sl_ptr *p, sl_err *e) {
	SL_CTX(c);
	SL_TRY(cuMemAllocAsync, p, n, s);
	SL_TRY(cuStreamSynchronize, s); // usable on every stream from here on
	return 0;
}

int sl_pool_free(sl_ctx c, sl_ptr p, sl_stream s, sl_err *e) {
	SL_CTX(c);
	SL_TRY(cuMemFreeAsync, p, s);
	return 0;
}

int sl_host_alloc(sl_ctx c, size_t n, void **p, sl_ptr *dev, sl_err *e) {
	SL_CTX(c);
	SL_TRY(cuMemHostAlloc, p, n, SL_HOST_PORTABLE | SL_HOST_DEVICEMAP);
	sl_result rc = CU.cuMemHostGetDevicePointer(dev, *p, 0);
	if (rc) {
		CU.cuMemFreeHost(*p);
		return sl_fail(rc, "cuMemHostGetDevicePointer", e);
	}
	return 0;
}

int sl_host_free(sl_ctx c, void *p, sl_err *e) {
	SL_CTX(c);
	SL_TRY(cuMemFreeHost, p);
	return 0;
}

int sl_words(sl_ctx c, void **p, sl_ptr *dev, sl_err *e) {
	const size_t n = SL_PAGE_WORDS * sizeof(uint64_t);
	SL_CTX(c);
	if (!(*p = aligned_alloc(4096, n))) return sl_fail_text(SL_LIB_CUDA, 2, "aligned_alloc", "out of host memory", e);
	memset(*p, 0, n);
	SL_TRY(cuMemHostRegister, *p, n, SL_HOST_PORTABLE | SL_HOST_DEVICEMAP);
	SL_TRY(cuMemHostGetDevicePointer, dev, *p, 0);
	return 0;
}

int sl_words_end(sl_ctx c, void *p, sl_err *e) {
	SL_CTX(c);
	SL_TRY(cuMemHostUnregister, p);
	return 0;
}

int sl_ipc_export(sl_ctx c, sl_ptr p, unsigned char out[64], sl_err *e) {
	struct CUipcMemHandle_st h;
	SL_CTX(c);
	SL_NEED(cuIpcGetMemHandle);
	SL_TRY(cuIpcGetMemHandle, &h, p);
	memcpy(out, &h, 64);
	return 0;
}

int sl_ipc_import(sl_ctx c, const unsigned char in[64], sl_ptr *p, sl_err *e) {
	struct CUipcMemHandle_st h;
	memcpy(&h, in, 64);
	SL_CTX(c);
	SL_NEED(cuIpcOpenMemHandle);
	SL_TRY(cuIpcOpenMemHandle, p, h, SL_IPC_LAZY_PEER);
	return 0;
}

int sl_ipc_close(sl_ctx c, sl_ptr p, sl_err *e) {
	SL_CTX(c);
	SL_NEED(cuIpcCloseMemHandle);
	SL_TRY(cuIpcCloseMemHandle, p);
	return 0;
}

int sl_can_peer(int dev, int peer, int *can, sl_err *e) {
	int a, b;
	SL_NEED(cuDeviceCanAccessPeer);
	SL_TRY(cuDeviceGet, &a, dev);
	SL_TRY(cuDeviceGet, &b, peer);
	SL_TRY(cuDeviceCanAccessPeer, can, a, b);
	return 0;
}

int sl_enable_peer(sl_ctx c, sl_ctx peer, sl_err *e) {
	SL_CTX(c);
	SL_NEED(cuCtxEnablePeerAccess);
	sl_result rc = CU.cuCtxEnablePeerAccess(peer, 0);
	return rc && rc != SL_PEER_ALREADY ? sl_fail(rc, "cuCtxEnablePeerAccess", e) : 0;
}

int sl_stream_new(sl_ctx c, int priority, sl_stream *s, sl_err *e) {
	SL_CTX(c);
	SL_TRY(cuStreamCreateWithPriority, s, SL_STREAM_NON_BLOCKING, priority);
	return 0;
}

int sl_stream_free(sl_ctx c, sl_stream s, sl_err *e) {
	SL_CTX(c);
	SL_TRY(cuStreamDestroy, s);
	return 0;
}

int sl_event_new(sl_ctx c, unsigned flags, sl_event *ev, sl_err *e) {
	SL_CTX(c);
	SL_TRY(cuEventCreate, ev, flags);
	return 0;
}

int sl_event_free(sl_ctx c, sl_event ev, sl_err *e) {
	SL_CTX(c);
	SL_TRY(cuEventDestroy, ev);
	return 0;
}

int sl_event_done(sl_ctx c, sl_event ev, int *done, sl_err *e) {
	SL_CTX(c);
	sl_result rc = CU.cuEventQuery(ev);
	*done = rc == SL_OK;
	return rc && rc != SL_NOT_READY ? sl_fail(rc, "cuEventQuery", e) : 0;
}

int sl_event_elapsed(sl_ctx c, sl_event from, sl_event to, float *ms, sl_err *e) {
	SL_CTX(c);
	SL_TRY(cuEventElapsedTime, ms, from, to);
	return 0;
}

static int64_t now_us(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

// A nap lasts about 20 us. The kernel would add the thread's slack, of 50 us as a rule, and
// a step or a pull takes only a few hundred.
int sl_wait(const uint64_t *word, uint64_t seq, int64_t us) {
	int64_t end = now_us() + us;
	int slack = -1, done;
	for (;;) {
		done = __atomic_load_n(word, __ATOMIC_ACQUIRE) >= seq;
		if (done || now_us() >= end) break;
		if (slack < 0 && (slack = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0)) > 0) prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0);
		struct timespec nap = { 0, 20000 };
		nanosleep(&nap, NULL);
	}
	if (slack > 0) prctl(PR_SET_TIMERSLACK, slack, 0, 0, 0); // the thread may be another program's
	return done;
}

int sl_stream_check(sl_ctx c, sl_stream s, sl_err *e) {
	SL_CTX(c);
	sl_result rc = CU.cuStreamQuery(s);
	return rc && rc != SL_NOT_READY ? sl_fail(rc, "cuStreamQuery", e) : 0;
}

int sl_module_load(sl_ctx c, const void *image, sl_module *m, sl_err *e) {
	enum { INFO_LOG = 3, INFO_SIZE = 4, ERROR_LOG = 5, ERROR_SIZE = 6 };
	char log[160] = "";
	unsigned opts[] = { ERROR_LOG, ERROR_SIZE };
	void *vals[] = { log, (void *)(uintptr_t)sizeof log };
	SL_CTX(c);
	sl_result rc = CU.cuModuleLoadDataEx(m, image, 2, opts, vals);
	if (!rc) return 0;
	sl_fail(rc, "cuModuleLoadDataEx", e);
	if (log[0]) memcpy(e->text, log, sizeof log);
	e->text[sizeof e->text - 1] = 0;
	return (int)rc;
}

int sl_module_free(sl_ctx c, sl_module m, sl_err *e) {
	SL_CTX(c);
	SL_TRY(cuModuleUnload, m);
	return 0;
}

int sl_module_func(sl_ctx c, sl_module m, const char *name, sl_func *f, uint64_t *params, sl_err *e) {
	SL_CTX(c);
	SL_TRY(cuModuleGetFunction, f, m, name);
	*params = 0;
	if (CU.cuFuncGetParamInfo) {
		size_t off, size;
		for (size_t i = 0; !CU.cuFuncGetParamInfo(*f, i, &off, &size); i++) *params = off + size;
	}
	if (CU.cuFuncLoad) SL_TRY(cuFuncLoad, *f); // a first launch inside a capture must not load
	return 0;
}

int sl_func_shared(sl_ctx c, sl_func f, int n, sl_err *e) {
	SL_CTX(c);
	SL_TRY(cuFuncSetAttribute, f, SL_FUNC_MAX_DYNAMIC_SHARED, n);
	return 0;
}

// How many clusters of so many blocks the device has room for at once; 0 if the driver cannot tell.
int sl_func_clusters(sl_ctx c, sl_func f, unsigned width, unsigned threads, unsigned shared, int *n, sl_err *e) {
	SL_CTX(c);
	*n = 0;
	if (!CU.cuOccupancyMaxActiveClusters) return 0;
	if (width > 8) SL_TRY(cuFuncSetAttribute, f, SL_FUNC_LARGE_CLUSTERS, 1);
	struct CUlaunchAttribute_st cluster = { SL_LAUNCH_CLUSTER, { 0 }, { { 0 } } };
	unsigned dims[3] = { width, 1, 1 };
	memcpy(cluster.value.bytes, dims, sizeof dims);
	struct CUlaunchConfig_st l = { width, 1, 1, threads, 1, 1, shared, NULL, &cluster, 1 };
	SL_TRY(cuOccupancyMaxActiveClusters, n, f, &l);
	return 0;
}
