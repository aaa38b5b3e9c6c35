//go:build ucx && cgo && linux

#include "shim.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <ucp/api/ucp.h>

#define BUFFER (256 << 10)
#define READY 16

struct slu_conn {
	slu *w;
	ucp_ep_h ep;
	uint64_t id;
	int failed;   // the error handler has run
	int closing;  // Go has let go of it
	int sending;  // the buffer is in use
	slu_conn *next, **at; // list of all
	char buffer[BUFFER];
};

typedef struct node {
	struct node *next;
	slu_event ev;
} node;

typedef struct request {
	struct request *next;
	ucp_conn_request_h handle;
} request;

struct slu {
	pthread_mutex_t lock;
	ucp_context_h ctx;
	ucp_worker_h worker;
	ucp_listener_h listener;
	int efd;
	uint64_t last;
	slu_conn *conns;
	node *first, **end;
	request *asked;
};

const char *slu_text(int status) { return ucs_status_string((ucs_status_t)status); }

static int fail(char *text, size_t n, const char *call, ucs_status_t s) {
	snprintf(text, n, "%s: %s", call, ucs_status_string(s));
	return (int)s;
}

static void push(slu *w, slu_event ev) {
	node *x = malloc(sizeof *x);
	if (!x) return;
	x->next = NULL;
	x->ev = ev;
	*w->end = x;
	w->end = &x->next;
}

static void drop(slu_conn *c) {
	*c->at = c->next;
	if (c->next) c->next->at = c->at;
	free(c);
}

static void on_error(void *arg, ucp_ep_h ep, ucs_status_t status) {
	slu_conn *c = arg;
	(void)ep;
	if (c->failed) return;
	c->failed = 1;
	if (!c->closing) push(c->w, (slu_event){.kind = SLU_CLOSED, .id = c->id, .status = status});
}

static void on_request(ucp_conn_request_h handle, void *arg) {
	slu *w = arg;
	request *r = malloc(sizeof *r);
	if (!r) {
		ucp_listener_reject(w->listener, handle);
		return;
	}
	r->handle = handle;
	r->next = w->asked;
	w->asked = r;
}

static void on_sent(void *req, ucs_status_t status, void *arg) {
	slu_conn *c = arg;
	c->sending = 0;
	if (!c->closing) push(c->w, (slu_event){.kind = SLU_SENT, .id = c->id, .status = status});
	ucp_request_free(req);
}

static void on_closed(void *req, ucs_status_t status, void *arg) {
	(void)status;
	drop(arg);
	ucp_request_free(req);
}

static slu_conn *new_conn(slu *w) {
	slu_conn *c = calloc(1, sizeof *c);
	if (!c) return NULL;
	c->w = w;
	c->id = ++w->last;
	c->next = w->conns;
	c->at = &w->conns;
	if (c->next) c->next->at = &c->next;
	w->conns = c;
	return c;
}

static ucs_status_t create(slu_conn *c, ucp_ep_params_t *p) {
	p->field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER | UCP_EP_PARAM_FIELD_USER_DATA;
	p->err_mode = UCP_ERR_HANDLING_MODE_PEER;
	p->err_handler.cb = on_error;
	p->err_handler.arg = c;
	p->user_data = c;
	return ucp_ep_create(c->w->worker, p, &c->ep);
}

static int address(struct sockaddr_storage *out, socklen_t *len, const char *ip, int port) {
	struct sockaddr_in *v4 = (void *)out;
	struct sockaddr_in6 *v6 = (void *)out;
	memset(out, 0, sizeof *out);
	if (inet_pton(AF_INET, ip, &v4->sin_addr) == 1) {
		v4->sin_family = AF_INET;
		v4->sin_port = htons((uint16_t)port);
		*len = sizeof *v4;
		return 0;
	}
	if (inet_pton(AF_INET6, ip, &v6->sin6_addr) == 1) {
		v6->sin6_family = AF_INET6;
		v6->sin6_port = htons((uint16_t)port);
		*len = sizeof *v6;
		return 0;
	}
	return -1;
}

