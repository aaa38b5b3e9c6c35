#include "steps.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int step(engine *e, int32_t *rows) {
    const sluice_plan_t *p = e->before;
    const sluice_outputs_t *outs = e->before;
    sluice_result_t r;
    size_t n = 0;
    int32_t i;
    int status = e->f.plan(e->s, ++e->now, &p);
    if (status != SLUICE_OK) {
        return status;
    }
    *rows = p->rows;
    for (i = 0; i < p->rows; i++) {
        if (p->samples[i] == 1) {
            e->sampled[n++] = 100 + (int32_t)((p->seq + (uint64_t)i) % 1000);
        }
    }
    memset(&r, 0, sizeof r);
    r.struct_size = sizeof r;
    r.tokens = e->sampled;
    r.tokens_size = n;
    return e->f.apply(e->s, p->seq, &r, &outs);
}

int engine_start(engine *e, const functions *f, const char *config, int32_t rows, int64_t output, int32_t warm, char *error, size_t size) {
    static int32_t prompt[527];
    int32_t i, k, got;
    int status = f->create(config, strlen(config), &e->s, error, size);
    e->f = *f;
    e->rows = rows;
    e->sampled = malloc(sizeof *e->sampled * (size_t)rows);
    for (i = 0; i < rows && status == SLUICE_OK; i++) {
        char name[16];
        sluice_request_t r;
        sluice_request_id id;
        for (k = 0; k < 512 + i % 16; k++) {
            prompt[k] = (i * 7919 + k * 31 + 1) % 30000;
        }
        prompt[0] = i;
        snprintf(name, sizeof name, "r%d", i + 1);
        memset(&r, 0, sizeof r);
        r.struct_size = sizeof r;
        r.name = name;
        r.prompt = prompt;
        r.prompt_size = (size_t)(512 + i % 16);
        r.max_tokens = output;
        status = f->add(e->s, &r, &id);
    }
    for (i = 0; i < warm && status == SLUICE_OK; i++) {
        status = step(e, &got);
    }
    return status;
}

static double cpu(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

int engine_steps(engine *e, int32_t n, double *nanoseconds) {
    double begun = cpu();
    int32_t i;
    for (i = 0; i < n; i++) {
        int32_t rows;
        int status = step(e, &rows);
        if (status != SLUICE_OK) {
            return status;
        }
        if (rows != e->rows) {
            return -1;
        }
    }
    *nanoseconds = (cpu() - begun) / n;
    return SLUICE_OK;
}

void engine_stop(engine *e) {
    e->f.release(e->s);
    free(e->sampled);
    free(e);
}
