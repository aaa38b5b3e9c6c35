#include "shim.h"
#include <stdlib.h>
#include <string.h>

int asc_count(uint32_t *n, asc_err *e) {
	ASC_TRY(aclrtGetDeviceCount, n);
	return 0;
}

// No context is made: what needs one is left out.
int asc_describe(int ordinal, asc_device *out, asc_err *e) {
	memset(out, 0, sizeof *out);
	(void)e;
	const char *soc = ACL.aclrtGetSocName ? ACL.aclrtGetSocName() : NULL;
	if (soc) strncpy(out->soc, soc, sizeof out->soc - 1);
	if (ACL.aclrtGetDeviceInfo) {
		ACL.aclrtGetDeviceInfo((uint32_t)ordinal, SL_INFO_AICORES, &out->cores);
		ACL.aclrtGetDeviceInfo((uint32_t)ordinal, SL_INFO_MEMORY, &out->memory);
	} else if (ACL.aclGetDeviceCapability) {
		ACL.aclGetDeviceCapability((uint32_t)ordinal, 0, &out->cores);
	}
	if (ACL.aclrtDeviceGetUuid) ACL.aclrtDeviceGetUuid(ordinal, (aclrtUuid *)out->uuid);
	if (ACL.aclGetRecentErrMsg) ACL.aclGetRecentErrMsg();
	return 0;
}

// The device's default context is shared with every library in the process.
int asc_open(int ordinal, aclrtContext *ctx, asc_err *e) {
	ASC_TRY(aclrtSetDevice, ordinal);
	int rc = ACL.aclrtGetCurrentContext(ctx);
	if (!rc) return 0;
	asc_fail(ASC_LIB_ACL, rc, "aclrtGetCurrentContext", e);
	ACL.aclrtResetDevice(ordinal);
	return rc;
}

int asc_release(aclrtContext c, int ordinal, asc_err *e) {
	ASC_CTX(c);
	ASC_TRY(aclrtResetDevice, ordinal);
	return 0;
}

// A question about memory reports a sticky fault and changes nothing.
int asc_alive(aclrtContext c, asc_err *e) {
	size_t a, b;
	return asc_mem_info(c, &a, &b, e);
}

int asc_limits(aclrtContext c, int64_t *streams, int64_t *events, asc_err *e) {
	uint32_t n;
	*streams = *events = -1;
	ASC_CTX(c);
	if (ACL.aclrtGetStreamAvailableNum && !ACL.aclrtGetStreamAvailableNum(&n)) *streams = n;
	if (ACL.aclrtGetEventAvailNum && !ACL.aclrtGetEventAvailNum(&n)) *events = n;
	return 0;
}

int asc_mem_info(aclrtContext c, size_t *avail, size_t *total, asc_err *e) {
	ASC_CTX(c);
	ASC_TRY(aclrtGetMemInfo, SL_HBM_MEM, avail, total);
	return 0;
}

int asc_mem_alloc(aclrtContext c, size_t n, int shared, void **p, asc_err *e) {
	ASC_CTX(c);
	ASC_TRY(aclrtMalloc, p, n, shared ? SL_MALLOC_HUGE_FIRST_P2P : SL_MALLOC_HUGE_FIRST);
	return 0;
}

int asc_mem_free(aclrtContext c, void *p, asc_err *e) {
	ASC_CTX(c);
	ASC_TRY(aclrtFree, p);
	return 0;
}

int asc_host_alloc(aclrtContext c, size_t n, void **p, asc_err *e) {
	ASC_CTX(c);
	ASC_TRY(aclrtMallocHost, p, n);
	return 0;
}

int asc_host_free(aclrtContext c, void *p, asc_err *e) {
	ASC_CTX(c);
	ASC_TRY(aclrtFreeHost, p);
	return 0;
}

int asc_mask(aclrtContext c, void *p, size_t side, asc_err *e) {
	ASC_CTX(c);
	char *m = malloc(side * side);
	if (!m) return asc_fail_text(ASC_LIB_ACL, ACL_ERROR_RT_MEMORY_ALLOCATION, "malloc", "out of host memory", e);
	for (size_t i = 0; i < side; i++) {
		memset(m + i * side, 0, i + 1);
		memset(m + i * side + i + 1, 1, side - i - 1);
	}
	int rc = ACL.aclrtMemcpy(p, side * side, m, side * side, SL_COPY_H2D);
	free(m);
	return rc ? asc_fail(ASC_LIB_ACL, rc, "aclrtMemcpy", e) : 0;
}

