// The C side of the Ascend backend. Every function is stateless: it makes the
// device's context current on the thread it happens to run on, does its calls,
// and fills the caller's error record, the thread's error text included, in the
// same crossing. None calls back into Go.
#ifndef SLUICE_ACL_SHIM_H
#define SLUICE_ACL_SHIM_H

#include "abi.h"

typedef struct {
	int32_t code;  // the vendor's code; negative: the loader's
	int32_t index; // command that failed, -1
	int32_t lib;   // whose code: one of the ASC_LIB_ numbers
	int32_t pad;
	char call[64]; // the vendor call that failed
	char text[384];
} asc_err;

enum { ASC_LIB_ACL, ASC_LIB_NNOP, ASC_LIB_OPAPI, ASC_LIB_HCCL, ASC_LIBS };

// A library as the loader found it.
typedef struct {
	char path[256];
	char problem[512];
	char version[64];
	int loaded;
} asc_lib;

// asc_load loads a library once, from the candidates (NULL-terminated) in
// order; all: every candidate that exists is loaded, for operators that are
// split over several files. It is called under a lock. Asynchronous signals stay blocked
// in the threads that the library starts; handlers that lack SA_ONSTACK are
// replaced by those from before, and counted: handlers restored, or -1.
int asc_load(int lib, const char *const *candidates, int all, asc_lib *out);
// asc_absent gives the i-th absent symbol of a library with the release that
// has it, NULL at the end.
const char *asc_absent(int lib, int i);
// asc_has tells whether an optional symbol is there.
int asc_has(int lib, const char *name);

typedef struct {
	char soc[64], runtime[64];
	unsigned char uuid[16];
	int64_t memory, cores;
} asc_device;
int asc_count(uint32_t *n, asc_err *e);
int asc_describe(int ordinal, asc_device *out, asc_err *e);
int asc_open(int ordinal, aclrtContext *ctx, asc_err *e);
int asc_release(aclrtContext c, int ordinal, asc_err *e);
int asc_faults(const char *text); // -1: these libraries inject none; else what they answer

// asc_live asks an emulation for what exists in it; -1: these libraries cannot tell.
long asc_live(int lib, const char *symbol, int kind);

int asc_alive(aclrtContext c, asc_err *e);
int asc_limits(aclrtContext c, int64_t *streams, int64_t *events, asc_err *e); // free ones, -1: unknown
int asc_mem_info(aclrtContext c, size_t *avail, size_t *total, asc_err *e);
int asc_mem_alloc(aclrtContext c, size_t n, int shared, void **p, asc_err *e);
int asc_mem_free(aclrtContext c, void *p, asc_err *e);
int asc_host_alloc(aclrtContext c, size_t n, void **p, asc_err *e);
int asc_host_free(aclrtContext c, void *p, asc_err *e);
// asc_mask fills a side × side mask of bytes: 1 above the diagonal.
int asc_mask(aclrtContext c, void *p, size_t side, asc_err *e);
int asc_ipc_export(aclrtContext c, void *p, size_t n, char key[SL_IPC_KEY_BYTES], asc_err *e);
int asc_ipc_import(aclrtContext c, const char *key, void **p, asc_err *e);
int asc_ipc_close(aclrtContext c, const char *key, asc_err *e);
int asc_can_peer(int dev, int peer, int *can, asc_err *e);
int asc_enable_peer(aclrtContext c, int peer, asc_err *e);

int asc_stream_new(aclrtContext c, aclrtStream *s, asc_err *e);
int asc_stream_free(aclrtContext c, aclrtStream s, asc_err *e);
// asc_event_new: hardware: an event that is a flag, which a graph may wait for.
int asc_event_new(aclrtContext c, uint32_t flags, int hardware, aclrtEvent *ev, asc_err *e);
int asc_event_free(aclrtContext c, aclrtEvent ev, asc_err *e);
int asc_event_done(aclrtContext c, aclrtEvent ev, int *done, asc_err *e);
int asc_event_elapsed(aclrtContext c, aclrtEvent from, aclrtEvent to, float *ms, asc_err *e);
// asc_event_wait waits at most ms milliseconds; done tells whether it was reached.
int asc_event_wait(aclrtContext c, aclrtEvent ev, int ms, int *done, asc_err *e);