int slu_open(slu **out, const char *ip, int port, int *bound, char *text, size_t n) {
	slu *w = calloc(1, sizeof *w);
	struct sockaddr_storage sa;
	socklen_t len;
	ucs_status_t s;
	if (!w) return fail(text, n, "calloc", UCS_ERR_NO_MEMORY);
	pthread_mutex_init(&w->lock, NULL);
	w->end = &w->first;
	if (address(&sa, &len, ip, port)) {
		s = UCS_ERR_INVALID_ADDR;
		fail(text, n, "listen address", s);
		goto out;
	}
	// The segments of shared memory are 8 KiB unless somebody says otherwise, which
	// makes every large send many small ones.
	setenv("UCX_MM_SEG_SIZE", "32768", 0);
	// Shared memory notices dead peers, and is thus used at all, only if asked to.
	setenv("UCX_MM_ERROR_HANDLING", "y", 0);
	ucp_params_t p = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_STREAM | UCP_FEATURE_RMA | UCP_FEATURE_WAKEUP};
	if ((s = ucp_init(&p, NULL, &w->ctx)) != UCS_OK) {
		fail(text, n, "ucp_init", s);
		goto out;
	}
	ucp_worker_params_t wp = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE, .thread_mode = UCS_THREAD_MODE_SERIALIZED};
	if ((s = ucp_worker_create(w->ctx, &wp, &w->worker)) != UCS_OK) {
		fail(text, n, "ucp_worker_create", s);
		goto out;
	}
	if ((s = ucp_worker_get_efd(w->worker, &w->efd)) != UCS_OK) {
		fail(text, n, "ucp_worker_get_efd", s);
		goto out;
	}
	ucp_listener_params_t lp = {
		.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
		.sockaddr = {.addr = (struct sockaddr *)&sa, .addrlen = len},
		.conn_handler = {.cb = on_request, .arg = w},
	};
	if ((s = ucp_listener_create(w->worker, &lp, &w->listener)) != UCS_OK) {
		fail(text, n, "ucp_listener_create", s);
		goto out;
	}
	ucp_listener_attr_t la = {.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR};
	if ((s = ucp_listener_query(w->listener, &la)) != UCS_OK) {
		fail(text, n, "ucp_listener_query", s);
		goto out;
	}
	*bound = ntohs(la.sockaddr.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&la.sockaddr)->sin6_port : ((struct sockaddr_in *)&la.sockaddr)->sin_port);
	*out = w;
	return 0;
out:
	slu_destroy(w);
	return (int)s;
}

int slu_dial(slu *w, const char *ip, int port, slu_conn **out, uint64_t *id, char *text, size_t n) {
	struct sockaddr_storage sa;
	socklen_t len;
	if (address(&sa, &len, ip, port)) return fail(text, n, "address", UCS_ERR_INVALID_ADDR);
	pthread_mutex_lock(&w->lock);
	slu_conn *c = new_conn(w);
	ucs_status_t s = UCS_ERR_NO_MEMORY;
	if (c) {
		ucp_ep_params_t p = {
			.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR, .flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER,
			.sockaddr = {.addr = (struct sockaddr *)&sa, .addrlen = len},
		};
		if ((s = create(c, &p)) != UCS_OK) drop(c);
	}
	if (s == UCS_OK) {
		*out = c;
		*id = c->id;
		ucp_worker_signal(w->worker);
	}
	pthread_mutex_unlock(&w->lock);
	return s == UCS_OK ? 0 : fail(text, n, "ucp_ep_create", s);
}

void *slu_buffer(slu_conn *c) { return c->buffer; }
size_t slu_buffer_size(void) { return BUFFER; }

