/* threads.c ROUNDS: eight threads with a scheduler each reach the same end;
 * two threads on one scheduler are told so; a child of fork is told so. */
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "drive.h"

enum { THREADS = 8, ROWS = 16 };

static const char config[] = "{\"Cache\": {\"Blocks\": 400}, \"Scheduler\": {\"MaxModelLen\": 256, \"MaxNumSeqs\": 16, \"MaxBatchedTokens\": 256}}";

static int rounds = 20;

/* A run whose end depends on every plan: a digest of rows, blocks and tokens. */
static void *work(void *out) {
    sluice_handle s = make(config);
    uint64_t digest = 14695981039346656037u;
    int64_t now = 0;
    int round, i;
    for (round = 0; round < rounds; round++) {
        int32_t prompt[80], sampled[ROWS], has;
        for (i = 0; i < 6; i++) {
            char name[32];
            int k;
            snprintf(name, sizeof name, "%d.%d", round, i);
            for (k = 0; k < 80; k++) {
                prompt[k] = k < 40 ? k : round * 10 + i + k;
            }
            add(s, name, prompt, (size_t)(50 + 5 * i), 8);
        }
        for (;;) {
            const sluice_plan_t *p;
            must(s, sluice_has_work(s, &has), "sluice_has_work");
            if (!has) {
                break;
            }
            must(s, sluice_plan(s, now += 1000, &p), "sluice_plan");
            for (i = 0; i < p->rows; i++) {
                digest = (digest ^ (uint64_t)p->scheduled[i]) * 1099511628211u;
            }
            for (i = 0; p->rows > 0 && i < p->blocks_at[p->rows]; i++) {
                digest = (digest ^ (uint64_t)p->blocks[i]) * 1099511628211u;
            }
            apply(s, p, sampled);
        }
    }
    must(s, sluice_check(s), "sluice_check");
    must(s, sluice_free(s), "sluice_free");
    *(uint64_t *)out = digest;
    return NULL;
}

static int many(void) {
    pthread_t t[THREADS];
    uint64_t digests[THREADS];
    int i, same = 1;
    for (i = 0; i < THREADS; i++) {
        pthread_create(&t[i], NULL, work, &digests[i]);
    }
    for (i = 0; i < THREADS; i++) {
        pthread_join(t[i], NULL);
        same &= digests[i] == digests[0];
    }
    printf("%d threads with a scheduler each: %s\n", THREADS, same ? "equal" : "DIFFERENT");
    return same;
}

/* One handle, two threads without a lock between them. */
static sluice_handle shared;
static volatile int stop;

static void *intrude(void *out) {
    long *counts = out;
    int32_t has;
    while (!stop) {
        int status = sluice_has_work(shared, &has);
        if (status == SLUICE_E_BUSY) {
            counts[1]++;
        } else if (status == SLUICE_OK) {
            counts[0]++;
        } else {
            counts[2]++;
        }
    }
    return NULL;
}

static int misuse(void) {
    pthread_t t;
    long theirs[3] = {0, 0, 0}, busy = 0, other = 0;
    int i, fine;
    char text[256] = "";
    sluice_stats_t st;
    memset(&st, 0, sizeof st);
    st.struct_size = sizeof st;
    shared = make(config);
    pthread_create(&t, NULL, intrude, theirs);
    /* Until each side has met the other, or both have had ample chance. */
    for (i = 0; i < 20000000 && busy + theirs[1] < 10; i++) {
        int status = sluice_stats(shared, &st);
        busy += status == SLUICE_E_BUSY;
        other += status != SLUICE_E_BUSY && status != SLUICE_OK;
    }
    stop = 1;
    pthread_join(t, NULL);
    sluice_last_error(shared, text, sizeof text, NULL);
    fine = busy + theirs[1] > 0 && other == 0 && theirs[2] == 0 && strstr(text, "another thread") != NULL;
    must(shared, sluice_check(shared), "sluice_check");
    must(shared, sluice_free(shared), "sluice_free");
    printf("one handle, two threads: %s\n", fine ? "reported" : "NOT REPORTED");
    return fine;
}

static int after_fork(void) {
    sluice_handle s = make(config);
    int status = 1;
    pid_t child = fork();
    if (child == 0) {
        char text[256] = "";
        sluice_handle other = 0;
        int32_t has;
        int right = sluice_has_work(s, &has) == SLUICE_E_FORKED;
        right = right && sluice_new(config, strlen(config), &other, text, sizeof text) == SLUICE_E_FORKED && strstr(text, "fork") != NULL;
        right = right && sluice_last_error(s, text, sizeof text, NULL) == SLUICE_E_FORKED && strstr(text, "fork") != NULL;
        right = right && sluice_free(s) == SLUICE_E_FORKED && sluice_abi_version() == SLUICE_ABI_VERSION;
        right = right && strcmp(sluice_status_text(SLUICE_E_FORKED), text) == 0;
        _exit(right ? 0 : 1);
    }
    waitpid(child, &status, 0);
    must(s, sluice_free(s), "sluice_free"); /* the parent goes on */
    printf("child of fork: %s\n", status == 0 ? "reported" : "NOT REPORTED");
    return status == 0;
}

int main(int argc, char **argv) {
    int fine;
    if (argc > 1) {
        rounds = atoi(argv[1]);
    }
    fine = many();
    fine &= misuse();
    fine &= after_fork();
    return !fine;
}
