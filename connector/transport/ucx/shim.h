// Streams and one-sided reads over UCX for Go. All calls may come from any thread; a lock in the
// shim keeps them apart. Nothing here blocks but slu_poll, and that only as
// long as it is told.
#ifndef SLUICE_UCX_SHIM_H
#define SLUICE_UCX_SHIM_H

#include <stddef.h>
#include <stdint.h>

typedef struct slu slu;
typedef struct slu_conn slu_conn;

enum { SLU_ACCEPTED = 1, SLU_DATA, SLU_SENT, SLU_CLOSED, SLU_FETCHED };

typedef struct {
	int kind;
	uint64_t id;     // of the connection; of SLU_FETCHED the fetch
	slu_conn *conn;  // of SLU_ACCEPTED
	void *data;      // of SLU_DATA: the receiver frees it
	size_t length;
	int status;      // of SLU_CLOSED, SLU_SENT and SLU_FETCHED: 0 or an error of UCX
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

// slu_map registers memory for reads by peers, and slu_unmap ends that. The key
// is a copy that the caller frees.
int slu_map(slu *w, void *address, size_t length, void **memory, void **key, size_t *size, char *text, size_t n);
void slu_unmap(slu *w, void *memory);

// slu_print is what UCX prints of a connection, for the caller to free; NULL
// without memory. It is whole once something was received.
char *slu_print(slu *w, slu_conn *c);

// slu_transports writes the names of the connection's transports, each with a
// space behind it; -1 where the library cannot list them (before 1.14) or there is
// no room.
int slu_transports(slu *w, slu_conn *c, char *text, size_t n);

typedef struct {
	void *local;
	uint64_t remote; // address at the peer
	uint64_t length;
	uint32_t key;    // index
} slu_range;

// slu_fetch reads memory of the connection's peer. The keys are what slu_map
// gave there, behind each of which at least SLU_KEY_SLACK readable bytes follow:
// UCX does not take their length. 0: SLU_FETCHED with that id follows, when no
// local memory can be touched any more; below 0: an error of UCX, and nothing was
// begun.
enum { SLU_KEY_SLACK = 4096 };
int slu_fetch(slu *w, slu_conn *c, uint64_t id, const void *const *keys, size_t nkeys, const slu_range *ranges, size_t count);

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
