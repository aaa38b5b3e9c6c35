// The C side of the CUDA backend. Every function is stateless: it makes the
// context current on the thread it happens to run on, does its calls, and fills
// the caller's error record in the same crossing. None calls back into Go.
#ifndef SLUICE_CUDA_SHIM_H
#define SLUICE_CUDA_SHIM_H

#include "abi.h"

typedef struct {
	int32_t code;  // the driver's or library's code; negative: the loader's
	int32_t index; // command that failed, -1
	int32_t lib;   // whose code: one of the SL_LIB_ numbers
	int32_t pad;
	char call[40]; // the vendor call that failed
	char name[56]; // the vendor's name of the code
	char text[160];
} sl_err;

enum { SL_LIB_CUDA, SL_LIB_NVRTC, SL_LIB_CUBLASLT, SL_LIB_NCCL, SL_LIBS };

// A library as the loader found it.
typedef struct {
	char path[256];
	char problem[512];
	int loaded, version;
} sl_lib;

// sl_load loads a library once, from the candidates (NULL-terminated) in order.
// It is called under a lock. Asynchronous signals stay blocked in the threads
// that the library starts; handlers that lack SA_ONSTACK are replaced by those
// from before, and counted in the result: handlers restored, or -1.
int sl_load(int lib, const char *const *candidates, sl_lib *out);
// sl_absent gives the name of the i-th absent symbol of a library, NULL at the end.
const char *sl_absent(int lib, int i);

typedef struct {
	char name[128], pci[32];
	unsigned char uuid[16];
	uint64_t memory;
	int sms, major, minor, shared_optin, pools;
} sl_device;
int sl_count(int *n, int *driver, sl_err *e);
int sl_describe(int ordinal, sl_device *out, sl_err *e);

int sl_open(int ordinal, sl_ctx *ctx, int *low, int *high, sl_err *e);
int sl_release(int ordinal, sl_err *e);
int sl_alive(sl_ctx c, sl_err *e);
int sl_mem_info(sl_ctx c, size_t *avail, size_t *total, sl_err *e);
int sl_mem_alloc(sl_ctx c, size_t n, sl_ptr *p, sl_err *e);
int sl_mem_free(sl_ctx c, sl_ptr p, sl_err *e);
int sl_pool_setup(sl_ctx c, int ordinal, sl_err *e);
int sl_pool_alloc(sl_ctx c, size_t n, sl_stream s, sl_ptr *p, sl_err *e);
int sl_pool_free(sl_ctx c, sl_ptr p, sl_stream s, sl_err *e);
int sl_host_alloc(sl_ctx c, size_t n, void **p, sl_ptr *dev, sl_err *e);
int sl_host_free(sl_ctx c, void *p, sl_err *e);
// sl_words makes a page of words that the device can write. The memory is never
// given back: points may be asked for after the device's end.
enum { SL_PAGE_WORDS = 512 };
int sl_words(sl_ctx c, void **p, sl_ptr *dev, sl_err *e);
int sl_words_end(sl_ctx c, void *p, sl_err *e);
int sl_ipc_export(sl_ctx c, sl_ptr p, unsigned char out[64], sl_err *e);
int sl_ipc_import(sl_ctx c, const unsigned char in[64], sl_ptr *p, sl_err *e);
int sl_ipc_close(sl_ctx c, sl_ptr p, sl_err *e);
int sl_can_peer(int dev, int peer, int *can, sl_err *e);
int sl_enable_peer(sl_ctx c, sl_ctx peer, sl_err *e);

int sl_stream_new(sl_ctx c, int priority, sl_stream *s, sl_err *e);
int sl_stream_free(sl_ctx c, sl_stream s, sl_err *e);
int sl_event_new(sl_ctx c, unsigned flags, sl_event *ev, sl_err *e);
int sl_event_free(sl_ctx c, sl_event ev, sl_err *e);
int sl_event_done(sl_ctx c, sl_event ev, int *done, sl_err *e);
int sl_event_elapsed(sl_ctx c, sl_event from, sl_event to, float *ms, sl_err *e);
// sl_wait polls the word until it reaches seq, for at most us microseconds; it
// tells whether it did. It calls no driver.
int sl_wait(const uint64_t *word, uint64_t seq, int64_t us);
// sl_stream_check reports a fault that the stream has met.
int sl_stream_check(sl_ctx c, sl_stream s, sl_err *e);

int sl_module_load(sl_ctx c, const void *image, sl_module *m, sl_err *e);
int sl_module_free(sl_ctx c, sl_module m, sl_err *e);
// sl_module_func also tells the bytes of its parameters, 0 if the driver cannot.
int sl_module_func(sl_ctx c, sl_module m, const char *name, sl_func *f, uint64_t *params, sl_err *e);
int sl_func_shared(sl_ctx c, sl_func f, int n, sl_err *e);
int sl_func_clusters(sl_ctx c, sl_func f, unsigned width, unsigned threads, unsigned shared, int *n, sl_err *e);