int asc_module_load(aclrtContext c, const void *data, size_t n, aclrtBinHandle *m, asc_err *e);
int asc_module_free(aclrtContext c, aclrtBinHandle m, asc_err *e);
int asc_module_func(aclrtContext c, aclrtBinHandle m, const char *name, aclrtFuncHandle *f, asc_err *e);

// A translated record: kind | payload words << 32, command index, six header
// words, payload.
enum { ASC_REC_WORDS = 8 };
enum {
	ASC_COPY = 1,     // a: dst, src, bytes, kind, room
	ASC_COPY_BATCH,   // a: count, 1 to the device or 2 to the host, device; payload: dsts, srcs, sizes, rooms
	ASC_FILL,         // a: dst, bytes, value, room
	ASC_RECORD,       // a: event
	ASC_WAIT,         // a: event
	ASC_RESET,        // a: event
	ASC_SIGNAL,       // a: event; runs also behind a failed record
	ASC_STREAM,       // a: stream
	ASC_GRAPH,        // a: graph
	ASC_GROUP_BEGIN,  // of a task group, in a capture
	ASC_GROUP_END,    // a: its place in groups[]
	ASC_UPDATE_BEGIN, // a: group; the current stream takes the update
	ASC_UPDATE_END,
	ASC_LAUNCH,       // a: function, blocks, bytes of arguments; payload: arguments
	ASC_OP,           // a: workspace, its bytes; payload: the call, see aclnn.h
	ASC_REDUCE, ASC_GATHER_ALL, ASC_ALL_TO_ALL, // a: communicator, src, dst, count, type, reduction
};
enum { ASC_SYNC_EACH = 1 };
// asc_replay submits all records; on failure e->index names the command.
int asc_replay(aclrtContext c, aclrtStream s, uint64_t *words, size_t n, unsigned flags, asc_err *e);
// asc_capture replays between begin and end of a thread-local capture.
int asc_capture(aclrtContext c, aclrtStream s, uint64_t *words, size_t n, aclmdlRI *g, aclrtTaskGrp *groups, asc_err *e);
int asc_graph_free(aclrtContext c, aclmdlRI g, asc_err *e);

int asc_hccl_id(aclrtContext c, HcclRootInfo *out, asc_err *e);
int asc_hccl_init(aclrtContext c, const HcclRootInfo *id, uint32_t rank, uint32_t size, HcclComm *out, asc_err *e);
int asc_hccl_free(aclrtContext c, HcclComm m, asc_err *e);

// Within the C side.
#define ASC_ROW(r, since, name, result, args) result (*name) args;
extern struct asc_acl_table { SL_ACL_SYMS(ASC_ROW) } ACL;
extern struct asc_nnop_table { SL_NNOP_SYMS(ASC_ROW) } NNOP;
extern struct asc_hccl_table { SL_HCCL_SYMS(ASC_ROW) } HCCL;
#undef ASC_ROW
typedef aclnnStatus (*asc_second)(void *, uint64_t, aclOpExecutor *, aclrtStream);
extern struct asc_op_table {
#define X(since, name, args) aclnnStatus (*name##GetWorkspaceSize) args; asc_second name;
	SL_ACLNN_OPS(X)
#undef X
} OPS;
int asc_fail(int lib, int rc, const char *call, asc_err *e);
int asc_fail_text(int lib, int rc, const char *call, const char *text, asc_err *e);
int asc_need_op(const char *name, asc_err *e); // fails: the operator is absent
int asc_hccl_run(unsigned kind, const uint64_t *a, aclrtStream s, asc_err *e);
enum { ASC_UNSUPPORTED = -1 };
#define ASC_TRY(call, ...) do { int rc_ = ACL.call(__VA_ARGS__); if (rc_) return asc_fail(ASC_LIB_ACL, rc_, #call, e); } while (0)
// ASC_NEED fails with ASC_UNSUPPORTED where the library lacks an optional symbol.
#define ASC_NEED(call) do { if (!ACL.call) return asc_fail_text(ASC_LIB_ACL, ASC_UNSUPPORTED, #call, "this CANN release has no such call: install a newer one", e); } while (0)
#define ASC_CTX(c) ASC_TRY(aclrtSetCurrentContext, c)

#endif
