// Within the C side.
#ifndef SLUICE_MOONCAKE_TABLE_H
#define SLUICE_MOONCAKE_TABLE_H

#include <signal.h>
#include "shim.h"

extern struct smk_table {
#define X(result, name, args) result (*name) args;
	SMK_SYMS(X)
#undef X
} MK;

// Between the two, threads that the library starts get no signal that Go's
// runtime is meant to have.
void smk_quiet(sigset_t *before);
void smk_loud(const sigset_t *before);

#endif