int slu_send(slu *w, slu_conn *c, size_t length) {
	int out = 0;
	pthread_mutex_lock(&w->lock);
	if (c->failed) {
		out = UCS_ERR_CONNECTION_RESET;
	} else {
		ucp_request_param_t p = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA, .cb.send = on_sent, .user_data = c};
		ucs_status_ptr_t r = ucp_stream_send_nbx(c->ep, c->buffer, length, &p);
		if (UCS_PTR_IS_ERR(r)) {
			out = UCS_PTR_STATUS(r);
		} else if (r != NULL) {
			c->sending = 1;
			out = 1;
			ucp_worker_signal(w->worker); // else whoever polls may sleep
		}
	}
	pthread_mutex_unlock(&w->lock);
	return out;
}

int slu_map(slu *w, void *address, size_t length, void **memory, void **key, size_t *size, char *text, size_t n) {
	ucp_mem_map_params_t p = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH, .address = address, .length = length};
	ucp_mem_h m;
	void *packed;
	pthread_mutex_lock(&w->lock);
	ucs_status_t s = ucp_mem_map(w->ctx, &p, &m);
	if (s != UCS_OK) {
		pthread_mutex_unlock(&w->lock);
		return fail(text, n, "ucp_mem_map", s);
	}
	s = ucp_rkey_pack(w->ctx, m, &packed, size);
	if (s == UCS_OK) {
		if ((*key = malloc(*size))) memcpy(*key, packed, *size);
		else s = UCS_ERR_NO_MEMORY;
		ucp_rkey_buffer_release(packed);
	}
	if (s != UCS_OK) ucp_mem_unmap(w->ctx, m);
	pthread_mutex_unlock(&w->lock);
	if (s != UCS_OK) return fail(text, n, "ucp_rkey_pack", s);
	*memory = m;
	return 0;
}

void slu_unmap(slu *w, void *memory) {
	pthread_mutex_lock(&w->lock);
	ucp_mem_unmap(w->ctx, memory);
	pthread_mutex_unlock(&w->lock);
}

char *slu_print(slu *w, slu_conn *c) {
	char *text = NULL;
	size_t size = 0;
	FILE *out = open_memstream(&text, &size);
	if (!out) return NULL;
	pthread_mutex_lock(&w->lock);
	if (!c->failed) ucp_ep_print_info(c->ep, out);
	pthread_mutex_unlock(&w->lock);
	fclose(out);
	return text;
}

// From 1.14 on an endpoint lists its transports. The headers may be older than the
// library, so this is what it fills in, behind what 1.13 has.
typedef struct {
	const char *transport, *device;
} transport_entry;

typedef union {
	ucp_ep_attr_t known;
	struct {
		char before[offsetof(ucp_ep_attr_t, remote_sockaddr) + sizeof(struct sockaddr_storage)];
		transport_entry *entries;
		unsigned count;
		size_t entry_size;
		void *later[8];
	} more;
} ep_attr;

#define FIELD_TRANSPORTS 8
#define MAX_TRANSPORTS 64

int slu_transports(slu *w, slu_conn *c, char *text, size_t n) {
	unsigned major, minor, release;
	ucp_get_version(&major, &minor, &release);
	if (major < 1 || (major == 1 && minor < 14)) return -1;
	transport_entry list[MAX_TRANSPORTS] = {{NULL, NULL}};
	ep_attr a;
	memset(&a, 0, sizeof a);
	a.known.field_mask = FIELD_TRANSPORTS;
	a.more.entries = list;
	a.more.count = MAX_TRANSPORTS;
	a.more.entry_size = sizeof *list;
	ucs_status_t s = UCS_ERR_CONNECTION_RESET;
	pthread_mutex_lock(&w->lock);
	if (!c->failed) s = ucp_ep_query(c->ep, &a.known);
	pthread_mutex_unlock(&w->lock);
	if (s != UCS_OK) return -1;
	size_t at = 0;
	for (unsigned i = 0; i < a.more.count && i < MAX_TRANSPORTS && list[i].transport; i++) {
		int k = snprintf(text + at, n - at, "%s ", list[i].transport);
		if (k < 0 || (size_t)k >= n - at) return -1;
		at += (size_t)k;
	}
	return at ? 0 : -1;
}

