#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "../abi.h"

enum { NAMES = 1024, MEMORIES = 4096, BAD = -1, OVERLAP = -7, UNKNOWN = -8 };

typedef struct {
	char *at;
	size_t length;
	int remote;
} memory;

typedef struct engine engine;

typedef struct {
	engine *e;
	size_t size, count;
	smk_request *list;
	int *state, *seen; // per task
	pthread_t thread;
	int started;
	uint64_t magic;
} batch;

struct engine {
	pthread_mutex_t lock;
	pthread_cond_t idle;
	char name[128];
	int listener, stop;
	pthread_t accepter;
	memory memories[MEMORIES];
	char *names[NAMES]; // of segments
	int batches;        // not freed
	int served[256];    // sockets of the peers that read here
	int threads;
	long fail_every;
	char *hold; // while this file exists, no batch begins
	long tasks;
};

static const uint64_t MAGIC = 0x6d6f6f6e63616b65;

__attribute__((noreturn, format(printf, 1, 2))) static void die(const char *format, ...) {
	va_list args;
	va_start(args, format);
	fprintf(stderr, "emulated transfer engine: ");
	vfprintf(stderr, format, args);
	fputc('\n', stderr);
	va_end(args);
	abort();
}

static int all(int fd, void *p, size_t n, int out) {
	for (char *at = p; n > 0;) {
		ssize_t k = out ? send(fd, at, n, MSG_NOSIGNAL) : recv(fd, at, n, 0);
		if (k <= 0) {
			if (k < 0 && errno == EINTR) continue;
			return -1;
		}
		at += k;
		n -= (size_t)k;
	}
	return 0;
}

// within tells whether memory of an engine holds the range.
static int within(engine *e, const char *at, uint64_t length, int remote) {
	int found = 0;
	pthread_mutex_lock(&e->lock);
	for (int i = 0; i < MEMORIES && !found; i++) {
		memory *m = &e->memories[i];
		found = m->at && (m->remote || !remote) && at >= m->at && length <= m->length && (uint64_t)(at - m->at) <= m->length - length;
	}
	pthread_mutex_unlock(&e->lock);
	return found;
}

typedef struct {
	engine *e;
	int fd;
} visit;

// serve answers one peer: address and length in, a status and the bytes out.
static void *serve(void *arg) {
	visit v = *(visit *)arg;
	uint64_t ask[2];
	free(arg);
	while (!all(v.fd, ask, sizeof ask, 0)) {
		char *at = (char *)(uintptr_t)ask[0];
		char ok = (char)within(v.e, at, ask[1], 1);
		if (all(v.fd, &ok, 1, 1) || (ok && all(v.fd, at, ask[1], 1))) break;
	}
	pthread_mutex_lock(&v.e->lock);
	for (int i = 0; i < 256; i++)
		if (v.e->served[i] == v.fd) v.e->served[i] = -1;
	close(v.fd);
	v.e->threads--;
	pthread_cond_broadcast(&v.e->idle);
	pthread_mutex_unlock(&v.e->lock);
	return NULL;
}

static void *accept_all(void *arg) {
	engine *e = arg;
	for (;;) {
		int fd = accept(e->listener, NULL, NULL), one = 1, slot = -1;
		if (fd < 0) return NULL;
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
		pthread_mutex_lock(&e->lock);
		for (int i = 0; i < 256 && slot < 0; i++)
			if (e->served[i] < 0) slot = i;
		visit *v = malloc(sizeof *v);
		pthread_t t;
		if (!e->stop && slot >= 0 && v) {
			*v = (visit){e, fd};
			if (!pthread_create(&t, NULL, serve, v)) {
				pthread_detach(t);
				e->served[slot] = fd;
				e->threads++;
				fd = -1;
				v = NULL;
			}
		}
		pthread_mutex_unlock(&e->lock);
		free(v);
		if (fd >= 0) close(fd);
	}
}

// reach connects to a peer by its name, host:port.
static int reach(const char *name) {
	char host[128];
	const char *colon = strrchr(name, ':');
	if (!colon || colon - name >= (long)sizeof host) return -1;
	snprintf(host, sizeof host, "%.*s", (int)(colon - name), name);
	struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *list;
	if (getaddrinfo(host, colon + 1, &hints, &list)) return -1;
	int fd = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
	if (fd >= 0 && connect(fd, list->ai_addr, list->ai_addrlen)) {
		close(fd);
		fd = -1;
	}
	freeaddrinfo(list);
	if (fd >= 0) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	return fd;
}

