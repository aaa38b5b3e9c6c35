/*
 * sluice.h: the scheduler core of Sluice for runtimes that are not written in Go.
 *
 * A scheduler decides, step by step, which tokens of which requests run next,
 * which KV blocks they use, what KV moves in and out, and which captured graph
 * may replay the step. The caller drives it:
 *
 *     sluice_new(config, …, &s, …)        one cache and one scheduler over it
 *     sluice_add(s, &request, &id)        takes a request in
 *     sluice_plan(s, now, &plan)          one step: rows, blocks, graph, transfers
 *     … execute it …
 *     sluice_apply(s, plan->seq, &result, &outputs)
 *     sluice_next_deadline(s, &at)        when to plan although nothing arrives
 *     sluice_free(s)
 *
 * Status. Every function that can fail returns a sluice_status, SLUICE_OK being
 * 0. A call that fails changes nothing, unless its comment says otherwise. The
 * text of a handle's last failure comes from sluice_last_error.
 *
 * Handles. A sluice_handle is a number, not a pointer. One that was freed, that
 * is of another kind, or that never was one gives SLUICE_E_HANDLE. 0 is none.
 *
 * Threads. A handle is used by one thread at a time, any thread. A call that
 * meets another call on the same handle does nothing and returns SLUICE_E_BUSY.
 * Different handles may be used by different threads at once, without limit.
 *
 * Memory. Input strings and arrays are read during the call only; they are
 * copied where they must live longer. Output structures and the arrays that
 * they point to lie in C memory of the library, belong to the handle, are only
 * read by the caller, and are valid as long as the function's comment says.
 * Strings end with a zero byte and are UTF-8; NULL stands for the empty one. An
 * array of length 0 may be NULL.
 *
 * Structures begin with struct_size. The caller sets it to sizeof the structure
 * in what it passes in; the library sets it in what it hands out. A structure
 * may grow at its end within one ABI version.
 *
 * Times are nanoseconds since an epoch that the caller chooses.
 *
 * fork. The library runs a Go runtime, which does not survive fork(): in a child
 * every function returns SLUICE_E_FORKED and nothing else happens. A child that
 * calls exec, and a process that loads the library after fork, are not affected.
 *
 * The library has no callback, no thread of the caller's is kept, and it has no
 * state beyond its handles and the Go runtime.
 */
#ifndef SLUICE_H
#define SLUICE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The ABI that this header describes. A library of another number must not be used. */
#define SLUICE_ABI_VERSION 1

/* Later than every other time. */
#define SLUICE_NEVER INT64_MAX

/* A token id that is not known yet; see sluice_plan_t.inputs. */
#define SLUICE_UNKNOWN_TOKEN (-1)

typedef uint64_t sluice_handle;

/* A request inside one scheduler: a dense slot in the low 32 bits, which an
 * executor may use as an index, and the slot's generation, at least 1, in the
 * high ones. Slots of requests that have ended are used again. */
typedef uint64_t sluice_request_id;

#define SLUICE_SLOT(id) ((uint32_t)(id))

typedef enum sluice_status {
    SLUICE_OK = 0,
    SLUICE_E_ARGUMENT = 1,     /* NULL, or a value that the argument cannot have */
    SLUICE_E_SIZE = 2,         /* a struct_size that is not known, or a buffer that is too small */
    SLUICE_E_HANDLE = 3,       /* no live object of this kind has the handle */
    SLUICE_E_BUSY = 4,         /* another thread is using the handle */
    SLUICE_E_FORKED = 5,       /* called in a child of fork() */
    SLUICE_E_CONFIG = 6,       /* the configuration is no JSON, or has a fault */
    SLUICE_E_REQUEST = 7,      /* a field of the request has a fault */
    SLUICE_E_DUPLICATE = 8,    /* a live request has this name */
    SLUICE_E_UNKNOWN = 9,      /* no live request has this id, no session this name */
    SLUICE_E_TOO_LONG = 10,    /* the prompt is longer than the model allows */
    SLUICE_E_NEVER_FITS = 11,  /* the prompt needs more blocks than there are */
    SLUICE_E_PLANS = 12,       /* as many plans are in flight as the configuration allows */
    SLUICE_E_STALE_PLAN = 13,  /* the plan was applied already */
    SLUICE_E_FOREIGN_PLAN = 14,/* no plan of this number was made */
    SLUICE_E_PLAN_ORDER = 15,  /* an earlier plan is to be applied first */
    SLUICE_E_RESULT = 16,      /* the result does not fit its plan */
    SLUICE_E_CACHE_BUSY = 17,  /* requests hold blocks */
    SLUICE_E_ABSENT = 18,      /* the handle was made without what the call is about */
    SLUICE_E_IO = 19,          /* a recording could not be read or written */
    SLUICE_E_BROKEN = 20       /* an invariant broke in an earlier call, or in this one */
} sluice_status;

/* ------------------------------------------------------------------ library */

