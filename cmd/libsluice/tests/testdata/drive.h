/* drive.h: what the test programs share. */
#ifndef DRIVE_H
#define DRIVE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sluice.h"

static inline void must(sluice_handle s, int status, const char *call) {
    if (status != SLUICE_OK) {
        char text[512] = "";
        sluice_last_error(s, text, sizeof text, NULL);
        fprintf(stderr, "%s: %s: %s\n", call, sluice_status_text(status), text);
        exit(1);
    }
}

static inline sluice_handle make(const char *config) {
    char error[1024];
    sluice_handle s = 0;
    if (sluice_new(config, strlen(config), &s, error, sizeof error) != SLUICE_OK) {
        fprintf(stderr, "sluice_new: %s\n", error);
        exit(1);
    }
    return s;
}

static inline sluice_request_id add(sluice_handle s, const char *name, const int32_t *prompt, size_t n, int64_t max_tokens) {
    sluice_request_id id = 0;
    sluice_request_t r;
    memset(&r, 0, sizeof r);
    r.struct_size = sizeof r;
    r.name = name;
    r.prompt = prompt;
    r.prompt_size = n;
    r.max_tokens = max_tokens;
    must(s, sluice_add(s, &r, &id), "sluice_add");
    return id;
}

/* Applies a plan; each row that samples gets a token that follows from the
 * plan's number and the row. sampled has room for all. */
static inline const sluice_outputs_t *apply(sluice_handle s, const sluice_plan_t *p, int32_t *sampled) {
    const sluice_outputs_t *outs;
    sluice_result_t r;
    size_t n = 0;
    int32_t i;
    for (i = 0; i < p->rows; i++) {
        if (p->samples[i]) {
            sampled[n++] = 100 + (int32_t)((p->seq + (uint64_t)i) % 1000);
        }
    }
    memset(&r, 0, sizeof r);
    r.struct_size = sizeof r;
    r.tokens = sampled;
    r.tokens_size = n;
    must(s, sluice_apply(s, p->seq, &r, &outs), "sluice_apply");
    return outs;
}

#endif
