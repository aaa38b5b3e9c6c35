// The C side under the sanitizers, on the emulated driver: eight threads
// capture, launch and wait while others allocate, copy and fail on purpose.
// Usage: threads libcuda.so.1
#include "../shim.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(c) do { if (!(c)) { fprintf(stderr, "line %d: %s: %s %s\n", __LINE__, #c, e.call, e.text); exit(1); } } while (0)
enum { THREADS = 8, ROUNDS = 20, N = 4096 };
static sl_ctx ctx;

static uint64_t *put(uint64_t *w, uint64_t kind, uint64_t a, uint64_t b, uint64_t c) {
	uint64_t r[SL_REC_WORDS] = { kind, 7, a, b, c };
	memcpy(w, r, sizeof r);
	return w + SL_REC_WORDS;
}

static void *work(void *arg) {
	const int capturing = (long)arg % 2;
	sl_err e;
	memset(&e, 0, sizeof e);
	sl_stream s, fork;
	sl_event ev, back;
	void *host, *page;
	sl_ptr dev, hostdev, word;
	CHECK(!sl_stream_new(ctx, 0, &s, &e));
	CHECK(!sl_stream_new(ctx, 0, &fork, &e));
	CHECK(!sl_event_new(ctx, SL_EVENT_DISABLE_TIMING, &ev, &e));
	CHECK(!sl_event_new(ctx, SL_EVENT_DISABLE_TIMING, &back, &e));
	CHECK(!sl_host_alloc(ctx, N, &host, &hostdev, &e));
	CHECK(!sl_words(ctx, &page, &word, &e));
	for (int i = 1; i <= ROUNDS; i++) {
		uint64_t words[16 * SL_REC_WORDS], *w = words;
		CHECK(!sl_mem_alloc(ctx, N, &dev, &e));
		w = put(w, SL_FILL, dev, N, (uint64_t)i);
		w = put(w, SL_RECORD, (uint64_t)ev, 0, 0);
		w = put(w, SL_STREAM, (uint64_t)fork, 0, 0);
		w = put(w, SL_WAIT_EVENT, (uint64_t)ev, 0, 0);
		w = put(w, SL_COPY_DTOH, hostdev, dev, N);
		w = put(w, SL_RECORD, (uint64_t)back, 0, 0);
		w = put(w, SL_STREAM, (uint64_t)s, 0, 0);
		w = put(w, SL_WAIT_EVENT, (uint64_t)back, 0, 0);
		if (capturing) {
			sl_graph g;
			sl_exec x;
			size_t count;
			uint64_t run[2 * SL_REC_WORDS];
			CHECK(!sl_capture(ctx, s, words, w - words, 1, &g, &x, NULL, &count, &e) && count == 2);
			put(put(run, SL_GRAPH, (uint64_t)x, 0, 0), SL_SIGNAL, word, (uint64_t)i, 0);
			CHECK(!sl_replay(ctx, s, run, 2 * SL_REC_WORDS, 0, &e));
			while (!sl_wait(page, (uint64_t)i, 2000)) CHECK(!sl_stream_check(ctx, s, &e));
			CHECK(!sl_graph_free(ctx, g, x, &e));
			// A capture that fails: the fork is never joined.
			CHECK(sl_capture(ctx, s, words, 6 * SL_REC_WORDS, 0, &g, &x, NULL, &count, &e) == 904 && !g && !x);
		} else {
			w = put(w, SL_SIGNAL, word, (uint64_t)i, 0);
			CHECK(!sl_replay(ctx, s, words, w - words, i % 2 ? SL_SYNC_EACH : 0, &e));
			while (!sl_wait(page, (uint64_t)i, 2000)) CHECK(!sl_stream_check(ctx, s, &e));
			uint64_t bad[2 * SL_REC_WORDS];
			put(put(bad, SL_FILL, dev + N - 1, 2, 0), SL_SIGNAL, word, (uint64_t)i, 0);
			CHECK(sl_replay(ctx, s, bad, 2 * SL_REC_WORDS, 0, &e) == 1 && e.index == 7);
		}
		for (int k = 0; k < N; k++) CHECK(((unsigned char *)host)[k] == i);
		CHECK(sl_mem_free(ctx, dev + 1, &e)); // no allocation begins there; dev itself may be another thread's once it is free
		CHECK(!sl_mem_free(ctx, dev, &e));
	}
	CHECK(!sl_event_free(ctx, ev, &e));
	CHECK(!sl_event_free(ctx, back, &e));
	CHECK(!sl_stream_free(ctx, s, &e));
	CHECK(!sl_stream_free(ctx, fork, &e));
	CHECK(!sl_host_free(ctx, host, &e));
	CHECK(!sl_words_end(ctx, page, &e));
	return NULL;
}

int main(int argc, char **argv) {
	sl_err e;
	sl_lib lib;
	int low, high;
	const char *candidates[] = { "/nonexistent/libcuda.so.1", argc > 1 ? argv[1] : NULL, NULL };
	memset(&e, 0, sizeof e);
	if (sl_load(SL_LIB_CUDA, candidates, &lib) < 0) { fprintf(stderr, "%s\n", lib.problem); return 1; }
	CHECK(!sl_open(0, &ctx, &low, &high, &e));
	pthread_t t[THREADS];
	for (long i = 0; i < THREADS; i++) pthread_create(&t[i], NULL, work, (void *)i);
	for (int i = 0; i < THREADS; i++) pthread_join(t[i], NULL);
	sl_ptr dev;
	CHECK(!sl_mem_alloc(ctx, N, &dev, &e));
	CHECK(!sl_mem_free(ctx, dev, &e));
	CHECK(sl_mem_free(ctx, dev, &e)); // twice
	CHECK(!sl_release(0, &e));
	puts("ok");
	return 0;
}