/* The ABI of the library; compare with SLUICE_ABI_VERSION before anything else.
 * Works after fork, too. */
uint32_t sluice_abi_version(void);

/* A status in words. The text is constant. Works after fork, too. */
const char *sluice_status_text(int status);

/* Names of enumerations, as metrics and logs write them. */
typedef enum sluice_text_kind {
    SLUICE_TEXT_FINISH = 0,      /* sluice_finish, e.g. "length" */
    SLUICE_TEXT_REFUSAL = 1,     /* sluice_refusal_reason, e.g. "no_prefix" */
    SLUICE_TEXT_REQUEST = 2,     /* sluice_request_status, e.g. "waiting" */
    SLUICE_TEXT_WAIT = 3,        /* sluice_wait, e.g. "load" */
    SLUICE_TEXT_MODE = 4,        /* sluice_mode, e.g. "FULL" */
    SLUICE_TEXT_REASON = 5,      /* sluice_decision_t.reason, e.g. "prefill_row" */
    SLUICE_TEXT_VERDICT = 6,     /* a verdict's class and cause */
    SLUICE_TEXT_CAUSE = 7        /* sluice_cause in words */
} sluice_text_kind;

/* The name of a value, "" for a value that there is not. The text is constant. */
const char *sluice_text(int kind, int value);

/* Writes the text of the last call on the handle that failed, cut to size bytes
 * with a zero byte at the end, and to *needed (may be NULL) the bytes that all of
 * it takes, the zero byte included. "" if none has failed. It may be called while
 * another thread uses the handle. For a handle that is none the text says so, and
 * the status is SLUICE_E_HANDLE. */
int sluice_last_error(sluice_handle handle, char *text, size_t size, size_t *needed);

/* Gives back everything that belongs to the handle, plans in flight included.
 * SLUICE_E_IO if its recording is not complete; the handle is gone all the same. */
int sluice_free(sluice_handle handle);

/* --------------------------------------------------------------- a scheduler */

/*
 * Makes a cache and a scheduler from one JSON object of size bytes:
 *
 *   {"Cache":     {"Blocks": 10000, "BlockSize": 16},
 *    "Scheduler": {"MaxModelLen": 8192, "Policy": "priority", "LoadTimeout": "60s"},
 *    "Graphs":    {"K": 3},
 *    "Connector": {"Lookup": "Ask", "Preempted": "Save"},
 *    "Record":    {"Path": "steps.jsonl"}}
 *
 * Cache, Scheduler and Graphs have the keys of kvcache.Config, scheduler.Config
 * and graphs.Config, spelled as in Go. An enumeration's value is a number, the
 * name of the Go constant, or what its String writes. A duration is a number of
 * nanoseconds or a string such as "1.5s". A key that there is not is a fault.
 *
 * Graphs: without it plans have no verdicts and no graph choice. MaxNumSeqs and
 * MaxNumBatchedTokens default to the scheduler's. "Captured": "All" (default) or
 * "Nothing" is the initial capture state; see sluice_set_captured.
 *
 * Connector: without it no KV comes from or goes to anywhere. Keys:
 *   "Lookup"     "None" (default) or "Ask": whether a request without an offer of
 *                its own waits for sluice_offer before it is admitted
 *   "Preempted"  "Drop" (default) or "Save": whether the KV of preempted requests
 *                is handed out as saves
 *   "Delivery"   "Optional" (default) or "Required": whether output that arrives
 *                for a preempted request is dropped, as a prefiller needs it
 *
 * Record: every operation and plan is written to the file, for sluice_replay.
 *
 * On failure error (may be NULL) gets what is wrong, cut to error_size bytes.
 */
int sluice_new(const char *config, size_t size, sluice_handle *scheduler, char *error, size_t error_size);

typedef struct sluice_info_t {
    uint32_t struct_size;
    int32_t blocks;      /* of the pool, the null block 0 included */
    int32_t block_size;  /* tokens */
    int32_t groups;      /* KV groups */
    int32_t max_len;     /* longest sequence in tokens: the configured one, or what the pool holds */
    int32_t max_rows;    /* rows of a plan at most */
    int32_t max_tokens;  /* tokens of a plan at most */
    int32_t in_flight;   /* plans that may be made and not applied */
    int32_t drafts;      /* K */
    int32_t graph_keys;  /* 0 without graphs */
} sluice_info_t;

/* What the configuration came to, with its defaults. */
int sluice_info(sluice_handle scheduler, sluice_info_t *info);

/* ------------------------------------------------------------------ requests */

typedef enum sluice_route {
    SLUICE_LOCAL = 0,          /* the prompt is prefilled here */
    SLUICE_REMOTE_PREFILL = 1, /* its KV is expected from a prefiller */
    SLUICE_APPEND_PREFILL = 2  /* prefilled here on top of a cached prefix, or refused */
} sluice_route;

