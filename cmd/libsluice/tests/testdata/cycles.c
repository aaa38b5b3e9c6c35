/* cycles.c N: N times add, plan, apply, abort. Memory does not grow: C memory of
 * the handle is the same at the end as after the first tenth, and the resident
 * set has grown by less than 16 MiB since then. */
#include <unistd.h>

#include "drive.h"

static long resident_kib(void) {
    long pages = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f == NULL || fscanf(f, "%ld %ld", &pages, &resident) != 2) {
        resident = 0;
    }
    if (f != NULL) {
        fclose(f);
    }
    return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

static uint64_t c_bytes(sluice_handle s) {
    sluice_stats_t st;
    memset(&st, 0, sizeof st);
    st.struct_size = sizeof st;
    must(s, sluice_stats(s, &st), "sluice_stats");
    return st.c_bytes;
}

int main(int argc, char **argv) {
    long n = argc > 1 ? atol(argv[1]) : 1000000, i, before = 0, after;
    uint64_t bytes = 0;
    int32_t prompt[64], sampled[8];
    sluice_handle s = make("{\"Cache\": {\"Blocks\": 500, \"Events\": {\"Mode\": \"EventsOn\"}}, \"Connector\": {},"
                           " \"Scheduler\": {\"MaxModelLen\": 256, \"MaxNumSeqs\": 8, \"MaxBatchedTokens\": 256}}");
    for (i = 0; i < n; i++) {
        const sluice_plan_t *p;
        const sluice_kv_events_t *events;
        sluice_request_id id;
        char name[32];
        int k;
        if (i == n / 10) {
            before = resident_kib();
            bytes = c_bytes(s);
        }
        snprintf(name, sizeof name, "r%ld", i);
        for (k = 0; k < 64; k++) {
            prompt[k] = k < 32 ? k : (int32_t)(i % 100000) + k;
        }
        id = add(s, name, prompt, 64, 16);
        must(s, sluice_plan(s, i, &p), "sluice_plan");
        apply(s, p, sampled);
        must(s, sluice_abort(s, id), "sluice_abort");
        must(s, sluice_take_events(s, &events), "sluice_take_events");
    }
    after = resident_kib();
    printf("%ld cycles: C memory %llu bytes after the first tenth, %llu at the end; resident set grew by %ld KiB to %ld KiB\n", n,
           (unsigned long long)bytes, (unsigned long long)c_bytes(s), after - before, after);
    if (c_bytes(s) != bytes || after - before > 16 * 1024) {
        return 1;
    }
    must(s, sluice_check(s), "sluice_check");
    must(s, sluice_free(s), "sluice_free");
    return 0;
}
