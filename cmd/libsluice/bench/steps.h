/* steps.h: a scheduler whose requests all decode, driven from C. */
#ifndef STEPS_H
#define STEPS_H

#include "sluice.h"

/* The library's functions, by address. */
typedef struct functions {
    int (*create)(const char *, size_t, sluice_handle *, char *, size_t);
    int (*release)(sluice_handle);
    int (*add)(sluice_handle, const sluice_request_t *, sluice_request_id *);
    int (*plan)(sluice_handle, int64_t, const sluice_plan_t **);
    int (*apply)(sluice_handle, uint64_t, const sluice_result_t *, const sluice_outputs_t **);
} functions;

typedef struct engine {
    functions f;
    sluice_handle s;
    int64_t now;
    int32_t rows;
    int32_t *sampled;
    const void *before; /* what variables hold before a call fills them */
} engine;

/* Sets up rows requests whose prompts are computed and that have output tokens to
 * go; the status. */
int engine_start(engine *e, const functions *f, const char *config, int32_t rows, int64_t output, int32_t warm, char *error, size_t size);

/* Makes and applies n plans that have all rows; the status, -1 for other rows.
 * *nanoseconds is the processor time of this thread for one of them. */
int engine_steps(engine *e, int32_t n, double *nanoseconds);

void engine_stop(engine *e);

#endif