typedef enum sluice_grammar {
    SLUICE_NO_GRAMMAR = 0,
    SLUICE_GRAMMAR_PENDING = 1, /* being compiled; the request waits */
    SLUICE_GRAMMAR_READY = 2,
    SLUICE_GRAMMAR_FAILED = 3   /* the request ends with an error */
} sluice_grammar;

typedef enum sluice_turn_end {
    SLUICE_END_OF_TURN = 0,     /* a person reads the answer */
    SLUICE_END_IN_TOOL = 1,     /* a tool runs, and its result comes back */
    SLUICE_END_OF_SESSION = 2
} sluice_turn_end;

/* Flags of a request. */
#define SLUICE_SKIP_CACHE_READ 1u /* compute the whole prompt although a prefix is cached */
#define SLUICE_RESUMABLE 2u       /* a streaming session; see sluice_add */
#define SLUICE_HOLD_AT_END 4u     /* keep the blocks of a complete request until SLUICE_SENT; it comes as a send */

typedef enum sluice_lookup {
    SLUICE_LOOKUP_DEFAULT = 0, /* of a request: as the configuration says */
    SLUICE_LOOKUP_NONE = 1,    /* nothing can be loaded */
    SLUICE_LOOKUP_ASK = 2,     /* not known yet: the request waits, and stands in sluice_plan_t.pending */
    SLUICE_LOOKUP_OFFER = 3    /* the KV of the first tokens of the sequence can be loaded */
} sluice_lookup;

/* What can be loaded for a request from outside the device. */
typedef struct sluice_offer_t {
    uint32_t struct_size;
    int32_t lookup;       /* sluice_lookup */
    int64_t tokens;       /* of SLUICE_LOOKUP_OFFER: counted from the start of the sequence, local hits included */
    int32_t async_load;   /* 1: the request waits for SLUICE_RECEIVED; 0: loaded by the step that admits it */
    int32_t repeat;       /* 1: it can be loaded again after a preemption; 0: once */
    int64_t beyond;       /* first token that can be loaded: behind a shorter local hit the lookup waits for another offer; 0: all can */
    int64_t timeout;      /* of the load, or of the wait for an answer, ns; 0: as configured */
} sluice_offer_t;

typedef struct sluice_request_t {
    uint32_t struct_size;
    uint32_t flags;
    const char *name;         /* the caller's, unique among live requests; not empty */
    const int32_t *prompt;    /* copied */
    size_t prompt_size;       /* tokens, at least 1 */
    int32_t route;            /* sluice_route */
    int32_t grammar;          /* sluice_grammar */
    const char *tenant;       /* for fair sharing */
    const char *session;      /* conversation that the request belongs to */
    /* Only requests of equal namespaces share KV; each field counts by itself. */
    const char *space_tenant;
    const char *salt;
    const char *lora_name;
    int64_t lora_id;
    const char *media;
    const char *variant;
    int64_t max_tokens;       /* to generate, at least 1 */
    int64_t min_tokens;       /* before any stop rule */
    const int32_t *eos;       /* end the request without a reported token */
    size_t eos_size;
    const int32_t *stop;      /* end it and are reported */
    size_t stop_size;
    int32_t repeat_min;       /* repetition rule: shortest pattern */
    int32_t repeat_max;       /* longest pattern; 0 switches the rule off */
    int32_t repeat_count;
    int32_t priority;         /* smaller runs first */
    int64_t arrival;
    int64_t deadline;         /* 0: none */
    int64_t remote_eta;       /* ns to the first token on the other route; 0: not known */
    double hit_threshold;     /* refuse below this cached share; 0: off */
    int32_t turn_end;         /* sluice_turn_end */
    int32_t reserved;         /* 0 */
    sluice_offer_t offer;     /* struct_size 0: as configured */
} sluice_request_t;

/* Takes a request in. A name that a live session (SLUICE_RESUMABLE) has is its
 * continuation if the request is resumable too, and its end otherwise; *id is
 * then the session's. */
int sluice_add(sluice_handle scheduler, const sluice_request_t *request, sluice_request_id *id);

typedef enum sluice_finish {
    SLUICE_NOT_FINISHED = 0,
    SLUICE_FINISH_STOP = 1,
    SLUICE_FINISH_LENGTH = 2,
    SLUICE_FINISH_ABORT = 3,
    SLUICE_FINISH_ERROR = 4,
    SLUICE_FINISH_REFUSED = 5,    /* an append attempt without a usable prefix */
    SLUICE_FINISH_REPETITION = 6,
    SLUICE_FINISH_RECOMPUTED = 7  /* gave way on a decoder that sends such requests back */
} sluice_finish_t;

/* Ends a request in whatever state it is; nothing more is output for it.
 * SLUICE_E_UNKNOWN if it has ended. */
int sluice_abort(sluice_handle scheduler, sluice_request_id id);

/* Ends a request for a reason that the caller found, e.g. a stop string. */
int sluice_finish(sluice_handle scheduler, sluice_request_id id, int reason);

