/* serve.c: one scheduler of libsluice, driven through a pipe. Each command is a
 * letter and its arguments; each answer a status and what the call has brought.
 * Numbers are those of this machine, strings and arrays come after their length.
 * It ends at the end of its input. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sluice.h"

static void die(const char *what) {
    fprintf(stderr, "serve: %s\n", what);
    exit(1);
}

static void get(void *p, size_t n) {
    if (n > 0 && fread(p, 1, n, stdin) != n) {
        die("input ends inside a command");
    }
}

static int32_t i32(void) {
    int32_t v;
    get(&v, sizeof v);
    return v;
}

static int64_t i64(void) {
    int64_t v;
    get(&v, sizeof v);
    return v;
}

/* An array, or a string with a zero byte behind it; the caller frees it. */
static void *array(size_t each, size_t *n) {
    char *p;
    *n = (size_t)i32();
    p = malloc(*n * each + 1);
    if (p == NULL) {
        die("no memory");
    }
    get(p, *n * each);
    p[*n * each] = 0;
    return p;
}

static void put(const void *p, size_t n) {
    if (n > 0 && fwrite(p, 1, n, stdout) != n) {
        die("cannot write");
    }
}

static void put32(int32_t v) { put(&v, sizeof v); }
static void put64(uint64_t v) { put(&v, sizeof v); }

static void list(const void *p, size_t each, int64_t n) {
    put32((int32_t)n);
    put(p, each * (size_t)n);
}

static int64_t end_of(const int32_t *at, int64_t owners) { return at == NULL ? 0 : at[owners]; }

static void put_plan(const sluice_plan_t *p) {
    int64_t rows = p->rows, owners = rows * p->groups, loads = p->loads_size;
    put64(p->seq);
    put64(p->applied);
    put32(p->groups);
    put32(p->total);
    put32(p->free);
    put32(p->waits);
    list(p->requests, 8, rows);
    list(p->kinds, 1, rows);
    list(p->scheduled, 4, rows);
    list(p->drafts, 4, rows);
    list(p->computed, 4, rows);
    list(p->prefill, 4, rows);
    list(p->samples, 1, rows);
    list(p->local_hits, 4, rows);
    list(p->external_hits, 4, rows);
    list(p->inputs, 4, end_of(p->inputs_at, rows));
    list(p->inputs_at, 4, rows + 1);
    list(p->table_from, 4, owners);
    list(p->blocks, 4, end_of(p->blocks_at, owners));
    list(p->blocks_at, 4, owners + 1);
    list(p->common_prefix, 4, p->groups);
    list(p->loads, 8, loads);
    list(p->loads_from, 4, loads);
    list(p->loads_to, 4, loads);
    list(p->loads_async, 1, loads);
    list(p->load_blocks, 4, end_of(p->load_blocks_at, loads * p->groups));
    list(p->load_blocks_at, 4, loads * p->groups + 1);
    list(p->pending, 8, p->pending_size);
    list(p->finished, 8, p->finished_size);
    list(p->preempted, 8, p->preempted_size);
    list(p->rolled_back, 8, p->rolled_back_size);
}

static void put_outputs(const sluice_outputs_t *o) {
    int32_t i;
    put32(o->size);
    for (i = 0; i < o->size; i++) {
        const sluice_output_t *x = &o->outputs[i];
        put64(x->request);
        put32(x->finish);
        put32(x->stop);
        put32(x->stop_token);
        list(o->tokens + x->tokens_at, 4, x->tokens_size);
    }
}