// fetch is one slu_fetch under way. It outlives its connection.
typedef struct {
	slu *w;
	uint64_t id;
	size_t left; // gets that have not ended
	ucs_status_t status;
	size_t nkeys;
	ucp_rkey_h keys[];
} fetch;

// got ends one get. The lock is held.
static void got(fetch *f, ucs_status_t status) {
	if (status != UCS_OK && f->status == UCS_OK) f->status = status;
	if (--f->left) return;
	for (size_t i = 0; i < f->nkeys; i++) ucp_rkey_destroy(f->keys[i]);
	push(f->w, (slu_event){.kind = SLU_FETCHED, .id = f->id, .status = f->status});
	free(f);
}

static void on_got(void *req, ucs_status_t status, void *arg) {
	ucp_request_free(req);
	got(arg, status);
}

int slu_fetch(slu *w, slu_conn *c, uint64_t id, const void *const *keys, size_t nkeys, const slu_range *ranges, size_t count) {
	fetch *f = calloc(1, sizeof *f + nkeys * sizeof *f->keys);
	if (!f) return UCS_ERR_NO_MEMORY;
	*f = (fetch){.w = w, .id = id, .left = 1}; // the one is ours, until all are begun
	ucs_status_t s = UCS_OK;
	pthread_mutex_lock(&w->lock);
	if (c->failed) s = UCS_ERR_CONNECTION_RESET;
	while (s == UCS_OK && f->nkeys < nkeys)
		if ((s = ucp_ep_rkey_unpack(c->ep, keys[f->nkeys], &f->keys[f->nkeys])) == UCS_OK) f->nkeys++;
	if (s != UCS_OK) {
		for (size_t i = 0; i < f->nkeys; i++) ucp_rkey_destroy(f->keys[i]);
		pthread_mutex_unlock(&w->lock);
		free(f);
		return s;
	}
	for (size_t i = 0; i < count && f->status == UCS_OK; i++) {
		ucp_request_param_t p = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA, .cb.send = on_got, .user_data = f};
		f->left++;
		ucs_status_ptr_t r = ucp_get_nbx(c->ep, ranges[i].local, ranges[i].length, ranges[i].remote, f->keys[ranges[i].key], &p);
		if (!UCS_PTR_IS_PTR(r)) got(f, UCS_PTR_STATUS(r));
	}
	got(f, UCS_OK);
	ucp_worker_signal(w->worker); // else whoever polls may sleep
	pthread_mutex_unlock(&w->lock);
	return 0;
}

static void end(slu_conn *c, int flush) {
	ucp_request_param_t p = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA, .cb.send = on_closed, .user_data = c};
	if (!flush || c->failed) {
		p.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
		p.flags = UCP_EP_CLOSE_FLAG_FORCE;
	}
	ucs_status_ptr_t r = ucp_ep_close_nbx(c->ep, &p);
	if (!UCS_PTR_IS_PTR(r)) drop(c);
}

void slu_close(slu *w, slu_conn *c, int flush) {
	pthread_mutex_lock(&w->lock);
	c->closing = 1;
	end(c, flush && !c->sending);
	ucp_worker_signal(w->worker);
	pthread_mutex_unlock(&w->lock);
}

// accept makes connections of those that asked. The lock is held.
static void accept_all(slu *w) {
	request *r = w->asked;
	w->asked = NULL;
	while (r) {
		request *next = r->next;
		slu_conn *c = w->listener ? new_conn(w) : NULL;
		if (!c) {
			if (w->listener) ucp_listener_reject(w->listener, r->handle);
		} else {
			ucp_ep_params_t p = {.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST, .conn_request = r->handle};
			if (create(c, &p) != UCS_OK) drop(c);
			else push(w, (slu_event){.kind = SLU_ACCEPTED, .id = c->id, .conn = c});
		}
		free(r);
		r = next;
	}
}