/* The live request of a name. */
int sluice_find(sluice_handle scheduler, const char *name, sluice_request_id *id);

typedef enum sluice_request_status {
    SLUICE_WAITING = 0,
    SLUICE_WAITING_GRAMMAR = 1,
    SLUICE_WAITING_KV = 2,
    SLUICE_WAITING_INPUT = 3,
    SLUICE_RUNNING = 4,
    SLUICE_PREEMPTED = 5,
    SLUICE_FINISHED = 6       /* held until its blocks may go */
} sluice_request_status;

/* Where a request is. SLUICE_E_UNKNOWN if it has ended and holds nothing. */
int sluice_request_state(sluice_handle scheduler, sluice_request_id id, int32_t *status);

/* What became of a request's grammar. */
int sluice_set_grammar(sluice_handle scheduler, sluice_request_id id, int grammar);

/* What the client of a session does after its last turn, where only the answer tells. */
int sluice_end_turn(sluice_handle scheduler, const char *session, int turn_end);

/* ---------------------------------------------------------------- KV transfers
 *
 * A connector's decisions go in and out as data. Lookups that wait for an answer
 * stand in a plan's pending list; sluice_offer answers. Loads stand in the plan;
 * their end is delivered as SLUICE_RECEIVED, with SLUICE_FAILED before it for
 * blocks that did not come. Saves of preempted requests stand in the plan's
 * transfers, sends of finished ones in those of plans and outputs; their ends
 * are SLUICE_SAVED and SLUICE_SENT.
 */

/* Answers a request's lookups from the next plan on, in place of what was said
 * before. SLUICE_E_ABSENT without a connector in the configuration. */
int sluice_offer(sluice_handle scheduler, sluice_request_id id, const sluice_offer_t *offer);

typedef enum sluice_event_kind {
    SLUICE_RECEIVED = 1, /* a load has ended; nothing writes to its blocks any more */
    SLUICE_FAILED = 2,   /* these blocks did not come; none: the whole load. Of a save: it is lost */
    SLUICE_SENT = 3,     /* the blocks that the request holds are not needed any more */
    SLUICE_SAVED = 4     /* a save is complete; its KV can be loaded from now on */
} sluice_event_kind;

typedef struct sluice_event_t {
    sluice_request_id request;
    int32_t kind;            /* sluice_event_kind */
    int32_t worker;          /* rank that reports, from 0 */
    const int32_t *blocks;   /* of SLUICE_FAILED; request may be 0 with them */
    size_t blocks_size;
} sluice_event_t;

/* Hands over what happened, in order. Events are idempotent; one that fits no
 * wait is ignored and counted. */
int sluice_deliver(sluice_handle scheduler, const sluice_event_t *events, size_t size);

typedef enum sluice_transfer_kind {
    SLUICE_SEND = 1,   /* make the blocks available to a peer until SLUICE_SENT */
    SLUICE_SAVE = 2    /* copy the blocks away before anything of this step writes to them */
} sluice_transfer_kind;

/* Transfers to begin, in order. Of transfer i and KV group g: blocks
 * [blocks_at[i*groups+g], blocks_at[i*groups+g+1]), at the positions from 0 on. */
typedef struct sluice_transfers_t {
    int32_t size;
    int32_t groups;
    const uint8_t *kinds;               /* sluice_transfer_kind */
    const sluice_request_id *requests;
    const int32_t *tokens;              /* whose KV is in the blocks */
    const int32_t *blocks;
    const int32_t *blocks_at;           /* size*groups+1 entries */
} sluice_transfers_t;

/* --------------------------------------------------------------------- graphs */

typedef enum sluice_mode {
    SLUICE_MODE_NONE = 0,      /* eager */
    SLUICE_MODE_PIECEWISE = 1, /* graphs between the attention calls */
    SLUICE_MODE_FULL = 2       /* one graph over the whole forward pass */
} sluice_mode;

/* A captured graph. */
typedef struct sluice_graph_key_t {
    int32_t mode;     /* sluice_mode */
    int32_t tokens;   /* padded */
    int32_t reqs;     /* padded rows; 0 for PIECEWISE */
    int32_t uniform;  /* width of every row of a decode graph, else 0 */
    int32_t bound;    /* largest width of a decode graph for rows of any width, else 0 */
    int32_t lora;     /* case of active adapters */
} sluice_graph_key_t;

/* How a step runs. */
typedef struct sluice_decision_t {
    int32_t mode;          /* sluice_mode */
    int32_t reason;        /* why not FULL; 0 for FULL; see SLUICE_TEXT_REASON */
    int32_t tokens;        /* before padding */
    int32_t reqs;
    int32_t padded_tokens;
    int32_t padded_reqs;
    int32_t uniform;       /* width of the decode graph that replays, else 0 */
    int32_t key_id;        /* index into sluice_graph_keys, -1 if nothing replays */
    sluice_graph_key_t key;
    int32_t tails;         /* one-token prompt tails among the rows */
    int32_t padded_tails;
} sluice_decision_t;

