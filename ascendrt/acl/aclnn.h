// Calls of aclnn operators as words, so that a translated buffer carries them
// to C in one crossing.
//
// A call is: operator | tensors<<16 | arrays<<24 | numbers<<32; then per tensor
// ASC_TENSOR_WORDS words (address, type | dimensions<<8, four sizes, four steps
// in elements); then per host array its length and its values; then one word
// per number, whose meaning the operator knows. Go writes it: aclnn.go.
#ifndef SLUICE_ACLNN_H
#define SLUICE_ACLNN_H

#include "shim.h"

enum { ASC_TENSOR_WORDS = 10 };

enum {
	ASC_OP_EMBEDDING, ASC_OP_CLAMP_MIN, ASC_OP_LT_SCALAR, ASC_OP_MASKED_FILL, ASC_OP_SELECT, ASC_OP_COPY, ASC_OP_ZERO, ASC_OP_CAST,
	ASC_OP_ADD, ASC_OP_RMS_NORM, ASC_OP_MM, ASC_OP_SWIGLU, ASC_OP_ARGMAX, ASC_OP_ROPE, ASC_OP_SCATTER, ASC_OP_ATTENTION,
};

// asc_aclnn_run issues the call on a stream with a workspace of n bytes: both
// phases, and everything that they need on the host is made and destroyed here.
// The context of the stream is current.
int asc_aclnn_run(const uint64_t *call, void *ws, uint64_t n, aclrtStream s, asc_err *e);

// asc_aclnn_need asks how much workspace the call needs, and issues nothing.
int asc_aclnn_need(aclrtContext c, const uint64_t *call, uint64_t *n, asc_err *e);

#endif
