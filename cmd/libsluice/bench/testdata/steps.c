/* steps.c ROWS GRAPHS: a scheduler with ROWS requests that decode. For each line
 * with a number of steps on its input it makes and applies as many plans and
 * writes the processor time of one in nanoseconds. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "sluice.h"

static void must(sluice_handle s, int status, const char *call) {
    if (status != SLUICE_OK) {
        char text[512] = "";
        sluice_last_error(s, text, sizeof text, NULL);
        fprintf(stderr, "%s: %s: %s\n", call, sluice_status_text(status), text);
        exit(1);
    }
}

static int32_t *sampled;
static int64_t now;

static int32_t step(sluice_handle s) {
    const sluice_plan_t *p;
    const sluice_outputs_t *outs;
    sluice_result_t r;
    size_t n = 0;
    int32_t i, rows;
    must(s, sluice_plan(s, ++now, &p), "sluice_plan");
    rows = p->rows;
    for (i = 0; i < rows; i++) {
        if (p->samples[i] == 1) {
            sampled[n++] = 100 + (int32_t)((p->seq + (uint64_t)i) % 1000);
        }
    }
    memset(&r, 0, sizeof r);
    r.struct_size = sizeof r;
    r.tokens = sampled;
    r.tokens_size = n;
    must(s, sluice_apply(s, p->seq, &r, &outs), "sluice_apply");
    return rows;
}

static double cpu(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

int main(int argc, char **argv) {
    enum { OUTPUT = 4096, MOST = 527 };
    int rows = argc > 1 ? atoi(argv[1]) : 256, i, k, steps;
    char config[512], error[1024];
    sluice_handle s;
    static int32_t prompt[MOST];
    int most = rows > 8192 ? rows : 8192;
    snprintf(config, sizeof config,
             "{\"Cache\": {\"Blocks\": %d, \"BlockSize\": 16}, \"Scheduler\": {\"MaxNumSeqs\": %d, \"MaxBatchedTokens\": %d, \"MaxModelLen\": %d}%s}",
             rows * (MOST + OUTPUT + 16) / 16 + 2, rows, most, MOST + OUTPUT, argc > 2 && strcmp(argv[2], "graphs") == 0 ? ", \"Graphs\": {}" : "");
    if (sluice_new(config, strlen(config), &s, error, sizeof error) != SLUICE_OK) {
        fprintf(stderr, "%s\n", error);
        return 1;
    }
    sampled = malloc(sizeof *sampled * (size_t)rows);
    for (i = 0; i < rows; i++) {
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
        r.max_tokens = OUTPUT;
        must(s, sluice_add(s, &r, &id), "sluice_add");
    }
    for (i = 0; i < 2 * rows * 520 / most + 1; i++) {
        step(s);
    }
    while (scanf("%d", &steps) == 1) {
        double begun = cpu(), took;
        for (i = 0; i < steps; i++) {
            if (step(s) != rows) {
                fprintf(stderr, "a step has not all rows\n");
                return 1;
            }
        }
        took = cpu() - begun;
        printf("%.1f\n", took / steps);
        fflush(stdout);
    }
    free(sampled);
    must(s, sluice_free(s), "sluice_free");
    return 0;
}