/* Class of a row's verdict. */
typedef enum sluice_class {
    SLUICE_CLASS_DECODE = 0,
    SLUICE_CLASS_TAIL = 1,
    SLUICE_CLASS_PREFILL = 2,
    SLUICE_CLASS_MALFORMED = 3
} sluice_class;

/* The sluice_class of a verdict; -1 for a number that is none. */
int sluice_verdict_class(int verdict);

/* Makes a dispatcher alone, for callers with a scheduler of their own, from a
 * JSON object with the keys of graphs.Config and "Captured", as in sluice_new. */
int sluice_graphs_new(const char *config, size_t size, sluice_handle *graphs, char *error, size_t error_size);

/* Flags of a batch. */
#define SLUICE_ENCODER_INPUTS 1u
#define SLUICE_FORCED_EAGER 2u
#define SLUICE_CASCADE 4u

/* A batch as a struct of arrays, size entries in each. */
typedef struct sluice_batch_t {
    uint32_t struct_size;
    uint32_t flags;
    size_t size;
    const int32_t *scheduled;    /* tokens to compute, drafts included */
    const int32_t *drafts;       /* of them drafts to verify */
    const int32_t *placeholders; /* of the drafts those that must be rejected */
    const int32_t *computed;     /* tokens whose KV exists */
    const int32_t *prefill;      /* tokens known at the last admission */
    int32_t loras;               /* active adapters */
    int32_t trimmed_tokens;      /* tokens left after drafts were trimmed; 0: all */
    int32_t rank_tokens;         /* largest number of tokens of one rank; 0: all */
    int32_t fewer_drafts;        /* by how much this step's K is below the configured one */
} sluice_batch_t;

/* Classifies the rows and chooses the graph. verdicts gets batch->size bytes.
 * The handle is a dispatcher's, or that of a scheduler with graphs. */
int sluice_classify(sluice_handle graphs, const sluice_batch_t *batch, uint8_t *verdicts, sluice_decision_t *decision);

/* Writes at most capacity keys in the order of capture and their number to *size. */
int sluice_graph_keys(sluice_handle graphs, sluice_graph_key_t *keys, size_t capacity, size_t *size);

typedef enum sluice_captured {
    SLUICE_NOTHING_CAPTURED = 0,
    SLUICE_SAMPLING = 1,        /* memory is being profiled: FULL only for marked keys */
    SLUICE_ALL_CAPTURED = 2,
    SLUICE_PARTLY_CAPTURED = 3  /* marked keys only */
} sluice_captured;

/* Which graphs exist from now on. marked lists key ids; those of earlier calls
 * are forgotten. */
int sluice_set_captured(sluice_handle graphs, int captured, const int32_t *marked, size_t size);

/* ---------------------------------------------------------------------- steps */

typedef enum sluice_row_kind {
    SLUICE_ROW_NEW = 0,      /* first seen; the row brings its whole block table */
    SLUICE_ROW_RESUMED = 1,  /* preempted before; whole block table, the old one is void */
    SLUICE_ROW_RUNNING = 2   /* the row brings the new end of its block table */
} sluice_row_kind;

typedef enum sluice_wait {
    SLUICE_WAIT_NOTHING = 0,
    SLUICE_WAIT_STEP = 1,     /* a plan in flight must be applied */
    SLUICE_WAIT_LOAD = 2,
    SLUICE_WAIT_LOOKUP = 3,
    SLUICE_WAIT_RELEASE = 4,  /* held blocks must be sent */
    SLUICE_WAIT_GRAMMAR = 5,
    SLUICE_WAIT_INPUT = 6,    /* a session must be continued */
    SLUICE_WAIT_RESUME = 7    /* the scheduler is paused */
} sluice_wait;

/* Why an append attempt was refused. */
typedef enum sluice_refusal_reason {
    SLUICE_NOT_REFUSED = 0,
    SLUICE_NO_PREFIX = 1,
    SLUICE_BELOW_MIN_PREFIX = 2,
    SLUICE_SUFFIX_TOO_LONG = 3,
    SLUICE_REFUSED_BUSY = 4,
    SLUICE_DRAINING = 5,
    SLUICE_BELOW_THRESHOLD = 6
} sluice_refusal_reason;

typedef struct sluice_refusal_t {
    uint8_t reason;          /* sluice_refusal_reason */
    int32_t prompt_tokens;
    int32_t cached_tokens;
} sluice_refusal_t;