// receive takes what has arrived. The lock is held.
static void receive(slu *w) {
	ucp_stream_poll_ep_t ready[READY];
	ssize_t n;
	while ((n = ucp_stream_worker_poll(w->worker, ready, READY, 0)) > 0) {
		for (ssize_t i = 0; i < n; i++) {
			slu_conn *c = ready[i].user_data;
			size_t length;
			ucs_status_ptr_t p;
			while ((p = ucp_stream_recv_data_nb(ready[i].ep, &length)) != NULL) {
				if (UCS_PTR_IS_ERR(p)) {
					on_error(c, ready[i].ep, UCS_PTR_STATUS(p));
					break;
				}
				void *copy = c->closing ? NULL : malloc(length);
				if (copy) {
					memcpy(copy, p, length);
					push(w, (slu_event){.kind = SLU_DATA, .id = c->id, .data = copy, .length = length});
				} else if (!c->closing) {
					on_error(c, ready[i].ep, UCS_ERR_NO_MEMORY);
				}
				ucp_stream_data_release(ready[i].ep, p);
			}
		}
	}
}

static int take(slu *w, slu_event *events, int max) {
	int n = 0;
	while (n < max && w->first) {
		node *x = w->first;
		events[n++] = x->ev;
		if (!(w->first = x->next)) w->end = &w->first;
		free(x);
	}
	return n;
}

static void progress(slu *w) {
	while (ucp_worker_progress(w->worker)) {}
	accept_all(w);
	receive(w);
}

// SPINS is how often progress is tried before the poller sleeps: while bytes
// flow, waking it for each piece costs more than the piece.
#define SPINS 8

int slu_poll(slu *w, int milliseconds, slu_event *events, int max) {
	int n = 0;
	for (int i = 0; n == 0 && i < SPINS; i++) {
		if (i) sched_yield();
		pthread_mutex_lock(&w->lock);
		progress(w);
		n = take(w, events, max);
		pthread_mutex_unlock(&w->lock);
	}
	if (n > 0) return n;
	pthread_mutex_lock(&w->lock);
	if (n == 0 && ucp_worker_arm(w->worker) == UCS_OK) {
		struct pollfd f = {.fd = w->efd, .events = POLLIN};
		pthread_mutex_unlock(&w->lock);
		poll(&f, 1, milliseconds);
		pthread_mutex_lock(&w->lock);
		progress(w);
		n = take(w, events, max);
	}
	pthread_mutex_unlock(&w->lock);
	return n;
}

void slu_wake(slu *w) { ucp_worker_signal(w->worker); }

void slu_unlisten(slu *w) {
	pthread_mutex_lock(&w->lock);
	if (w->listener) {
		accept_all(w); // none is left that the listener would have to reject
		ucp_listener_destroy(w->listener);
		w->listener = NULL;
	}
	pthread_mutex_unlock(&w->lock);
}

void slu_destroy(slu *w) {
	slu_event ev[16];
	int n;
	if (w->worker) {
		pthread_mutex_lock(&w->lock);
		for (slu_conn *c = w->conns, *next; c; c = next) {
			next = c->next;
			if (!c->closing) {
				c->closing = 1;
				end(c, 0);
			}
		}
		struct timespec nap = {0, 1000000};
		for (int i = 0; w->conns && i < 500; i++) { // closes that flush to a dead peer are given up
			progress(w);
			nanosleep(&nap, NULL);
		}
		while ((n = take(w, ev, 16)) > 0)
			for (int i = 0; i < n; i++) free(ev[i].data);
		if (w->listener) ucp_listener_destroy(w->listener);
		ucp_worker_destroy(w->worker);
		for (slu_conn *c = w->conns, *next; c; c = next) {
			next = c->next;
			free(c);
		}
		pthread_mutex_unlock(&w->lock);
	}
	if (w->ctx) ucp_cleanup(w->ctx);
	pthread_mutex_destroy(&w->lock);
	free(w);
}