// A translated record: kind | payload words << 32, command index | node << 32,
// six header words, payload. node is 1 + the place in nodes[] for the handle of
// the record's graph node, 0 for none.
enum { SL_REC_WORDS = 8 };
enum {
	SL_COPY_HTOD = 1, SL_COPY_DTOH, SL_COPY_DTOD, SL_COPY_ANY, // a: dst, src, bytes
	SL_COPY_BATCH,  // a: count; payload: dsts, srcs, sizes
	SL_COPY_ROWS,   // a: dst, src, from one row to the next of both, bytes of a row, rows
	SL_FILL,        // a: dst, bytes, value
	SL_LAUNCH,      // a: func, gx|gy<<32, gz|bx<<32, by|bz<<32, shared | overlap<<32, argument bytes; payload: arguments
	SL_RECORD,      // a: event, flags
	SL_WAIT_EVENT,  // a: event, flags
	SL_WAIT_WORD,   // a: word address, value
	SL_SIGNAL,      // a: word address, value; runs also behind a failed record
	SL_STREAM,      // a: stream
	SL_GRAPH,       // a: exec
	SL_LT,          // a: plan, x, w, y, workspace, workspace bytes
	SL_REDUCE, SL_GATHER_ALL, SL_ALL_TO_ALL, // a: comm, src, dst, count, type, op or ranks; bytes per element in payload[0]
};
enum { SL_SYNC_EACH = 1 };
// sl_replay submits all records; on failure e->index names the command.
int sl_replay(sl_ctx c, sl_stream s, uint64_t *words, size_t n, unsigned flags, sl_err *e);
// sl_capture replays between begin and end of a thread-local capture, then
// instantiates. nodes[] takes the handles that records ask for.
int sl_capture(sl_ctx c, sl_stream s, uint64_t *words, size_t n, int upload, sl_graph *g, sl_exec *x, sl_node *nodes, size_t *count, sl_err *e);
int sl_graph_free(sl_ctx c, sl_graph g, sl_exec x, sl_err *e);
// sl_update sets the parameters of a kernel node from one SL_LAUNCH record.
int sl_update(sl_ctx c, sl_exec x, sl_node node, uint64_t *record, sl_err *e);

int sl_nvrtc_version(int *major, int *minor);
// sl_compile gives a cubin (malloc'd) or the log (malloc'd) or both.
int sl_compile(const char *src, const char *name, int n, const char *const *opts, char **cubin, size_t *size, char **log, sl_err *e);

typedef struct sl_lt_plan sl_lt_plan;
int sl_lt_new(sl_ctx c, sl_lt *h, sl_err *e);
int sl_lt_free(sl_ctx c, sl_lt h, sl_err *e);
// sl_lt_plan_new plans y[rows,m] = x[rows,k]·Wᵀ: row-major, strides in elements,
// types in the library's numbers; km: W is stored [k,m]; add: y is added to.
int sl_lt_plan_new(sl_ctx c, sl_lt h, int type, int out, int64_t rows, int64_t k, int64_t m, int km, int64_t xs, int64_t ws, int64_t ys, int add, size_t workspace, sl_lt_plan **p, sl_err *e);
void sl_lt_plan_free(sl_lt_plan *p);
int sl_lt_run(sl_lt_plan *p, void *const *xwy, void *ws, size_t wsn, sl_stream s, sl_err *e);

int sl_nccl_id_new(unsigned char out[128], sl_err *e);
int sl_nccl_init(sl_ctx c, const unsigned char id[128], int rank, int size, sl_comm *out, sl_err *e);
int sl_nccl_free(sl_ctx c, sl_comm m, int abort, sl_err *e);
int sl_nccl_run(unsigned kind, const uint64_t *a, uint64_t elem, sl_stream s, sl_err *e);

// Within the C side.
extern struct sl_cuda_table {
#define X(r, name, v, args) sl_result (*name) args;
	SL_CUDA_SYMS(X)
#undef X
} CU;
int sl_fail(sl_result rc, const char *call, sl_err *e);
int sl_fail_text(int lib, int rc, const char *call, const char *text, sl_err *e);
int sl_need(const void *symbol, const char *call, sl_err *e);
#define SL_TRY(call, ...) do { sl_result rc_ = CU.call(__VA_ARGS__); if (rc_) return sl_fail(rc_, #call, e); } while (0)
// SL_NEED fails with SL_UNSUPPORTED where the driver lacks an optional symbol.
enum { SL_UNSUPPORTED = -1 };
#define SL_NEED(call) do { if (!CU.call) return sl_need(NULL, #call, e); } while (0)
#define SL_CTX(c) SL_TRY(cuCtxSetCurrent, c)

#endif
