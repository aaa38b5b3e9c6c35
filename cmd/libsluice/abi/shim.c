/* The exported functions. In a child of fork() there is no Go runtime to call,
 * so each looks for that first. */
#include <pthread.h>
#include <signal.h>

#include "_cgo_export.h"

/* What sluice_text hands out. It is filled when the library is loaded. */
char *libsluice_texts[8][32];

static volatile sig_atomic_t forked;

static void in_child(void) { forked = 1; }

__attribute__((constructor)) static void watch_fork(void) { pthread_atfork(NULL, NULL, in_child); }

#define ENTER(call) return forked ? SLUICE_E_FORKED : (call)

static void put_text(char *to, size_t size, const char *text) {
    size_t i = 0;
    if (to == NULL || size == 0) {
        return;
    }
    for (; i + 1 < size && text[i] != 0; i++) {
        to[i] = text[i];
    }
    to[i] = 0;
}

static const char *const statuses[] = {
    "ok",
    "an argument is NULL or has a value that it cannot have",
    "a struct_size is not known, or a buffer is too small",
    "no live object of this kind has the handle",
    "another thread is using the handle",
    "the library cannot be used in a child of fork()",
    "the configuration is no JSON or has a fault",
    "a field of the request has a fault",
    "a live request has this name",
    "no live request has this id, no session this name",
    "the prompt is longer than the model allows",
    "the prompt needs more blocks than there are",
    "too many plans are in flight",
    "the plan was applied already",
    "no plan of this number was made",
    "an earlier plan is to be applied first",
    "the result does not fit its plan",
    "requests hold blocks",
    "the handle was made without what the call is about",
    "a recording could not be read or written",
    "an invariant is broken",
};

uint32_t sluice_abi_version(void) { return SLUICE_ABI_VERSION; }

const char *sluice_status_text(int status) {
    if (status < 0 || (size_t)status >= sizeof statuses / sizeof statuses[0]) {
        return "unknown status";
    }
    return statuses[status];
}

const char *sluice_text(int kind, int value) { return forked ? "" : sluiceGoText(kind, value); }
int sluice_verdict_class(int verdict) { return forked ? -1 : sluiceGoVerdictClass(verdict); }

int sluice_last_error(sluice_handle h, char *text, size_t size, size_t *needed) {
    if (forked) {
        put_text(text, size, statuses[SLUICE_E_FORKED]);
        return SLUICE_E_FORKED;
    }
    return sluiceGoLastError(h, text, size, needed);
}

int sluice_new(const char *config, size_t size, sluice_handle *out, char *error, size_t error_size) {
    if (forked) {
        put_text(error, error_size, statuses[SLUICE_E_FORKED]);
        return SLUICE_E_FORKED;
    }
    return sluiceGoNew((char *)config, size, out, error, error_size);
}

int sluice_graphs_new(const char *config, size_t size, sluice_handle *out, char *error, size_t error_size) {
    if (forked) {
        put_text(error, error_size, statuses[SLUICE_E_FORKED]);
        return SLUICE_E_FORKED;
    }
    return sluiceGoGraphsNew((char *)config, size, out, error, error_size);
}

int sluice_replay(const char *path, sluice_replayed_t *replayed, char *text, size_t size) {
    if (forked) {
        put_text(text, size, statuses[SLUICE_E_FORKED]);
        return SLUICE_E_FORKED;
    }
    return sluiceGoReplay((char *)path, replayed, text, size);
}

int sluice_free(sluice_handle h) { ENTER(sluiceGoFree(h)); }
int sluice_info(sluice_handle h, sluice_info_t *info) { ENTER(sluiceGoInfo(h, info)); }

int sluice_add(sluice_handle h, const sluice_request_t *r, sluice_request_id *id) { ENTER(sluiceGoAdd(h, (sluice_request_t *)r, id)); }
int sluice_abort(sluice_handle h, sluice_request_id id) { ENTER(sluiceGoFinish(h, id, SLUICE_FINISH_ABORT)); }
int sluice_finish(sluice_handle h, sluice_request_id id, int reason) { ENTER(sluiceGoFinish(h, id, reason)); }
int sluice_find(sluice_handle h, const char *name, sluice_request_id *id) { ENTER(sluiceGoFind(h, (char *)name, id)); }
int sluice_request_state(sluice_handle h, sluice_request_id id, int32_t *status) { ENTER(sluiceGoRequestState(h, id, status)); }
int sluice_set_grammar(sluice_handle h, sluice_request_id id, int grammar) { ENTER(sluiceGoSetGrammar(h, id, grammar)); }
int sluice_end_turn(sluice_handle h, const char *session, int turn_end) { ENTER(sluiceGoEndTurn(h, (char *)session, turn_end)); }

