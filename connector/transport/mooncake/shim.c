//go:build cgo && linux

#include <sched.h>
#include <stdlib.h>
#include <time.h>
#include "table.h"

static int fail(smk_err *e, const char *call, int code) {
	e->call = call;
	e->code = code;
	return -1;
}

void *smk_open(const char *host, char *name, size_t size, smk_err *e) {
	sigset_t before;
	smk_quiet(&before);
	void *engine = MK.createTransferEngine("P2PHANDSHAKE", host, host, 0, 1);
	smk_loud(&before);
	if (!engine) {
		fail(e, "createTransferEngine", 0);
		return NULL;
	}
	int code = MK.getLocalIpAndPort(engine, name, size);
	if (code) {
		fail(e, "getLocalIpAndPort", code);
		MK.destroyTransferEngine(engine);
		return NULL;
	}
	return engine;
}

void smk_close(void *engine) { MK.destroyTransferEngine(engine); }

int smk_expose(void *engine, void *address, size_t length, smk_err *e) {
	int code = MK.registerLocalMemory(engine, address, length, "*", 1);
	return code ? fail(e, "registerLocalMemory", code) : 0;
}

int smk_conceal(void *engine, void *address, smk_err *e) {
	int code = MK.unregisterLocalMemory(engine, address);
	return code ? fail(e, "unregisterLocalMemory", code) : 0;
}

void *smk_buffer(void *engine, size_t size, smk_err *e) {
	void *b = aligned_alloc(4096, size);
	if (!b) {
		fail(e, "aligned_alloc", 0);
		return NULL;
	}
	int code = MK.registerLocalMemory(engine, b, size, "*", 0);
	if (code) {
		fail(e, "registerLocalMemory", code);
		free(b);
		return NULL;
	}
	return b;
}

void smk_buffer_free(void *engine, void *buffer) {
	if (!MK.unregisterLocalMemory(engine, buffer)) free(buffer);
}

// SPINS is how often a task is asked about before the thread sleeps; the sleeps
// grow from 20 microseconds to half a millisecond.
enum { SPINS = 64, NAP_FIRST = 20000, NAP_LAST = 500000 };

static int final(int state) { return state != SMK_WAITING && state != SMK_PENDING; }

// end waits for one task. A status that cannot be had says nothing about the
// memory, so it is asked for again, a hundred times.
static int end(void *engine, uint64_t batch, size_t task, int *state, smk_err *e) {
	struct timespec nap = {0, NAP_FIRST};
	int broken = 0;
	for (int i = 0;; i++) {
		smk_status s = {0};
		int code = MK.getTransferStatus(engine, batch, task, &s);
		if (code && ++broken > 100) return fail(e, "getTransferStatus", code), 1;
		if (!code && final(s.state)) {
			*state = s.state;
			return 0;
		}
		if (i < SPINS) {
			sched_yield();
			continue;
		}
		nanosleep(&nap, NULL);
		if ((nap.tv_nsec *= 2) > NAP_LAST) nap.tv_nsec = NAP_LAST;
	}
}

int smk_read(void *engine, const char *peer, int fresh, smk_request *list, size_t count, smk_err *e) {
	int32_t segment = fresh ? MK.openSegmentNoCache(engine, peer) : MK.openSegment(engine, peer);
	if (segment < 0) return fail(e, "openSegment", segment);
	for (size_t i = 0; i < count; i++) {
		list[i].opcode = SMK_READ;
		list[i].segment = segment;
	}
	uint64_t batch = MK.allocateBatchID(engine, count);
	if (batch == SMK_NO_BATCH) return fail(e, "allocateBatchID", 0);
	int code = MK.submitTransfer(engine, batch, list, count);
	if (code) {
		if (!MK.freeBatchID(engine, batch)) return fail(e, "submitTransfer", code);
		return fail(e, "submitTransfer", code), 1; // a part of it may be on its way
	}
	int out = 0;
	for (size_t i = 0; i < count; i++) {
		int state = 0, rc = end(engine, batch, i, &state, e);
		if (rc) return rc;
		if (state != SMK_COMPLETED && !out) out = fail(e, "transfer", state);
	}
	code = MK.freeBatchID(engine, batch);
	return code && !out ? fail(e, "freeBatchID", code) : out;
}