/*
 * One step. It lies in C memory as the scheduler wrote it, and is valid and
 * unchanged until it is applied or the scheduler is freed.
 *
 * An array x that comes with x_at is ragged: owner i has [x_at[i], x_at[i+1]).
 * An executor takes a plan up in this order:
 *
 *   1. finished and preempted: forget these requests. Their slots may come again
 *      in this plan.
 *   2. transfers: the saves, then the loads. Blocks of a save may be written by
 *      the rows of this very plan.
 *   3. the rows, all KV of a layer before any attention of that layer reads it.
 *      Row i computes scheduled[i] tokens from position computed[i] on; position
 *      p lies in block table[p/block_size] at p%block_size. The executor keeps a
 *      table per request and group (index: SLUICE_SLOT) and writes the blocks of
 *      owner i*groups+g to it from position table_from[i*groups+g] on.
 *   4. sluice_apply, also for a plan without rows.
 */
typedef struct sluice_plan_t {
    uint32_t struct_size;
    int32_t rows;
    uint64_t seq;       /* number of the plan, from 1, without gaps */
    int64_t now;
    uint64_t applied;   /* last plan that was applied when this one was made */
    int32_t groups;
    int32_t total;      /* sum of scheduled */
    int32_t loras;      /* adapters */
    int32_t next_drafts;/* drafts per row to propose for the next plan */
    int32_t free;       /* blocks that are free or evictable after planning */
    int32_t waits;      /* sluice_wait; set on a plan without rows */

    /* Per row, those of running requests first. */
    const sluice_request_id *requests;
    const uint8_t *kinds;            /* sluice_row_kind */
    const int32_t *scheduled;        /* tokens to compute, drafts included */
    const int32_t *drafts;           /* of them drafts to verify, at the end of the row */
    const int32_t *placeholders;     /* of the drafts those that must be rejected */
    const int32_t *computed;         /* tokens whose KV is there before the step */
    const int32_t *prefill;          /* below it a row is prefilling */
    const int32_t *outputs;          /* tokens generated before, those in flight included */
    const uint8_t *samples;          /* 1 if the row yields a token */
    const int32_t *local_hits;       /* new and resumed rows: tokens found in the cache */
    const int32_t *external_hits;    /* new and resumed rows: tokens that come into this very step */
    const int32_t *inputs;           /* token ids; SLUICE_UNKNOWN_TOKEN: sampled by an earlier plan in flight, or a draft that the executor holds */
    const int32_t *inputs_at;        /* rows+1 */
    const int32_t *known;            /* all known tokens, for new rows under "Executor": "NewResume" */
    const int32_t *known_at;         /* rows+1 */
    const int32_t *table_from;       /* rows*groups */
    const int32_t *blocks;
    const int32_t *blocks_at;        /* rows*groups+1 */
    const int32_t *common_prefix;    /* per group: leading blocks that all tables have in common */
    const uint8_t *verdicts;         /* per row; NULL without graphs */
    sluice_decision_t graph;         /* key_id -1 without graphs */

    int32_t grammar_size;
    const int32_t *grammar_rows;     /* rows whose logits need a mask */
    const uint8_t *grammar_waits;    /* 1 if the mask depends on a token in flight */

    /* Loads that begin in this step: tokens [loads_from, loads_to). An
     * asynchronous one has no row and brings its whole table here. */
    int32_t loads_size;
    const sluice_request_id *loads;
    const int32_t *loads_from;
    const int32_t *loads_to;
    const uint8_t *loads_async;
    const int32_t *load_blocks;      /* owner i*groups+g */
    const int32_t *load_blocks_at;

    /* Requests whose lookup waits for sluice_offer, and how many of their tokens
     * are cached here. */
    int32_t pending_size;
    const sluice_request_id *pending;
    const int32_t *pending_local;

    int32_t finished_size;           /* ended since the previous plan */
    const sluice_request_id *finished;
    const uint8_t *finished_reasons; /* sluice_finish */

    int32_t preempted_size;          /* since the previous plan, in order */
    const sluice_request_id *preempted;
    const uint8_t *preempted_saved;  /* 1 if their KV is saved */
    int32_t rolled_back_size;        /* of them those that had a row in this plan before */
    const sluice_request_id *rolled_back;

    int32_t refused_size;            /* append attempts that this plan ends */
    const sluice_request_id *refused;
    const sluice_refusal_t *refusals;

    int32_t released_size;           /* ended before; their blocks have returned */
    const sluice_request_id *released;

    sluice_transfers_t transfers;
} sluice_plan_t;

/* Makes one plan. now never decreases. SLUICE_E_PLANS while as many plans are in
 * flight as the configuration allows. */
int sluice_plan(sluice_handle scheduler, int64_t now, const sluice_plan_t **plan);

/* What an executor reports for one plan. */
typedef struct sluice_result_t {
    uint32_t struct_size;
    int32_t failed;               /* 1: nothing of the step may be used; the rest is not read */
    int64_t elapsed;              /* ns on the device; 0: not measured */
    const int32_t *tokens;        /* sampled, row after row */
    size_t tokens_size;
    const int32_t *counts;        /* tokens of each row; NULL: samples[i] each. A row with d drafts has 1 to d+1 */
    size_t counts_size;           /* rows, or 0 */
    const int32_t *drafts;        /* proposed for the next step, row after row */
    size_t drafts_size;
    const int32_t *draft_counts;  /* of each row; NULL: none */
    size_t draft_counts_size;     /* rows, or 0 */
    const int32_t *grammar_errors;/* rows whose grammar rejected an accepted token */
    size_t grammar_errors_size;
} sluice_result_t;

