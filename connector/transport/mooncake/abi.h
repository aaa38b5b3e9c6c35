// Our declarations of the calls of Mooncake's Transfer Engine that are used, as
// mooncake-transfer-engine/include/transfer_engine_c.h of kvcache-ai/Mooncake
// has them at commit 03c37a3401156ae52ca6f473b2704fe7e70e1bad.
#ifndef SLUICE_MOONCAKE_ABI_H
#define SLUICE_MOONCAKE_ABI_H

#include <stddef.h>
#include <stdint.h>

enum { SMK_READ = 0, SMK_WRITE = 1 };

// One task of a batch. target is an address in the memory of the segment's
// process, where that memory is registered.
typedef struct {
	int opcode;
	void *source; // local memory
	int32_t segment;
	uint32_t file;
	uint64_t target;
	uint64_t length;
} smk_request;

enum { SMK_WAITING, SMK_PENDING, SMK_INVALID, SMK_CANCELED, SMK_COMPLETED, SMK_TIMEOUT, SMK_FAILED };

typedef struct {
	int state;
	uint64_t bytes;
} smk_status;

#define SMK_NO_BATCH UINT64_MAX

// X(result, name, arguments)
#define SMK_SYMS(X) \
	X(void *, createTransferEngine, (const char *metadata, const char *server, const char *host, uint64_t port, int discover)) \
	X(void, destroyTransferEngine, (void *engine)) \
	X(int, getLocalIpAndPort, (void *engine, char *out, size_t size)) \
	X(int32_t, openSegment, (void *engine, const char *name)) \
	X(int32_t, openSegmentNoCache, (void *engine, const char *name)) \
	X(int, registerLocalMemory, (void *engine, void *address, size_t length, const char *location, int remote)) \
	X(int, unregisterLocalMemory, (void *engine, void *address)) \
	X(uint64_t, allocateBatchID, (void *engine, size_t size)) \
	X(int, submitTransfer, (void *engine, uint64_t batch, smk_request *list, size_t count)) \
	X(int, getTransferStatus, (void *engine, uint64_t batch, size_t task, smk_status *out)) \
	X(int, freeBatchID, (void *engine, uint64_t batch))

#endif
