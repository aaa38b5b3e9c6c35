/* context.c: what a decode step hands over does not depend on the length of the
 * context. One scheduler decodes behind 64 tokens, one behind 65,536; every
 * array of every plan and output has the same length in both. */
#include "drive.h"

enum { REQUESTS = 4, STEPS = 64 };

typedef struct {
    sluice_handle s;
    int64_t now;
} engine;

static engine start(int32_t tokens) {
    static int32_t prompt[65536];
    engine e;
    int32_t sampled[REQUESTS];
    const sluice_plan_t *p;
    int i, k;
    e.s = make("{\"Cache\": {\"Blocks\": 20000}, \"Scheduler\": {\"MaxModelLen\": 70000, \"MaxNumSeqs\": 4, \"MaxBatchedTokens\": 8192}}");
    e.now = 0;
    for (i = 0; i < REQUESTS; i++) {
        char name[8];
        for (k = 0; k < tokens; k++) {
            prompt[k] = i * 7 + k % 30000;
        }
        snprintf(name, sizeof name, "r%d", i);
        add(e.s, name, prompt, (size_t)tokens, 1000);
    }
    do { /* until all decode; those that began earlier have some output then */
        must(e.s, sluice_plan(e.s, ++e.now, &p), "sluice_plan");
        k = p->rows == REQUESTS && p->total == REQUESTS;
        apply(e.s, p, sampled);
    } while (!k);
    return e;
}

/* Elements of a step's arrays. Blocks are counted apart: each request takes one
 * in sixteen steps, at its own time. */
static long step(engine *e, long *blocks) {
    const sluice_plan_t *p;
    const sluice_outputs_t *o;
    int32_t sampled[REQUESTS];
    long n;
    must(e->s, sluice_plan(e->s, ++e->now, &p), "sluice_plan");
    n = p->rows + p->inputs_at[p->rows] + p->known_at[p->rows] + p->loads_size + p->pending_size + p->finished_size + p->transfers.size;
    *blocks += p->blocks_at[p->rows * p->groups];
    o = apply(e->s, p, sampled);
    return n + o->size + o->tokens_size;
}

static unsigned long long c_bytes(engine *e) {
    sluice_stats_t st;
    memset(&st, 0, sizeof st);
    st.struct_size = sizeof st;
    must(e->s, sluice_stats(e->s, &st), "sluice_stats");
    return st.c_bytes;
}

int main(void) {
    engine small = start(64), large = start(65536);
    unsigned long long before = c_bytes(&large);
    long a = 0, b = 0, blocks_a = 0, blocks_b = 0;
    int i;
    for (i = 0; i < STEPS; i++) {
        long x = step(&small, &blocks_a), y = step(&large, &blocks_b);
        if (x != y) {
            printf("step %d: %ld elements behind 64 tokens, %ld behind 65,536\n", i, x, y);
            return 1;
        }
        a += x;
        b += y;
    }
    printf("%d steps: %ld and %ld elements, %ld and %ld blocks; C memory grew by %llu bytes\n", STEPS, a, b, blocks_a, blocks_b, c_bytes(&large) - before);
    i = a == b && blocks_a == blocks_b && c_bytes(&large) == before;
    must(small.s, sluice_free(small.s), "sluice_free");
    must(large.s, sluice_free(large.s), "sluice_free");
    return !i;
}