static void mark(batch *b, size_t i, int state) { __atomic_store_n(&b->state[i], state, __ATOMIC_RELEASE); }

static void *work(void *arg) {
	batch *b = arg;
	while (b->e->hold && access(b->e->hold, F_OK) == 0) usleep(1000);
	int fd = -1;
	int32_t to = -1;
	for (size_t i = 0; i < b->count; i++) {
		smk_request *r = &b->list[i];
		long number = __atomic_add_fetch(&b->e->tasks, 1, __ATOMIC_RELAXED);
		uint64_t ask[2] = {r->target, r->length};
		char ok = 0;
		if (b->e->fail_every && number % b->e->fail_every == 0) {
			mark(b, i, SMK_FAILED);
			continue;
		}
		if (r->segment != to) {
			if (fd >= 0) close(fd);
			fd = reach(b->e->names[to = r->segment]);
		}
		if (fd < 0 || all(fd, ask, sizeof ask, 1) || all(fd, &ok, 1, 0) || !ok || all(fd, r->source, r->length, 0)) {
			if (fd >= 0) close(fd);
			fd = -1;
			to = -1;
			mark(b, i, SMK_FAILED);
			continue;
		}
		mark(b, i, SMK_COMPLETED);
	}
	if (fd >= 0) close(fd);
	return NULL;
}

static long setting(const char *name) {
	const char *s = getenv(name);
	return s ? atol(s) : 0;
}

void *createTransferEngine(const char *metadata, const char *server, const char *host, uint64_t port, int discover) {
	(void)port;
	if (strcmp(metadata, "P2PHANDSHAKE") || strcmp(server, host) || !discover) return NULL;
	struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICHOST}, *list;
	if (getaddrinfo(host, "0", &hints, &list)) return NULL;
	engine *e = calloc(1, sizeof *e);
	pthread_mutex_init(&e->lock, NULL);
	pthread_cond_init(&e->idle, NULL);
	memset(e->served, 0xff, sizeof e->served);
	e->fail_every = setting("SLUICE_MOONCAKE_EMU_FAIL");
	const char *hold = getenv("SLUICE_MOONCAKE_EMU_HOLD");
	e->hold = hold ? strdup(hold) : NULL;
	struct sockaddr_storage a;
	socklen_t n = sizeof a;
	char service[16];
	e->listener = socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (e->listener < 0 || bind(e->listener, list->ai_addr, list->ai_addrlen) || listen(e->listener, 64) || getsockname(e->listener, (void *)&a, &n) ||
	    getnameinfo((void *)&a, n, NULL, 0, service, sizeof service, NI_NUMERICSERV) || pthread_create(&e->accepter, NULL, accept_all, e)) {
		freeaddrinfo(list);
		free(e->hold);
		free(e);
		return NULL;
	}
	freeaddrinfo(list);
	snprintf(e->name, sizeof e->name, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, service);
	return e;
}

void destroyTransferEngine(void *engine_) {
	engine *e = engine_;
	pthread_mutex_lock(&e->lock);
	if (e->batches) die("destroyed with %d batches", e->batches);
	e->stop = 1;
	for (int i = 0; i < 256; i++)
		if (e->served[i] >= 0) shutdown(e->served[i], SHUT_RDWR);
	pthread_mutex_unlock(&e->lock);
	shutdown(e->listener, SHUT_RDWR);
	pthread_join(e->accepter, NULL);
	close(e->listener);
	pthread_mutex_lock(&e->lock);
	while (e->threads) pthread_cond_wait(&e->idle, &e->lock);
	pthread_mutex_unlock(&e->lock);
	for (int i = 0; i < NAMES; i++) free(e->names[i]);
	free(e->hold);
	free(e);
}

int getLocalIpAndPort(void *engine_, char *out, size_t size) {
	snprintf(out, size, "%s", ((engine *)engine_)->name);
	return 0;
}