static int add(sluice_handle s, sluice_request_id *id) {
    size_t n;
    int status;
    int32_t *prompt, *stop, *eos;
    char *name, *salt, *lora;
    sluice_request_t r;
    memset(&r, 0, sizeof r);
    r.struct_size = sizeof r;
    r.name = name = array(1, &n);
    r.prompt = prompt = array(4, &r.prompt_size);
    r.stop = stop = array(4, &r.stop_size);
    r.eos = eos = array(4, &r.eos_size);
    r.salt = salt = array(1, &n);
    r.lora_name = lora = array(1, &n);
    r.lora_id = i64();
    r.max_tokens = i64();
    r.min_tokens = i64();
    r.priority = i32();
    r.arrival = i64();
    r.flags = (uint32_t)i32();
    r.offer.struct_size = sizeof r.offer;
    r.offer.lookup = i32();
    r.offer.tokens = i64();
    r.offer.async_load = i32();
    r.offer.repeat = i32();
    status = sluice_add(s, &r, id);
    free(name);
    free(prompt);
    free(stop);
    free(eos);
    free(salt);
    free(lora);
    return status;
}

int main(void) {
    sluice_handle s = 0;
    int c;
    while ((c = getchar()) != EOF) {
        size_t n;
        int status;
        switch (c) {
        case 'N': {
            char error[1024] = "";
            char *config = array(1, &n);
            status = sluice_new(config, n, &s, error, sizeof error);
            free(config);
            put32(status);
            list(error, 1, (int64_t)strlen(error));
            break;
        }
        case 'A': {
            sluice_request_id id = 0;
            put32(add(s, &id));
            put64(id);
            break;
        }
        case 'X':
            put32(sluice_abort(s, (uint64_t)i64()));
            break;
        case 'O': {
            sluice_request_id id = (uint64_t)i64();
            sluice_offer_t o;
            memset(&o, 0, sizeof o);
            o.struct_size = sizeof o;
            o.lookup = i32();
            o.tokens = i64();
            o.async_load = i32();
            o.repeat = i32();
            put32(sluice_offer(s, id, &o));
            break;
        }
        case 'D': {
            sluice_event_t ev;
            int32_t *blocks;
            ev.kind = i32();
            ev.request = (uint64_t)i64();
            ev.worker = 0;
            ev.blocks = blocks = array(4, &ev.blocks_size);
            put32(sluice_deliver(s, &ev, 1));
            free(blocks);
            break;
        }
        case 'P': {
            const sluice_plan_t *p = NULL;
            status = sluice_plan(s, i64(), &p);
            put32(status);
            if (status == SLUICE_OK) {
                put_plan(p);
            }
            break;
        }
        case 'Y': {
            const sluice_outputs_t *o = NULL;
            sluice_result_t r;
            uint64_t seq = (uint64_t)i64();
            int32_t *tokens;
            memset(&r, 0, sizeof r);
            r.struct_size = sizeof r;
            r.tokens = tokens = array(4, &r.tokens_size);
            status = sluice_apply(s, seq, &r, &o);
            free(tokens);
            put32(status);
            if (status == SLUICE_OK) {
                put_outputs(o);
            }
            break;
        }
        case 'T': {
            int32_t state = 0;
            put32(sluice_request_state(s, (uint64_t)i64(), &state));
            put32(state);
            break;
        }
        case 'Q': {
            static sluice_request_id ids[1 << 16];
            status = sluice_queue(s, i32(), ids, 1 << 16, &n);
            put32(status);
            list(ids, 8, (int64_t)n);
            break;
        }
        case 'S': {
            sluice_stats_t st;
            memset(&st, 0, sizeof st);
            st.struct_size = sizeof st;
            put32(sluice_stats(s, &st));
            put32(st.running);
            put32(st.waiting);
            put32(st.skipped);
            put32(st.blocks_available);
            break;
        }
        case 'E': {
            char text[1024];
            put32(sluice_last_error(s, text, sizeof text, NULL));
            list(text, 1, (int64_t)strlen(text));
            break;
        }
        default:
            die("unknown command");
        }
        if (fflush(stdout) != 0) {
            die("cannot write");
        }
    }
    if (s != 0 && sluice_free(s) != SLUICE_OK) {
        die("free failed");
    }
    return 0;
}
