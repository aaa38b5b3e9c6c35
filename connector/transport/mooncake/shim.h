// The C side of the transport: the library's table of calls, and one crossing
// per batch. Nothing here calls back into Go.
#ifndef SLUICE_MOONCAKE_SHIM_H
#define SLUICE_MOONCAKE_SHIM_H

#include "abi.h"

typedef struct {
	char path[256];
	char problem[512];
} smk_lib;

// smk_load opens the library, from the candidates (NULL-terminated) in order. It
// is called once, before everything else. 0: it is there.
int smk_load(const char *const *candidates, smk_lib *out);

typedef struct {
	const char *call; // that failed; a constant
	int code;         // of the library
} smk_err;

// smk_open makes an engine that peers reach at host, and gives its name. NULL:
// the library refused; it says why on its standard error.
void *smk_open(const char *host, char *name, size_t size, smk_err *e);
void smk_close(void *engine);

// smk_buffer gives memory that the engine may write to, NULL if there is none.
void *smk_buffer(void *engine, size_t size, smk_err *e);
void smk_buffer_free(void *engine, void *buffer);

int smk_expose(void *engine, void *address, size_t length, smk_err *e);
int smk_conceal(void *engine, void *address, smk_err *e);

// smk_read does one batch of reads from a peer and returns when no task of it
// can touch local memory any more, however long that takes. fresh: memory was
// registered there since the peer was last asked. The list's segments are filled
// in. A result above 0 says that the batch could not be ended and may touch its
// memory for ever.
int smk_read(void *engine, const char *peer, int fresh, smk_request *list, size_t count, smk_err *e);

#endif
