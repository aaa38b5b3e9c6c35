// The same work as TestMeasure, in plain C without Go: what the driver alone
// costs. Build: cc -O2 -o plain plain.c -ldl; run: plain FILE.cubin
#define _GNU_SOURCE
#include "../abi.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define X(r, name, v, args) static sl_result (*name) args;
SL_CUDA_SYMS(X)
#undef X
#define TRY(call) do { sl_result rc = (call); if (rc) { fprintf(stderr, "%s: %u\n", #call, rc); exit(1); } } while (0)

enum { LAUNCHES = 280, BIG = 256 << 20, SMALL = 64 << 10 };
static sl_stream s;
static sl_func f;
static volatile uint64_t *word;
static sl_ptr dword;
static uint64_t seq;

static double now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}
static void launch(void) {
	uint64_t arg = 1;
	size_t n = 8;
	void *extra[] = { (void *)SL_LAUNCH_BUFFER_POINTER, &arg, (void *)SL_LAUNCH_BUFFER_SIZE, &n, NULL };
	TRY(cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, s, NULL, extra));
}
static void signal_(void) { TRY(cuStreamWriteValue64(s, dword, ++seq, 0)); }
static void wait_(void) { while (__atomic_load_n(word, __ATOMIC_ACQUIRE) < seq) {} }
static int order(const void *a, const void *b) { double x = *(double *)a, y = *(double *)b; return (x > y) - (x < y); }

// measure prints the medians of the time to enqueue and of the time until done.
static void measure(const char *what, int n, void (*work)(void)) {
	double *enq = malloc(n * sizeof *enq), *all = malloc(n * sizeof *all);
	for (int i = -20; i < n; i++) {
		double t0 = now();
		work();
		signal_();
		double t1 = now();
		wait_();
		double t2 = now();
		if (i >= 0) enq[i] = t1 - t0, all[i] = t2 - t0;
	}
	qsort(enq, n, sizeof *enq, order);
	qsort(all, n, sizeof *all, order);
	printf("c %s %.2f %.2f\n", what, enq[n / 2], all[n / 2]);
}

static sl_exec exec;
static sl_ptr dev;
static void *host;
static void nothing(void) {}
static void batch(void) { for (int i = 0; i < LAUNCHES; i++) launch(); }
static void graph(void) { TRY(cuGraphLaunch(exec, s)); }
static void up(void) { TRY(cuMemcpyHtoDAsync(dev, host, BIG, s)); }
static void down(void) { TRY(cuMemcpyDtoHAsync(host, dev, BIG, s)); }
static void small_up(void) { TRY(cuMemcpyHtoDAsync(dev, host, SMALL, s)); }
static void across(void) { TRY(cuMemcpyDtoDAsync(dev + BIG, dev, BIG, s)); }
static void step(void) {
	TRY(cuMemcpyHtoDAsync(dev, host, SMALL, s));
	TRY(cuGraphLaunch(exec, s));
	TRY(cuMemcpyDtoHAsync(host, dev, 4096, s));
}

int main(int argc, char **argv) {
	void *h = dlopen("libcuda.so.1", RTLD_NOW);
	if (!h || argc < 2) return 1;
	sl_result (*get)(const char *, void **, int, uint64_t, unsigned *) = dlsym(h, "cuGetProcAddress_v2");
	unsigned status;
#define X(r, name, v, args) { void *p = NULL; get(#name, &p, v, 0, &status); memcpy(&name, &p, sizeof p); }
	SL_CUDA_SYMS(X)
#undef X
	sl_ctx ctx;
	sl_module m;
	sl_graph g;
	TRY(cuInit(0));
	TRY(cuDevicePrimaryCtxRetain(&ctx, 0));
	TRY(cuCtxSetCurrent(ctx));
	TRY(cuStreamCreateWithPriority(&s, SL_STREAM_NON_BLOCKING, 0));
	FILE *file = fopen(argv[1], "rb");
	if (!file) return 1;
	static char image[8 << 20];
	if (!fread(image, 1, sizeof image, file)) return 1;
	TRY(cuModuleLoadDataEx(&m, image, 0, NULL, NULL));
	TRY(cuModuleGetFunction(&f, m, "empty"));
	TRY(cuMemHostAlloc((void **)&word, 4096, SL_HOST_PORTABLE | SL_HOST_DEVICEMAP));
	*word = 0;
	TRY(cuMemHostGetDevicePointer(&dword, (void *)word, 0));
	TRY(cuMemHostAlloc(&host, BIG, SL_HOST_PORTABLE | SL_HOST_DEVICEMAP));
	memset(host, 1, BIG);
	TRY(cuMemAlloc(&dev, 2 * (size_t)BIG));
	TRY(cuStreamBeginCapture(s, SL_CAPTURE_THREAD_LOCAL));
	batch();
	TRY(cuStreamEndCapture(s, &g));
	TRY(cuGraphInstantiateWithFlags(&exec, g, 0));
	measure("nothing", 2000, nothing);
	measure("launch", 2000, launch);
	measure("batch", 300, batch);
	measure("graph", 1000, graph);
	measure("step", 1000, step);
	measure("h2d_64K", 1000, small_up);
	measure("h2d_256M", 12, up);
	measure("d2h_256M", 12, down);
	measure("d2d_256M", 30, across);
	return 0;
}
