//go:build cgo && linux

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include "table.h"

struct smk_table MK;

void smk_quiet(sigset_t *before) {
	sigset_t block;
	sigfillset(&block);
	const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT};
	for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) sigdelset(&block, faults[i]);
	pthread_sigmask(SIG_BLOCK, &block, before);
}

void smk_loud(const sigset_t *before) { pthread_sigmask(SIG_SETMASK, before, NULL); }

static int symbols(void *h, smk_lib *out) {
	int absent = 0;
	const char *first = NULL;
#define X(result, name, args) do { \
		void *p = dlsym(h, #name); \
		memcpy(&MK.name, &p, sizeof p); \
		if (!p && !absent++) first = #name; \
	} while (0);
	SMK_SYMS(X)
#undef X
	if (!absent) return 0;
	snprintf(out->problem, sizeof out->problem, "%s lacks %s and %d more of the calls that are needed", out->path, first, absent - 1);
	return -1;
}

int smk_load(const char *const *candidates, smk_lib *out) {
	sigset_t before;
	void *h = NULL;
	memset(out, 0, sizeof *out);
	smk_quiet(&before);
	for (int i = 0; candidates[i] && !h; i++) {
		if ((h = dlopen(candidates[i], RTLD_NOW | RTLD_LOCAL))) {
			snprintf(out->path, sizeof out->path, "%s", candidates[i]);
		} else if (!out->problem[0]) {
			const char *why = dlerror();
			snprintf(out->problem, sizeof out->problem, "%s", why ? why : "not found");
		}
	}
	smk_loud(&before);
	if (!h) return -1;
	out->problem[0] = 0;
	return symbols(h, out);
}
