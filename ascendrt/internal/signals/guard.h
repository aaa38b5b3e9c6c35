// Keeps a process's signals as they are while a foreign library is loaded and
// initialized, between guard_begin and guard_end on one thread.
#ifndef SLUICE_GUARD_H
#define SLUICE_GUARD_H

#include <pthread.h>
#include <signal.h>
#include <stddef.h>

static const int watched[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGQUIT, SIGTERM, SIGINT, SIGPROF, SIGURG, SIGPIPE, SIGSYS };
enum { NWATCHED = sizeof watched / sizeof *watched };

typedef struct {
	sigset_t mask;
	struct sigaction before[NWATCHED];
} guard;

// Threads that the library starts inherit the mask of guard_begin, so no
// asynchronous signal of Go's runtime lands on them.
static void guard_begin(guard *g) {
	sigset_t block;
	sigemptyset(&block);
	const int async[] = { SIGPROF, SIGURG, SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGCHLD, SIGALRM, SIGVTALRM, SIGPIPE, SIGWINCH };
	for (size_t i = 0; i < sizeof async / sizeof *async; i++) sigaddset(&block, async[i]);
	pthread_sigmask(SIG_BLOCK, &block, &g->mask);
	for (int i = 0; i < NWATCHED; i++) sigaction(watched[i], NULL, &g->before[i]);
}

// guard_end puts back the handlers that the library has replaced by some that do
// not run on the alternate stack, as Go's threads need it, and counts them.
static int guard_end(guard *g) {
	int restored = 0;
	for (int i = 0; i < NWATCHED; i++) {
		struct sigaction now;
		sigaction(watched[i], NULL, &now);
		int same = now.sa_handler == g->before[i].sa_handler && now.sa_sigaction == g->before[i].sa_sigaction;
		if (!same && !(now.sa_flags & SA_ONSTACK)) {
			sigaction(watched[i], &g->before[i], NULL);
			restored++;
		}
	}
	pthread_sigmask(SIG_SETMASK, &g->mask, NULL);
	return restored;
}

#endif