/* Why a request ended with SLUICE_FINISH_ERROR. */
typedef enum sluice_cause {
    SLUICE_CAUSE_NONE = 0,
    SLUICE_CAUSE_LOAD_FAILED = 1,
    SLUICE_CAUSE_LOAD_TIMEOUT = 2,
    SLUICE_CAUSE_LOOKUP_TIMEOUT = 3,
    SLUICE_CAUSE_GRAMMAR = 4,
    SLUICE_CAUSE_GRAMMAR_TIMEOUT = 5,
    SLUICE_CAUSE_INPUT_TIMEOUT = 6,
    SLUICE_CAUSE_OTHER = 7
} sluice_cause;

typedef enum sluice_stop {
    SLUICE_STOP_NONE = 0,
    SLUICE_STOP_EOS = 1,
    SLUICE_STOP_ID = 2,     /* stop_token is it */
    SLUICE_STOP_CALLER = 3
} sluice_stop;

/* What one request has gained. */
typedef struct sluice_output_t {
    sluice_request_id request;
    int32_t tokens_at;       /* its tokens are sluice_outputs_t.tokens[tokens_at …] */
    int32_t tokens_size;
    uint8_t finish;          /* sluice_finish; set on the last output */
    uint8_t stop;            /* sluice_stop */
    uint8_t first;           /* 1 on the first output; cached and external are then set */
    uint8_t cause;           /* sluice_cause */
    int32_t stop_token;
    int32_t cached;          /* prompt tokens found in the cache at the first admission */
    int32_t external;        /* prompt tokens that were loaded */
    sluice_refusal_t refusal;/* set with SLUICE_FINISH_REFUSED */
} sluice_output_t;

/* What a step has brought. Valid until the next sluice_apply on the handle. */
typedef struct sluice_outputs_t {
    uint32_t struct_size;
    int32_t size;
    const sluice_output_t *outputs;  /* ends that are no row's first, then in the order of the rows */
    const int32_t *tokens;
    int32_t tokens_size;
    int32_t reserved;
    sluice_transfers_t transfers;    /* to begin before the outputs leave */
} sluice_outputs_t;

/* Takes the result of the oldest plan in flight, the one with the number seq. The
 * plan's memory is void after it. A result that does not fit changes nothing and
 * leaves the plan in flight. outputs may be NULL. */
int sluice_apply(sluice_handle scheduler, uint64_t seq, const sluice_result_t *result, const sluice_outputs_t **outputs);

/* When sluice_plan must be called although nothing arrives; SLUICE_NEVER if never. */
int sluice_next_deadline(sluice_handle scheduler, int64_t *at);

/* 1 if sluice_plan is worth calling now. */
int sluice_has_work(sluice_handle scheduler, int32_t *work);

/* The binary form of a plan in flight, for executors in other processes: writes
 * it if size bytes suffice (else SLUICE_E_SIZE), and its length to *needed. */
int sluice_encode_plan(sluice_handle scheduler, uint64_t seq, void *data, size_t size, size_t *needed);

/* -------------------------------------------------------------------- control */

typedef enum sluice_pause {
    SLUICE_UNPAUSED = 0,
    SLUICE_PAUSE_NEW = 1,  /* nobody is admitted; running requests go on */
    SLUICE_PAUSE_ALL = 2   /* no rows at all */
} sluice_pause;

int sluice_set_pause(sluice_handle scheduler, int pause);

/* 1: prompts hold back while somebody decodes, so that ranks stay in step. */
int sluice_set_throttle(sluice_handle scheduler, int throttle);

/* Refuses every append attempt that is not admitted yet. */
int sluice_drain(sluice_handle scheduler);

/* Forgets every cached prefix. preempt 1: running requests are preempted first,
 * also if the answer is SLUICE_E_CACHE_BUSY because plans in flight still write. */
int sluice_reset_cache(sluice_handle scheduler, int preempt);

/* For ranks that step together: each proposes, the proposals are joined, and each
 * is given the agreement before its next plan. */
typedef struct sluice_proposal_t {
    int32_t cap;    /* append tokens that the rank can bear */
    int32_t wants;  /* 1 if it has some */
} sluice_proposal_t;

typedef struct sluice_agreement_t {
    int32_t cap;
    int32_t chunk;  /* 1 if some rank computes append tokens */
} sluice_agreement_t;

int sluice_propose(sluice_handle scheduler, sluice_proposal_t *proposal);
int sluice_agree(const sluice_proposal_t *proposals, size_t size, sluice_agreement_t *agreement);
int sluice_set_agreement(sluice_handle scheduler, const sluice_agreement_t *agreement);

/* ------------------------------------------------------------------ KV events */

