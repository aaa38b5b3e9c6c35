// Streams over UCX for Go. All calls may come from any thread; a lock in the
// shim keeps them apart. Nothing here blocks but slu_poll, and that only as
// long as it is told.
#ifndef SLUICE_UCX_SHIM_H
#define SLUICE_UCX_SHIM_H

#include <stddef.h>
#include <stdint.h>

typedef struct slu slu;
typedef struct slu_conn slu_conn;

enum { SLU_ACCEPTED = 1, SLU_DATA, SLU_SENT, SLU_CLOSED };

typedef struct {
	int kind;
	uint64_t id;     // of the connection
	slu_conn *conn;  // of SLU_ACCEPTED
	void *data;      // of SLU_DATA: the receiver frees it
	size_t length;
	int status;      // of SLU_CLOSED and SLU_SENT: 0 or an error of UCX
} slu_event;

// slu_open makes context, worker and listener. ip is a numeric address. The
// text says what failed.
int slu_open(slu **out, const char *ip, int port, int *bound, char *text, size_t n);

// slu_dial begins a connection; later errors come as SLU_CLOSED.
int slu_dial(slu *w, const char *ip, int port, slu_conn **out, uint64_t *id, char *text, size_t n);

// slu_send sends the first length bytes of the connection's buffer. 0: done,
// 1: SLU_SENT follows, below 0: an error of UCX.
int slu_send(slu *w, slu_conn *c, size_t length);

// slu_buffer is the connection's buffer for sending.
void *slu_buffer(slu_conn *c);
size_t slu_buffer_size(void);

// slu_close ends a connection; the handle is invalid from then on. What was
// sent before still arrives if flush is not 0.
void slu_close(slu *w, slu_conn *c, int flush);

// slu_poll drives everything and gives what happened, waiting at most so long
// for something.
int slu_poll(slu *w, int milliseconds, slu_event *events, int max);

// slu_wake ends a slu_poll that waits.
void slu_wake(slu *w);

// slu_unlisten stops accepting.
void slu_unlisten(slu *w);

// slu_destroy ends all connections and frees everything. Nobody polls.
void slu_destroy(slu *w);

const char *slu_text(int status);

#endif