int sluice_offer(sluice_handle h, sluice_request_id id, const sluice_offer_t *offer) { ENTER(sluiceGoOffer(h, id, (sluice_offer_t *)offer)); }
int sluice_deliver(sluice_handle h, const sluice_event_t *events, size_t size) { ENTER(sluiceGoDeliver(h, (sluice_event_t *)events, size)); }

int sluice_classify(sluice_handle h, const sluice_batch_t *batch, uint8_t *verdicts, sluice_decision_t *decision) {
    ENTER(sluiceGoClassify(h, (sluice_batch_t *)batch, verdicts, decision));
}
int sluice_graph_keys(sluice_handle h, sluice_graph_key_t *keys, size_t capacity, size_t *size) { ENTER(sluiceGoGraphKeys(h, keys, capacity, size)); }
int sluice_set_captured(sluice_handle h, int captured, const int32_t *marked, size_t size) { ENTER(sluiceGoSetCaptured(h, captured, (int32_t *)marked, size)); }

int sluice_plan(sluice_handle h, int64_t now, const sluice_plan_t **plan) { ENTER(sluiceGoPlan(h, now, (sluice_plan_t **)plan)); }
int sluice_apply(sluice_handle h, uint64_t seq, const sluice_result_t *result, const sluice_outputs_t **outputs) {
    ENTER(sluiceGoApply(h, seq, (sluice_result_t *)result, (sluice_outputs_t **)outputs));
}
int sluice_next_deadline(sluice_handle h, int64_t *at) { ENTER(sluiceGoNextDeadline(h, at)); }
int sluice_has_work(sluice_handle h, int32_t *work) { ENTER(sluiceGoHasWork(h, work)); }
int sluice_encode_plan(sluice_handle h, uint64_t seq, void *data, size_t size, size_t *needed) { ENTER(sluiceGoEncodePlan(h, seq, data, size, needed)); }

int sluice_set_pause(sluice_handle h, int pause) { ENTER(sluiceGoSetPause(h, pause)); }
int sluice_set_throttle(sluice_handle h, int throttle) { ENTER(sluiceGoSetThrottle(h, throttle)); }
int sluice_drain(sluice_handle h) { ENTER(sluiceGoDrain(h)); }
int sluice_reset_cache(sluice_handle h, int preempt) { ENTER(sluiceGoResetCache(h, preempt)); }
int sluice_propose(sluice_handle h, sluice_proposal_t *proposal) { ENTER(sluiceGoPropose(h, proposal)); }
int sluice_agree(const sluice_proposal_t *proposals, size_t size, sluice_agreement_t *agreement) {
    ENTER(sluiceGoAgree((sluice_proposal_t *)proposals, size, agreement));
}
int sluice_set_agreement(sluice_handle h, const sluice_agreement_t *agreement) { ENTER(sluiceGoSetAgreement(h, (sluice_agreement_t *)agreement)); }

int sluice_take_events(sluice_handle h, const sluice_kv_events_t **events) { ENTER(sluiceGoTakeEvents(h, (sluice_kv_events_t **)events)); }
int sluice_stats(sluice_handle h, sluice_stats_t *stats) { ENTER(sluiceGoStats(h, stats)); }
int sluice_queue(sluice_handle h, int queue, sluice_request_id *ids, size_t capacity, size_t *size) { ENTER(sluiceGoQueue(h, queue, ids, capacity, size)); }
int sluice_dump(sluice_handle h, char *text, size_t size, size_t *needed) { ENTER(sluiceGoDump(h, text, size, needed)); }
int sluice_check(sluice_handle h) { ENTER(sluiceGoCheck(h)); }
int sluice_flush_recording(sluice_handle h) { ENTER(sluiceGoFlushRecording(h)); }
