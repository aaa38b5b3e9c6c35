/* abuse.c: calls that a caller gets wrong. Each must give its status and a text
 * that says what was wrong, change nothing, and never end the process. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sluice.h"

static int failures, calls;
static sluice_handle s;

static void expect_at(int line, sluice_handle h, int got, int want, const char *part) {
    char text[1024] = "";
    calls++;
    if (got != want) {
        printf("line %d: status %d (%s), not %d (%s)\n", line, got, sluice_status_text(got), want, sluice_status_text(want));
        failures++;
        return;
    }
    if (part != NULL) {
        sluice_last_error(h, text, sizeof text, NULL);
        if (strstr(text, part) == NULL) {
            printf("line %d: the text is \"%s\", without \"%s\"\n", line, text, part);
            failures++;
        }
    }
}

#define EXPECT(got, want, part) expect_at(__LINE__, s, got, want, part)

static void refused(int line, const char *config, const char *part) {
    char error[2048] = "";
    sluice_handle h = 77;
    int got = sluice_new(config, strlen(config), &h, error, sizeof error);
    calls++;
    if (got != SLUICE_E_CONFIG || h != 0 || strstr(error, part) == NULL) {
        printf("line %d: status %d, handle %llu, text \"%s\" without \"%s\"\n", line, got, (unsigned long long)h, error, part);
        failures++;
    }
}

#define REFUSED(config, part) refused(__LINE__, config, part)

static sluice_handle make(const char *config) {
    char error[2048];
    sluice_handle h = 0;
    if (sluice_new(config, strlen(config), &h, error, sizeof error) != SLUICE_OK) {
        printf("cannot make a scheduler: %s\n", error);
        exit(1);
    }
    return h;
}

static sluice_request_t request(const char *name, const int32_t *prompt, size_t n) {
    sluice_request_t r;
    memset(&r, 0, sizeof r);
    r.struct_size = sizeof r;
    r.name = name;
    r.prompt = prompt;
    r.prompt_size = n;
    r.max_tokens = 4;
    return r;
}

static sluice_result_t result(const int32_t *tokens, size_t n) {
    sluice_result_t r;
    memset(&r, 0, sizeof r);
    r.struct_size = sizeof r;
    r.tokens = tokens;
    r.tokens_size = n;
    return r;
}

static void configurations(void) {
    char error[64] = "";
    sluice_handle h = 0;
    calls += 5;
    failures += sluice_new(NULL, 10, &h, error, sizeof error) != SLUICE_E_ARGUMENT;
    failures += sluice_new("{}", 2, NULL, error, sizeof error) != SLUICE_E_ARGUMENT;
    failures += sluice_new("{}", (size_t)-1, &h, error, sizeof error) != SLUICE_E_ARGUMENT;
    failures += sluice_new("{}", 2, &h, NULL, 100) != SLUICE_E_CONFIG; /* no room for a text */
    failures += sluice_new("{}", 2, &h, error, 4) != SLUICE_E_CONFIG || strlen(error) != 3;

    REFUSED("", "empty");
    REFUSED("{", "no JSON");
    REFUSED("[1]", "is a list, not an object");
    REFUSED("{} {}", "follows");
    REFUSED("{\"Cache\": {\"Blocks\": 100}}", "MaxModelLen");
    REFUSED("{\"Scheduler\": {\"MaxModelLen\": 100}}", "Blocks");
    REFUSED("{\"Cash\": {}}", "Cash: there is no such key");
    REFUSED("{\"Scheduler\": {\"maxModelLen\": 5}}", "Scheduler.maxModelLen: there is no such key");
    REFUSED("{\"Cache\": {\"OnEvict\": 1}}", "no such key");
    REFUSED("{\"Cache\": {\"Blocks\": \"many\"}}", "Cache.Blocks: is a text, not a number");
    REFUSED("{\"Cache\": {\"Blocks\": 1.5}}", "no whole number");
    REFUSED("{\"Cache\": {\"Blocks\": 1e99}}", "no whole number");
    REFUSED("{\"Cache\": {\"Groups\": 3}}", "is a number, not a list");
    REFUSED("{\"Scheduler\": {\"Policy\": \"best\"}}", "\"best\" is none of FCFS, Priority");
    REFUSED("{\"Scheduler\": {\"Policy\": 300}}", "out of range");
    REFUSED("{\"Scheduler\": {\"LoadTimeout\": \"soon\"}}", "no duration");
    REFUSED("{\"Cache\": {\"Blocks\": 100}, \"Scheduler\": {\"MaxModelLen\": 64, \"MaxNumSeqs\": -1}}", "MaxNumSeqs");
    REFUSED("{\"Cache\": {\"Blocks\": 100}, \"Scheduler\": {\"MaxModelLen\": 64}, \"Graphs\": {\"K\": -1}}", "K");
    REFUSED("{\"Cache\": {\"Blocks\": 100}, \"Scheduler\": {\"MaxModelLen\": 64}, \"Connector\": {\"Lookup\": 9}}", "Connector.Lookup");
    REFUSED("{\"Cache\": {\"Blocks\": 100}, \"Scheduler\": {\"MaxModelLen\": 64}, \"Record\": {}}", "Record.Path");
    REFUSED("{\"Cache\": {\"Blocks\": 100}, \"Scheduler\": {\"MaxModelLen\": 64}, \"Record\": {\"Path\": \"/nowhere/at/all\"}}", "Record.Path");
}

