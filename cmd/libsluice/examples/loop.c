/*
 * loop.c: a toy engine around libsluice, in one file.
 *
 * The engine "computes" a token by hashing everything before it, and keeps real
 * KV bytes in real blocks: each position of a request stores a digest of its
 * prefix, written to the slot that the plan's block table gives and read back
 * before the next token is made. A wrong block table would change the tokens,
 * which are compared with those of an engine that has no cache at all.
 *
 *     cc loop.c $(pkg-config --cflags --libs sluice) -o loop && ./loop
 */
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sluice.h"

enum { BLOCK_SIZE = 16, BLOCKS = 200, MAX_LEN = 512, SLOTS = 64, ROWS = 8, REQUESTS = 24, OUTPUT = 20 };

/* ------------------------------------------------------------- the toy model */

static uint64_t mix(uint64_t state, int32_t token) {
    state ^= (uint64_t)(uint32_t)token + UINT64_C(0x9E3779B97F4A7C15) + (state << 6) + (state >> 2);
    state *= UINT64_C(0xBF58476D1CE4E5B9);
    return state ^ state >> 31;
}

static int32_t sample(uint64_t state) { return (int32_t)(state % 30000); }

/* KV of one position is the digest of everything up to it. */
static uint64_t kv[BLOCKS][BLOCK_SIZE];

/* Block tables, as the executor keeps them: per slot, position in the table. */
static int32_t tables[SLOTS][MAX_LEN / BLOCK_SIZE + 1];

static uint64_t *slot_of(uint32_t slot, int position) { return &kv[tables[slot][position / BLOCK_SIZE]][position % BLOCK_SIZE]; }

/* Computes a row and returns the token that follows its last position. */
static int32_t compute_row(const sluice_plan_t *p, int row) {
    uint32_t slot = SLUICE_SLOT(p->requests[row]);
    int position = p->computed[row];
    uint64_t state = position == 0 ? 0 : *slot_of(slot, position - 1);
    int32_t i;
    for (i = p->inputs_at[row]; i < p->inputs_at[row + 1]; i++, position++) {
        state = mix(state, p->inputs[i]);
        *slot_of(slot, position) = state;
    }
    return sample(state);
}

/* Writes what changed of the rows' block tables. */
static void take_up_tables(const sluice_plan_t *p) {
    int32_t row, i;
    for (row = 0; row < p->rows; row++) { /* one KV group: owner row*1+0 */
        int32_t to = p->table_from[row];
        for (i = p->blocks_at[row]; i < p->blocks_at[row + 1]; i++) {
            tables[SLUICE_SLOT(p->requests[row])][to++] = p->blocks[i];
        }
    }
}

/* --------------------------------------------------------------- the requests */

typedef struct {
    char name[16];
    int32_t prompt[128];
    int prompt_size;
    int32_t output[OUTPUT];
    int output_size;
    int done;
    sluice_request_id id;
} request;

static request requests[REQUESTS];

/* Prompts in three families that share long beginnings, so that the cache has
 * something to find. */
static void make_prompt(request *r, int number) {
    int i;
    sprintf(r->name, "r%d", number);
    r->prompt_size = 60 + number * 2;
    for (i = 0; i < r->prompt_size; i++) {
        r->prompt[i] = i < 48 ? (number % 3) * 1000 + i : number * 100 + i;
    }
}

/* The same tokens without a scheduler, a cache or blocks. */
static int same_without_cache(const request *r) {
    uint64_t state = 0;
    int i;
    for (i = 0; i < r->prompt_size; i++) {
        state = mix(state, r->prompt[i]);
    }
    for (i = 0; i < OUTPUT; i++) {
        int32_t token = sample(state);
        if (r->output[i] != token) {
            return 0;
        }
        state = mix(state, token);
    }
    return r->output_size == OUTPUT;
}

/* ----------------------------------------------------------------- the engine */

static void check(sluice_handle s, int status, const char *call) {
    char text[512] = "";
    if (status == SLUICE_OK) {
        return;
    }
    sluice_last_error(s, text, sizeof text, NULL);
    fprintf(stderr, "%s: %s: %s\n", call, sluice_status_text(status), text);
    exit(1);
}