// openSegment looks whether somebody is there, as the real one fetches the
// peer's description.
int32_t openSegment(void *engine_, const char *name) {
	engine *e = engine_;
	int32_t out = BAD;
	pthread_mutex_lock(&e->lock);
	for (int32_t i = 1; i < NAMES; i++) { // 0 is the own segment
		if (e->names[i] && !strcmp(e->names[i], name)) {
			out = i;
			break;
		}
		if (!e->names[i]) {
			int fd = reach(name);
			if (fd >= 0) {
				close(fd);
				e->names[i] = strdup(name);
				out = i;
			}
			break;
		}
	}
	pthread_mutex_unlock(&e->lock);
	return out;
}

int32_t openSegmentNoCache(void *engine_, const char *name) { return openSegment(engine_, name); }

int registerLocalMemory(void *engine_, void *at, size_t length, const char *location, int remote) {
	engine *e = engine_;
	int out = BAD;
	if (!at || !length || strcmp(location, "*")) return BAD;
	pthread_mutex_lock(&e->lock);
	memory *place = NULL;
	for (int i = 0; i < MEMORIES; i++) {
		memory *m = &e->memories[i];
		if (!m->at) {
			if (!place) place = m;
		} else if ((char *)at < m->at + m->length && m->at < (char *)at + length) {
			place = NULL;
			out = OVERLAP;
			break;
		}
	}
	if (place) {
		*place = (memory){at, length, remote};
		out = 0;
	}
	pthread_mutex_unlock(&e->lock);
	return out;
}

int unregisterLocalMemory(void *engine_, void *at) {
	engine *e = engine_;
	int out = UNKNOWN;
	pthread_mutex_lock(&e->lock);
	for (int i = 0; i < MEMORIES && at; i++) {
		if (e->memories[i].at == at) {
			e->memories[i].at = NULL;
			out = 0;
		}
	}
	pthread_mutex_unlock(&e->lock);
	return out;
}

uint64_t allocateBatchID(void *engine_, size_t size) {
	engine *e = engine_;
	batch *b = calloc(1, sizeof *b);
	*b = (batch){.e = e, .size = size, .magic = MAGIC};
	b->list = calloc(size, sizeof *b->list);
	b->state = calloc(size, sizeof *b->state);
	b->seen = calloc(size, sizeof *b->seen);
	pthread_mutex_lock(&e->lock);
	e->batches++;
	pthread_mutex_unlock(&e->lock);
	return (uint64_t)(uintptr_t)b;
}

static batch *find(void *engine_, uint64_t id) {
	batch *b = (batch *)(uintptr_t)id;
	if (!b || b->magic != MAGIC || b->e != engine_) die("no such batch");
	return b;
}

int submitTransfer(void *engine_, uint64_t id, smk_request *list, size_t count) {
	engine *e = engine_;
	batch *b = find(e, id);
	if (b->started || count > b->size) return BAD;
	for (size_t i = 0; i < count; i++) {
		if (list[i].opcode != SMK_READ || list[i].segment <= 0 || list[i].segment >= NAMES || !e->names[list[i].segment] ||
		    !within(e, list[i].source, list[i].length, 0))
			return BAD;
	}
	memcpy(b->list, list, count * sizeof *list);
	b->count = count;
	if (pthread_create(&b->thread, NULL, work, b)) return BAD;
	b->started = 1;
	return 0;
}

int getTransferStatus(void *engine_, uint64_t id, size_t task, smk_status *out) {
	batch *b = find(engine_, id);
	if (task >= b->count) return BAD;
	out->state = __atomic_load_n(&b->state[task], __ATOMIC_ACQUIRE);
	out->bytes = out->state == SMK_COMPLETED ? b->list[task].length : 0;
	b->seen[task] |= out->state != SMK_WAITING;
	return 0;
}

int freeBatchID(void *engine_, uint64_t id) {
	batch *b = find(engine_, id);
	for (size_t i = 0; i < b->count; i++)
		if (!b->seen[i]) die("batch freed before task %zu was seen to have ended", i);
	if (b->started) pthread_join(b->thread, NULL);
	pthread_mutex_lock(&b->e->lock);
	b->e->batches--;
	pthread_mutex_unlock(&b->e->lock);
	b->magic = 0;
	free(b->list);
	free(b->state);
	free(b->seen);
	free(b);
	return 0;
}