static void null_handles(sluice_handle h) {
    const sluice_plan_t *p = NULL;
    const sluice_outputs_t *o = NULL;
    const sluice_kv_events_t *ev = NULL;
    int32_t prompt[1] = {1}, i32;
    int64_t i64;
    size_t n;
    sluice_request_id id;
    sluice_request_t q = request("x", prompt, 1);
    sluice_result_t r = result(prompt, 1);
    sluice_offer_t offer = {sizeof offer, SLUICE_LOOKUP_NONE, 0, 0, 0, 0, 0};
    sluice_info_t info = {sizeof info, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    sluice_stats_t st;
    sluice_batch_t b;
    sluice_decision_t d;
    sluice_proposal_t proposal;
    sluice_agreement_t agreement = {1, 0};
    uint8_t v[1];
    char text[256];
    memset(&st, 0, sizeof st);
    st.struct_size = sizeof st;
    memset(&b, 0, sizeof b);
    b.struct_size = sizeof b;
#define NONE(call) EXPECT(call, SLUICE_E_HANDLE, NULL)
    NONE(sluice_free(h));
    NONE(sluice_info(h, &info));
    NONE(sluice_add(h, &q, &id));
    NONE(sluice_abort(h, 1));
    NONE(sluice_finish(h, 1, SLUICE_FINISH_STOP));
    NONE(sluice_find(h, "x", &id));
    NONE(sluice_request_state(h, 1, &i32));
    NONE(sluice_set_grammar(h, 1, SLUICE_GRAMMAR_READY));
    NONE(sluice_end_turn(h, "x", 0));
    NONE(sluice_offer(h, 1, &offer));
    NONE(sluice_deliver(h, NULL, 0));
    NONE(sluice_classify(h, &b, v, &d));
    NONE(sluice_graph_keys(h, NULL, 0, &n));
    NONE(sluice_set_captured(h, 0, NULL, 0));
    NONE(sluice_plan(h, 1, &p));
    NONE(sluice_apply(h, 1, &r, &o));
    NONE(sluice_next_deadline(h, &i64));
    NONE(sluice_has_work(h, &i32));
    NONE(sluice_encode_plan(h, 1, NULL, 0, &n));
    NONE(sluice_set_pause(h, 0));
    NONE(sluice_set_throttle(h, 0));
    NONE(sluice_drain(h));
    NONE(sluice_reset_cache(h, 0));
    NONE(sluice_propose(h, &proposal));
    NONE(sluice_set_agreement(h, &agreement));
    NONE(sluice_take_events(h, &ev));
    NONE(sluice_stats(h, &st));
    NONE(sluice_queue(h, 0, NULL, 0, &n));
    NONE(sluice_dump(h, text, sizeof text, NULL));
    NONE(sluice_check(h));
    NONE(sluice_flush_recording(h));
    NONE(sluice_last_error(h, text, sizeof text, &n));
    if (strstr(text, "no live object") == NULL) {
        printf("the text of handle %llu is \"%s\"\n", (unsigned long long)h, text);
        failures++;
    }
}

static void handles(void) {
    sluice_handle a = make("{\"Cache\": {\"Blocks\": 100}, \"Scheduler\": {\"MaxModelLen\": 64}}"), b, g;
    char error[256];
    const sluice_plan_t *p;
    null_handles(0);
    null_handles(1);
    null_handles(~(sluice_handle)0);
    null_handles(a + 1);                    /* another slot */
    null_handles(a ^ (sluice_handle)1 << 30); /* another generation */
    EXPECT(sluice_free(a), SLUICE_OK, NULL);
    null_handles(a); /* freed */
    b = make("{\"Cache\": {\"Blocks\": 100}, \"Scheduler\": {\"MaxModelLen\": 64}}");
    null_handles(a); /* its slot is another's now */
    EXPECT(sluice_graphs_new("{\"MaxNumSeqs\": 8, \"MaxNumBatchedTokens\": 64}", 44, &g, error, sizeof error), SLUICE_OK, NULL);
    EXPECT(sluice_plan(g, 1, &p), SLUICE_E_HANDLE, NULL); /* of another kind */
    EXPECT(sluice_free(b), SLUICE_OK, NULL);
    EXPECT(sluice_free(g), SLUICE_OK, NULL);
    EXPECT(sluice_free(g), SLUICE_E_HANDLE, NULL);
}

static void requests(void) {
    int32_t prompt[100], bad[] = {1, -5, 2};
    sluice_request_id id = 0, other;
    sluice_request_t q;
    int32_t state;
    int i;
    for (i = 0; i < 100; i++) {
        prompt[i] = i + 1;
    }
    EXPECT(sluice_add(s, NULL, &id), SLUICE_E_ARGUMENT, "request is NULL");
    q = request("r", prompt, 8);
    EXPECT(sluice_add(s, &q, NULL), SLUICE_E_ARGUMENT, "id is NULL");
    q.struct_size = 12;
    EXPECT(sluice_add(s, &q, &id), SLUICE_E_SIZE, "struct_size is 12");
    q = request(NULL, prompt, 8);
    EXPECT(sluice_add(s, &q, &id), SLUICE_E_REQUEST, "ID: is empty");
    q = request("r", NULL, 8);
    EXPECT(sluice_add(s, &q, &id), SLUICE_E_ARGUMENT, "request.prompt is NULL, but said to have 8 entries");
    q = request("r", prompt, 0);
    EXPECT(sluice_add(s, &q, &id), SLUICE_E_REQUEST, "Prompt: is empty");
    q = request("r", prompt, (size_t)-1);
    EXPECT(sluice_add(s, &q, &id), SLUICE_E_TOO_LONG, "the limit is 64");
    q = request("r", prompt, 65);
    EXPECT(sluice_add(s, &q, &id), SLUICE_E_TOO_LONG, "65 tokens");
    q = request("r", bad, 3);
    EXPECT(sluice_add(s, &q, &id), SLUICE_E_REQUEST, "token -5 at position 1");
    q = request("r", prompt, 8);
    q.stop_size = 3;
    EXPECT(sluice_add(s, &q, &id), SLUICE_E_ARGUMENT, "request.stop is NULL");
    q = request("r", prompt, 8);
    q.eos = prompt;
    q.eos_size = (size_t)1 << 40;
    EXPECT(sluice_add(s, &q, &id), SLUICE_E_ARGUMENT, "request.eos");
    q = request("r", prompt, 8);
    q.max_tokens = 0;
    EXPECT(sluice_add(s, &q, &id), SLUICE_E_REQUEST, "MaxTokens");
    q = request("r", prompt, 8);
    q.min_tokens = 5;
    EXPECT(sluice_add(s, &q, &id), SLUICE_E_REQUEST, "MinTokens");
    q = request("r", prompt, 8);
    q.route = 3;
    EXPECT(sluice_add(s, &q, &id), SLUICE_E_REQUEST, "route");
    q.route = -1;
    EXPECT(sluice_add(s, &q, &id), SLUICE_E_REQUEST, "route");
    q = request("r", prompt, 8);
    q.grammar = 256; /* would be none in eight bits */
    EXPECT(sluice_add(s, &q, &id), SLUICE_E_REQUEST, "grammar");
    q = request("r", prompt, 8);
    q.turn_end = 7;
    EXPECT(sluice_add(s, &q, &id), SLUICE_E_REQUEST, "turn_end");
    q = request("r", prompt, 8);
    q.flags = 1u << 20;
    EXPECT(sluice_add(s, &q, &id), SLUICE_E_REQUEST, "flags");
    q = request("r", prompt, 8);
    q.hit_threshold = 1.5;
    EXPECT(sluice_add(s, &q, &id), SLUICE_E_REQUEST, "CacheHitThreshold");
    q = request("r", prompt, 8);
    q.offer.struct_size = 3;
    EXPECT(sluice_add(s, &q, &id), SLUICE_E_SIZE, "request.offer");
    q.offer.struct_size = sizeof q.offer;
    q.offer.lookup = 9;
    EXPECT(sluice_add(s, &q, &id), SLUICE_E_ARGUMENT, "lookup is 9");
    q.offer.lookup = SLUICE_LOOKUP_OFFER;
    q.offer.tokens = -1;
    EXPECT(sluice_add(s, &q, &id), SLUICE_E_ARGUMENT, "out of range");
    q.offer.tokens = 4;
    EXPECT(sluice_add(s, &q, &id), SLUICE_E_ABSENT, "connector");
    q = request("r", prompt, 8);
    q.flags = SLUICE_HOLD_AT_END;
    EXPECT(sluice_add(s, &q, &id), SLUICE_E_ABSENT, "connector");

    q = request("r", prompt, 8);
    EXPECT(sluice_add(s, &q, &id), SLUICE_OK, NULL);
    EXPECT(sluice_add(s, &q, &other), SLUICE_E_DUPLICATE, "a live request has this id");
    EXPECT(sluice_abort(s, 0), SLUICE_E_UNKNOWN, "unknown request");
    EXPECT(sluice_abort(s, id + 1), SLUICE_E_UNKNOWN, NULL);
    EXPECT(sluice_abort(s, id + ((uint64_t)1 << 32)), SLUICE_E_UNKNOWN, NULL); /* a later generation */
    EXPECT(sluice_finish(s, id, 0), SLUICE_E_ARGUMENT, "reason is 0");
    EXPECT(sluice_finish(s, id, 8), SLUICE_E_ARGUMENT, "reason is 8");
    EXPECT(sluice_find(s, NULL, &other), SLUICE_E_ARGUMENT, NULL);
    EXPECT(sluice_find(s, "nobody", &other), SLUICE_E_UNKNOWN, NULL);
    EXPECT(sluice_find(s, "r", &other), SLUICE_OK, NULL);
    EXPECT(other == id ? 0 : 1, 0, NULL);
    EXPECT(sluice_request_state(s, id, NULL), SLUICE_E_ARGUMENT, NULL);
    EXPECT(sluice_request_state(s, id, &state), SLUICE_OK, NULL);
    EXPECT(state, SLUICE_WAITING, NULL);
    EXPECT(sluice_set_grammar(s, id, 0), SLUICE_E_ARGUMENT, "grammar is 0");
    EXPECT(sluice_set_grammar(s, id, 4), SLUICE_E_ARGUMENT, "grammar is 4");
    EXPECT(sluice_set_grammar(s, 99, SLUICE_GRAMMAR_READY), SLUICE_E_UNKNOWN, NULL);
    EXPECT(sluice_end_turn(s, NULL, 0), SLUICE_E_ARGUMENT, NULL);
    EXPECT(sluice_end_turn(s, "x", 3), SLUICE_E_ARGUMENT, "turn_end is 3");
    EXPECT(sluice_offer(s, id, NULL), SLUICE_E_ARGUMENT, "offer is NULL");
    q.offer.struct_size = sizeof q.offer;
    EXPECT(sluice_offer(s, id, &q.offer), SLUICE_E_ABSENT, "no connector");
    EXPECT(sluice_abort(s, id), SLUICE_OK, NULL);
    EXPECT(sluice_abort(s, id), SLUICE_E_UNKNOWN, NULL);
    EXPECT(sluice_request_state(s, id, &state), SLUICE_E_UNKNOWN, NULL);
}

static void events(void) {
    int32_t blocks[] = {0}, far[] = {100}, fine[] = {5};
    sluice_event_t ev = {1, 0, 0, NULL, 0};
    EXPECT(sluice_deliver(s, NULL, 3), SLUICE_E_ARGUMENT, "events is NULL");
    EXPECT(sluice_deliver(s, &ev, (size_t)-1), SLUICE_E_ARGUMENT, NULL);
    EXPECT(sluice_deliver(s, &ev, 1), SLUICE_E_ARGUMENT, "kind is 0");
    ev.kind = 9;
    EXPECT(sluice_deliver(s, &ev, 1), SLUICE_E_ARGUMENT, "kind is 9");
    ev.kind = SLUICE_FAILED;
    ev.blocks_size = 1;
    EXPECT(sluice_deliver(s, &ev, 1), SLUICE_E_ARGUMENT, "blocks of an event is NULL");
    ev.blocks = blocks;
    EXPECT(sluice_deliver(s, &ev, 1), SLUICE_E_ARGUMENT, "block 0");
    ev.blocks = far;
    EXPECT(sluice_deliver(s, &ev, 1), SLUICE_E_ARGUMENT, "block 100");
    ev.blocks = fine;
    EXPECT(sluice_deliver(s, &ev, 1), SLUICE_OK, NULL); /* of an unknown request: ignored */
    ev.worker = -3;
    ev.kind = SLUICE_RECEIVED;
    EXPECT(sluice_deliver(s, &ev, 1), SLUICE_OK, NULL);
}

static void steps(void) {
    int32_t prompt[8] = {1, 2, 3, 4, 5, 6, 7, 8}, tokens[4] = {9, 9, 9, 9}, bad[1] = {-1}, counts[2] = {1, 1}, row[1] = {7};
    const sluice_plan_t *p = NULL, *second = NULL;
    const sluice_outputs_t *o = NULL;
    sluice_request_t q = request("r", prompt, 8);
    sluice_request_id id;
    sluice_result_t r = result(tokens, 1);
    int64_t at;
    int32_t work;
    size_t n;
    char data[4096];
    EXPECT(sluice_apply(s, 1, &r, &o), SLUICE_E_FOREIGN_PLAN, "plan 1 was not made");
    EXPECT(sluice_apply(s, 0, &r, &o), SLUICE_E_FOREIGN_PLAN, NULL);
    EXPECT(sluice_encode_plan(s, 1, data, sizeof data, &n), SLUICE_E_FOREIGN_PLAN, NULL);
    EXPECT(sluice_add(s, &q, &id), SLUICE_OK, NULL);
    EXPECT(sluice_plan(s, 1, NULL), SLUICE_E_ARGUMENT, "plan is NULL");
    EXPECT(sluice_plan(s, 1, &p), SLUICE_OK, NULL);
    EXPECT(sluice_plan(s, 2, &second), SLUICE_E_PLANS, "1 plans are in flight"); /* the first is not applied */
    EXPECT(p->rows, 1, NULL);
    EXPECT(sluice_apply(s, p->seq, NULL, &o), SLUICE_E_ARGUMENT, "result is NULL");
    r.struct_size = 0;
    EXPECT(sluice_apply(s, p->seq, &r, &o), SLUICE_E_SIZE, "result: struct_size is 0");
    r = result(tokens, 0);
    EXPECT(sluice_apply(s, p->seq, &r, &o), SLUICE_E_RESULT, "Tokens does not have as many entries"); /* shorter than the rows need */
    r = result(tokens, 2);
    EXPECT(sluice_apply(s, p->seq, &r, &o), SLUICE_E_RESULT, NULL);
    r = result(NULL, 1);
    EXPECT(sluice_apply(s, p->seq, &r, &o), SLUICE_E_ARGUMENT, "result.tokens is NULL");
    r = result(bad, 1);
    EXPECT(sluice_apply(s, p->seq, &r, &o), SLUICE_E_RESULT, "outside the vocabulary");
    r = result(tokens, 2);
    r.counts = counts;
    r.counts_size = 2;
    EXPECT(sluice_apply(s, p->seq, &r, &o), SLUICE_E_RESULT, "Counts does not have an entry per row");
    r.counts_size = 0;
    EXPECT(sluice_apply(s, p->seq, &r, &o), SLUICE_E_RESULT, "Counts");
    r = result(tokens, 1);
    r.draft_counts = counts;
    r.draft_counts_size = 1;
    r.drafts = tokens;
    r.drafts_size = 1;
    EXPECT(sluice_apply(s, p->seq, &r, &o), SLUICE_E_RESULT, "a number of drafts that is not configured");
    r = result(tokens, 1);
    r.grammar_errors = row;
    r.grammar_errors_size = 1;
    EXPECT(sluice_apply(s, p->seq, &r, &o), SLUICE_E_RESULT, "GrammarErrors names no row");
    r = result(tokens, 1);
    r.failed = 2;
    EXPECT(sluice_apply(s, p->seq, &r, &o), SLUICE_E_RESULT, "failed is 2");
    r = result(tokens, 1);
    r.elapsed = -1;
    EXPECT(sluice_apply(s, p->seq, &r, &o), SLUICE_E_RESULT, "elapsed");
    r = result(tokens, 1);
    EXPECT(sluice_apply(s, p->seq + 1, &r, &o), SLUICE_E_FOREIGN_PLAN, NULL);
    EXPECT(sluice_encode_plan(s, p->seq, data, 10, &n), SLUICE_E_SIZE, "the buffer has 10");
    EXPECT(sluice_encode_plan(s, p->seq, NULL, sizeof data, &n), SLUICE_E_ARGUMENT, NULL);
    EXPECT(sluice_encode_plan(s, p->seq, data, sizeof data, NULL), SLUICE_E_ARGUMENT, NULL);
    EXPECT(sluice_encode_plan(s, p->seq, data, sizeof data, &n), SLUICE_OK, NULL);
    EXPECT(memcmp(data, "SLPL", 4), 0, NULL);
    EXPECT(sluice_apply(s, p->seq, &r, NULL), SLUICE_OK, NULL); /* the plan was still there, and outputs may be NULL */
    EXPECT(sluice_apply(s, 1, &r, &o), SLUICE_E_STALE_PLAN, "plan 1 was applied already");
    EXPECT(sluice_next_deadline(s, NULL), SLUICE_E_ARGUMENT, NULL);
    EXPECT(sluice_next_deadline(s, &at), SLUICE_OK, NULL);
    EXPECT(at == SLUICE_NEVER ? 0 : 1, 0, NULL);
    EXPECT(sluice_has_work(s, NULL), SLUICE_E_ARGUMENT, NULL);
    EXPECT(sluice_has_work(s, &work), SLUICE_OK, NULL);
    EXPECT(work, 1, NULL);
    EXPECT(sluice_abort(s, id), SLUICE_OK, NULL);
    EXPECT(sluice_check(s), SLUICE_OK, NULL);
}

static void order(void) {
    sluice_handle a = make("{\"Cache\": {\"Blocks\": 100}, \"Scheduler\": {\"MaxModelLen\": 64, \"Scheduling\": \"Async\"}}");
    int32_t prompt[8] = {1, 2, 3, 4, 5, 6, 7, 8}, tokens[1] = {9};
    const sluice_plan_t *p = NULL, *second = NULL;
    sluice_request_t q = request("r", prompt, 8);
    sluice_request_id id;
    sluice_result_t r = result(tokens, 1);
    EXPECT(sluice_add(a, &q, &id), SLUICE_OK, NULL);
    EXPECT(sluice_plan(a, 1, &p), SLUICE_OK, NULL);
    EXPECT(sluice_plan(a, 2, &second), SLUICE_OK, NULL);
    EXPECT(p->seq == 1 && second->seq == 2 && p->inputs[0] == 1 && second->inputs[0] == SLUICE_UNKNOWN_TOKEN ? 0 : 1, 0, NULL);
    expect_at(__LINE__, a, sluice_apply(a, 2, &r, NULL), SLUICE_E_PLAN_ORDER, "plan 1 is to be applied before plan 2");
    EXPECT(sluice_apply(a, 1, &r, NULL), SLUICE_OK, NULL);
    EXPECT(sluice_apply(a, 2, &r, NULL), SLUICE_OK, NULL);
    EXPECT(sluice_plan(a, 3, &p), SLUICE_OK, NULL);
    EXPECT(sluice_free(a), SLUICE_OK, NULL); /* with a plan in flight */
}

static void others(void) {
    int32_t one[4] = {1, 1, 1, 1}, zero[4] = {0, 0, 0, 0}, marks[1] = {100000};
    uint8_t verdicts[4];
    sluice_batch_t b;
    sluice_decision_t d;
    sluice_handle g = 0;
    sluice_graph_key_t key;
    sluice_info_t info;
    sluice_stats_t st;
    sluice_replayed_t rep;
    sluice_proposal_t props[1] = {{-1, 0}};
    sluice_agreement_t agr = {-1, 0};
    sluice_request_id id;
    const sluice_kv_events_t *ev;
    char error[512];
    size_t n = 0, needed = 0;
    memset(&info, 0, sizeof info);
    EXPECT(sluice_info(s, NULL), SLUICE_E_ARGUMENT, NULL);
    EXPECT(sluice_info(s, &info), SLUICE_E_SIZE, "info");
    memset(&st, 0, sizeof st);
    EXPECT(sluice_stats(s, NULL), SLUICE_E_ARGUMENT, NULL);
    EXPECT(sluice_stats(s, &st), SLUICE_E_SIZE, "stats");
    EXPECT(sluice_set_pause(s, 3), SLUICE_E_ARGUMENT, "pause is 3");
    EXPECT(sluice_set_throttle(s, -1), SLUICE_E_ARGUMENT, "throttle is -1");
    EXPECT(sluice_reset_cache(s, 2), SLUICE_E_ARGUMENT, "preempt is 2");
    EXPECT(sluice_propose(s, NULL), SLUICE_E_ARGUMENT, NULL);
    EXPECT(sluice_set_agreement(s, NULL), SLUICE_E_ARGUMENT, NULL);
    EXPECT(sluice_set_agreement(s, &agr), SLUICE_E_ARGUMENT, NULL);
    EXPECT(sluice_agree(NULL, 2, &agr), SLUICE_E_ARGUMENT, NULL);
    EXPECT(sluice_agree(props, 1, &agr), SLUICE_E_ARGUMENT, NULL);
    EXPECT(sluice_agree(props, 1, NULL), SLUICE_E_ARGUMENT, NULL);
    EXPECT(sluice_take_events(s, NULL), SLUICE_E_ARGUMENT, NULL);
    EXPECT(sluice_take_events(s, &ev), SLUICE_E_ABSENT, "no KV events");
    EXPECT(sluice_flush_recording(s), SLUICE_E_ABSENT, "no recording");
    EXPECT(sluice_queue(s, 5, &id, 1, &n), SLUICE_E_ARGUMENT, "queue is 5");
    EXPECT(sluice_queue(s, 0, NULL, 1, &n), SLUICE_E_ARGUMENT, NULL);
    EXPECT(sluice_queue(s, 0, &id, 1, NULL), SLUICE_E_ARGUMENT, NULL);
    EXPECT(sluice_dump(s, NULL, 100, &needed), SLUICE_OK, NULL);
    EXPECT(needed > 10 ? 0 : 1, 0, NULL);
    EXPECT(sluice_dump(s, error, 5, NULL), SLUICE_OK, NULL);
    EXPECT(strlen(error) == 4 ? 0 : 1, 0, NULL);

    memset(&b, 0, sizeof b);
    EXPECT(sluice_classify(s, &b, verdicts, &d), SLUICE_E_ABSENT, "no graphs");
    EXPECT(sluice_graphs_new("{\"MaxNumSeqs\": 8}", 17, &g, error, sizeof error), SLUICE_E_CONFIG, NULL);
    EXPECT(strstr(error, "MaxNumBatchedTokens") ? 0 : 1, 0, NULL);
    EXPECT(sluice_graphs_new("{\"MaxNumSeqs\": 8, \"MaxNumBatchedTokens\": 64}", 44, &g, error, sizeof error), SLUICE_OK, NULL);
#define GRAPHS(got, want, part) expect_at(__LINE__, g, got, want, part)
    GRAPHS(sluice_classify(g, NULL, verdicts, &d), SLUICE_E_ARGUMENT, "batch is NULL");
    GRAPHS(sluice_classify(g, &b, verdicts, NULL), SLUICE_E_ARGUMENT, "decision is NULL");
    GRAPHS(sluice_classify(g, &b, verdicts, &d), SLUICE_E_SIZE, "batch");
    b.struct_size = sizeof b;
    b.size = 4;
    GRAPHS(sluice_classify(g, &b, verdicts, &d), SLUICE_E_ARGUMENT, "batch.scheduled is NULL");
    b.scheduled = one;
    b.drafts = b.placeholders = zero;
    b.computed = b.prefill = one;
    GRAPHS(sluice_classify(g, &b, NULL, &d), SLUICE_E_ARGUMENT, "verdicts is NULL");
    b.flags = 64;
    GRAPHS(sluice_classify(g, &b, verdicts, &d), SLUICE_E_ARGUMENT, "flags");
    b.flags = 0;
    b.loras = -1;
    GRAPHS(sluice_classify(g, &b, verdicts, &d), SLUICE_E_ARGUMENT, "negative");
    b.loras = 0;
    GRAPHS(sluice_classify(g, &b, verdicts, &d), SLUICE_OK, NULL);
    EXPECT(d.mode, SLUICE_MODE_FULL, NULL);
    GRAPHS(sluice_graph_keys(g, NULL, 1, &n), SLUICE_E_ARGUMENT, "keys is NULL");
    GRAPHS(sluice_graph_keys(g, &key, 1, NULL), SLUICE_E_ARGUMENT, NULL);
    GRAPHS(sluice_graph_keys(g, NULL, 0, &n), SLUICE_OK, NULL);
    GRAPHS(sluice_set_captured(g, 9, NULL, 0), SLUICE_E_ARGUMENT, "captured is 9");
    GRAPHS(sluice_set_captured(g, 0, marks, 1), SLUICE_E_ARGUMENT, "marked[0] is 100000");
    GRAPHS(sluice_set_captured(g, 0, NULL, 1), SLUICE_E_ARGUMENT, "marked is NULL");
    EXPECT(sluice_free(g), SLUICE_OK, NULL);

    memset(&rep, 0, sizeof rep);
    EXPECT(sluice_replay(NULL, &rep, error, sizeof error), SLUICE_E_ARGUMENT, NULL);
    EXPECT(sluice_replay("/nowhere", &rep, error, sizeof error), SLUICE_E_SIZE, NULL);
    rep.struct_size = sizeof rep;
    EXPECT(sluice_replay("/nowhere", &rep, error, sizeof error), SLUICE_E_IO, NULL);
    EXPECT(strstr(error, "nowhere") ? 0 : 1, 0, NULL);

    EXPECT(strcmp(sluice_text(99, 0), ""), 0, NULL);
    EXPECT(strcmp(sluice_text(0, -1), ""), 0, NULL);
    EXPECT(strcmp(sluice_text(SLUICE_TEXT_FINISH, SLUICE_FINISH_LENGTH), "length"), 0, NULL);
    EXPECT(strcmp(sluice_text(SLUICE_TEXT_REFUSAL, SLUICE_NO_PREFIX), "no_prefix"), 0, NULL);
    EXPECT(strcmp(sluice_text(SLUICE_TEXT_MODE, SLUICE_MODE_FULL), "FULL"), 0, NULL);
    EXPECT(strcmp(sluice_text(SLUICE_TEXT_WAIT, SLUICE_WAIT_RESUME), "resume"), 0, NULL);
    EXPECT(strcmp(sluice_text(SLUICE_TEXT_REQUEST, SLUICE_FINISHED), "finished"), 0, NULL);
    EXPECT(sluice_verdict_class(-1), -1, NULL);
    EXPECT(sluice_verdict_class(200), -1, NULL);
    EXPECT(sluice_verdict_class(0), SLUICE_CLASS_DECODE, NULL);
    EXPECT(strcmp(sluice_status_text(-1), "unknown status"), 0, NULL);
    EXPECT(strcmp(sluice_status_text(99), "unknown status"), 0, NULL);
}

int main(void) {
    s = make("{\"Cache\": {\"Blocks\": 100}, \"Scheduler\": {\"MaxModelLen\": 64}}");
    configurations();
    handles();
    requests();
    events();
    steps();
    order();
    others();
    EXPECT(sluice_check(s), SLUICE_OK, NULL);
    if (sluice_free(s) != SLUICE_OK) {
        failures++;
    }
    printf("%d calls, %d wrong\n", calls, failures);
    return failures != 0;
}