static request *by_id(sluice_request_id id) {
    int i;
    for (i = 0; i < REQUESTS; i++) {
        if (requests[i].id == id) {
            return &requests[i];
        }
    }
    return NULL;
}

static void hand_out(const sluice_outputs_t *outs) {
    int32_t i, k;
    for (i = 0; i < outs->size; i++) {
        const sluice_output_t *o = &outs->outputs[i];
        request *r = by_id(o->request);
        for (k = 0; k < o->tokens_size; k++) {
            r->output[r->output_size++] = outs->tokens[o->tokens_at + k];
        }
        if (o->finish != SLUICE_NOT_FINISHED) {
            r->done = 1;
        }
    }
}

static void add(sluice_handle s, request *r) {
    sluice_request_t q;
    memset(&q, 0, sizeof q);
    q.struct_size = sizeof q;
    q.name = r->name;
    q.prompt = r->prompt;
    q.prompt_size = (size_t)r->prompt_size;
    q.max_tokens = OUTPUT;
    check(s, sluice_add(s, &q, &r->id), "sluice_add");
}

int main(void) {
    static const char config[] =
        "{\"Cache\":     {\"Blocks\": 200, \"BlockSize\": 16},"
        " \"Scheduler\": {\"MaxModelLen\": 512, \"MaxNumSeqs\": 8, \"MaxBatchedTokens\": 128},"
        " \"Graphs\":    {\"Mode\": \"FULL_AND_PIECEWISE\"}}";
    char error[512];
    int32_t sampled[ROWS];
    int full = 0, equal = 0, added = 0, i;
    int64_t now = 0;
    sluice_handle s;
    sluice_stats_t stats;

    if (sluice_abi_version() != SLUICE_ABI_VERSION) {
        fprintf(stderr, "the library has ABI %" PRIu32 ", this program was built for %d\n", sluice_abi_version(), SLUICE_ABI_VERSION);
        return 1;
    }
    if (sluice_new(config, strlen(config), &s, error, sizeof error) != SLUICE_OK) {
        fprintf(stderr, "sluice_new: %s\n", error);
        return 1;
    }
    for (i = 0; i < REQUESTS; i++) {
        make_prompt(&requests[i], i);
    }

    for (;;) {
        const sluice_plan_t *p;
        const sluice_outputs_t *outs;
        sluice_result_t result;
        int32_t row, work;
        size_t n = 0;

        if (added < REQUESTS) { /* one new request a step */
            add(s, &requests[added++]);
        }
        check(s, sluice_has_work(s, &work), "sluice_has_work");
        if (!work) {
            break;
        }
        now += 1000000;
        check(s, sluice_plan(s, now, &p), "sluice_plan");
        take_up_tables(p);
        for (row = 0; row < p->rows; row++) {
            int32_t token = compute_row(p, row);
            if (p->samples[row]) {
                sampled[n++] = token;
            }
        }
        full += p->graph.mode == SLUICE_MODE_FULL;
        memset(&result, 0, sizeof result);
        result.struct_size = sizeof result;
        result.tokens = sampled;
        result.tokens_size = n;
        check(s, sluice_apply(s, p->seq, &result, &outs), "sluice_apply");
        hand_out(outs);
    }

    for (i = 0; i < REQUESTS; i++) {
        equal += requests[i].done && same_without_cache(&requests[i]);
    }
    memset(&stats, 0, sizeof stats);
    stats.struct_size = sizeof stats;
    check(s, sluice_stats(s, &stats), "sluice_stats");
    printf("%d of %d answers equal those without a cache\n", equal, REQUESTS);
    printf("%" PRIu64 " steps, %d of them by a FULL graph; %" PRIu64 " of %" PRIu64 " prompt tokens from the cache; %" PRIu64 " preemptions\n",
           stats.steps, full, stats.prompt_local, stats.prompt_tokens, stats.preemptions);
    check(s, sluice_free(s), "sluice_free");
    return equal == REQUESTS && stats.prompt_local > 0 ? 0 : 1;
}