typedef enum sluice_kv_event_kind {
    SLUICE_STORED = 0,   /* positions that had no copy in the group have one */
    SLUICE_REMOVED = 1,  /* positions have lost their last copy */
    SLUICE_CLEARED = 2   /* nothing is cached any more */
} sluice_kv_event_kind;

/* Changes of what is cached, under {"Cache": {"Events": {"Mode": "EventsOn"}}}.
 * Valid until the next sluice_take_events on the handle. */
typedef struct sluice_kv_events_t {
    uint32_t struct_size;
    int32_t size;
    int32_t block_size;       /* tokens per hash */
    int32_t hash_size;        /* bytes per hash */
    const uint8_t *kinds;     /* sluice_kv_event_kind */
    const int32_t *groups;
    const uint8_t *hashes;    /* chain hashes, hash_size bytes each */
    const int32_t *hashes_at; /* in hashes; size+1 */
    const uint8_t *parents;   /* hash of the position before, per event; zero at the start */
    const uint8_t *has_parent;/* 1 if there is one */
    const int32_t *tokens;    /* of stored blocks */
    const int32_t *tokens_at; /* size+1 */
    const int64_t *lora_ids;
    const char *texts;        /* per event: medium, space_tenant, salt, lora_name, media, variant, each ended by a zero byte */
    const int32_t *texts_at;  /* offset in bytes of the event's first text; size+1 */
} sluice_kv_events_t;

/* Takes the events that may be told: those of plans that are applied. */
int sluice_take_events(sluice_handle scheduler, const sluice_kv_events_t **events);

/* ----------------------------------------------------------------- statistics */

typedef struct sluice_stats_t {
    uint32_t struct_size;
    /* now: requests */
    int32_t running;
    int32_t waiting;
    int32_t skipped;   /* waiting for something else than room */
    int32_t idle;      /* sessions between two turns */
    int32_t held;      /* ended, blocks kept */
    /* now: blocks; free + cached + held = usable */
    int32_t blocks_usable;
    int32_t blocks_free;
    int32_t blocks_cached;
    int32_t blocks_held;
    int32_t blocks_available; /* free or evictable */
    int32_t reserved;
    /* since the start */
    uint64_t added;
    uint64_t finished[8];  /* by sluice_finish */
    uint64_t refused[7];   /* by sluice_refusal_reason */
    uint64_t steps;
    uint64_t rows;
    uint64_t tokens;       /* scheduled */
    uint64_t generated;
    uint64_t preemptions;
    uint64_t loads;
    uint64_t leases;
    uint64_t dropped;
    uint64_t timeouts;
    uint64_t ignored;      /* events that fit no wait */
    uint64_t failed_blocks;
    uint64_t failed_steps;
    uint64_t prefix_requests, prefix_queries, prefix_hits;          /* local lookups, in tokens */
    uint64_t resumed_requests, resumed_queries, resumed_hits;       /* those of preempted requests */
    uint64_t connector_requests, connector_queries, connector_hits;
    uint64_t prompt_tokens, prompt_local, prompt_external;
    uint64_t draft_rows, draft_tokens, drafts_accepted;
    uint64_t evictions;
    uint64_t c_bytes;      /* C memory of the handle now */
} sluice_stats_t;

int sluice_stats(sluice_handle scheduler, sluice_stats_t *stats);

typedef enum sluice_queue_kind {
    SLUICE_QUEUE_RUNNING = 0,
    SLUICE_QUEUE_WAITING = 1,
    SLUICE_QUEUE_SKIPPED = 2
} sluice_queue_kind;

/* Writes at most capacity ids of a queue, in order, and its length to *size. */
int sluice_queue(sluice_handle scheduler, int queue, sluice_request_id *ids, size_t capacity, size_t *size);

/* The state of every request as text for people, cut to size bytes; *needed as in
 * sluice_last_error. */
int sluice_dump(sluice_handle scheduler, char *text, size_t size, size_t *needed);

/* Checks every invariant of scheduler and cache; SLUICE_E_BROKEN with the first
 * that does not hold. For tests: it takes long. */
int sluice_check(sluice_handle scheduler);

/* ------------------------------------------------------------------ recordings */

/* Writes what was recorded so far to the file. SLUICE_E_ABSENT without a recording. */
int sluice_flush_recording(sluice_handle scheduler);

typedef struct sluice_replayed_t {
    uint32_t struct_size;
    int32_t diverged;     /* 1: a plan or an output is not the recorded one; text says which */
    int64_t lines;
    int64_t plans;
    int64_t outputs;
} sluice_replayed_t;

/* Tells a new scheduler what a recording says its scheduler was told, and compares
 * every plan byte by byte and every output. text (may be NULL) gets the first
 * difference, or what is wrong with the file, cut to text_size bytes. */
int sluice_replay(const char *path, sluice_replayed_t *replayed, char *text, size_t text_size);

#ifdef __cplusplus
}
#endif

#endif