int asc_ipc_export(aclrtContext c, void *p, size_t n, char key[SL_IPC_KEY_BYTES], asc_err *e) {
	ASC_CTX(c);
	ASC_NEED(aclrtIpcMemGetExportKey);
	ASC_TRY(aclrtIpcMemGetExportKey, p, n, key, SL_IPC_KEY_BYTES, SL_IPC_NO_PID_CHECK);
	return 0;
}

int asc_ipc_import(aclrtContext c, const char *key, void **p, asc_err *e) {
	ASC_CTX(c);
	ASC_NEED(aclrtIpcMemImportByKey);
	ASC_TRY(aclrtIpcMemImportByKey, p, key, SL_IPC_ENABLE_PEER);
	return 0;
}

int asc_ipc_close(aclrtContext c, const char *key, asc_err *e) {
	ASC_CTX(c);
	ASC_NEED(aclrtIpcMemClose);
	ASC_TRY(aclrtIpcMemClose, key);
	return 0;
}

int asc_can_peer(int dev, int peer, int *can, asc_err *e) {
	int32_t v = 0;
	ASC_NEED(aclrtDeviceCanAccessPeer);
	ASC_TRY(aclrtDeviceCanAccessPeer, &v, dev, peer);
	*can = v;
	return 0;
}

int asc_enable_peer(aclrtContext c, int peer, asc_err *e) {
	ASC_CTX(c);
	ASC_NEED(aclrtDeviceEnablePeerAccess);
	ASC_TRY(aclrtDeviceEnablePeerAccess, peer, 0);
	return 0;
}

int asc_stream_new(aclrtContext c, aclrtStream *s, asc_err *e) {
	ASC_CTX(c);
	ASC_TRY(aclrtCreateStreamWithConfig, s, 0, SL_STREAM_FAST);
	return 0;
}

int asc_stream_free(aclrtContext c, aclrtStream s, asc_err *e) {
	ASC_CTX(c);
	ASC_TRY(aclrtDestroyStream, s);
	return 0;
}

int asc_event_new(aclrtContext c, uint32_t flags, int hardware, aclrtEvent *ev, asc_err *e) {
	ASC_CTX(c);
	if (hardware) ASC_TRY(aclrtCreateEventWithFlag, ev, flags);
	else ASC_TRY(aclrtCreateEventExWithFlag, ev, flags);
	return 0;
}

int asc_event_free(aclrtContext c, aclrtEvent ev, asc_err *e) {
	ASC_CTX(c);
	ASC_TRY(aclrtDestroyEvent, ev);
	return 0;
}

int asc_event_done(aclrtContext c, aclrtEvent ev, int *done, asc_err *e) {
	uint32_t status = SL_EVENT_NOT_READY;
	ASC_CTX(c);
	ASC_TRY(aclrtQueryEventStatus, ev, &status);
	*done = status == SL_EVENT_COMPLETE;
	return 0;
}

int asc_event_elapsed(aclrtContext c, aclrtEvent from, aclrtEvent to, float *ms, asc_err *e) {
	ASC_CTX(c);
	ASC_TRY(aclrtEventElapsedTime, ms, from, to);
	return 0;
}

int asc_event_wait(aclrtContext c, aclrtEvent ev, int ms, int *done, asc_err *e) {
	ASC_CTX(c);
	int rc = ACL.aclrtSynchronizeEventWithTimeout(ev, ms);
	*done = rc == 0;
	if (rc == ACL_ERROR_RT_EVENT_SYNC_TIMEOUT || rc == ACL_ERROR_WAIT_TIMEOUT) {
		if (ACL.aclGetRecentErrMsg) ACL.aclGetRecentErrMsg();
		return 0;
	}
	return rc ? asc_fail(ASC_LIB_ACL, rc, "aclrtSynchronizeEventWithTimeout", e) : 0;
}

int asc_module_load(aclrtContext c, const void *data, size_t n, aclrtBinHandle *m, asc_err *e) {
	ASC_CTX(c);
	ASC_NEED(aclrtBinaryLoadFromData);
	ASC_TRY(aclrtBinaryLoadFromData, data, n, NULL, m);
	return 0;
}

int asc_module_free(aclrtContext c, aclrtBinHandle m, asc_err *e) {
	ASC_CTX(c);
	ASC_NEED(aclrtBinaryUnLoad);
	ASC_TRY(aclrtBinaryUnLoad, m);
	return 0;
}

int asc_module_func(aclrtContext c, aclrtBinHandle m, const char *name, aclrtFuncHandle *f, asc_err *e) {
	ASC_CTX(c);
	ASC_NEED(aclrtBinaryGetFunction);
	ASC_TRY(aclrtBinaryGetFunction, m, name, f);
	return 0;
}
