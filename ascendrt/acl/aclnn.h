// Calls of aclnn operators as words, so that a translated buffer carries them
// to C in one crossing.
//
// A call is: operator | tensors<<16 | arrays<<24 | numbers<<32; then per tensor
// SL_TENSOR_WORDS words (address, type | dimensions<<8, four sizes, four steps
// in elements); then per host array its length and its values; then one word
// per number, whose meaning the operator knows. Go writes it: aclnn.go.
#ifndef SLUICE_ACLNN_H
#define SLUICE_ACLNN_H

#include "shim.h"

enum { SL_TENSOR_WORDS = 10 };

enum {
	SL_OP_EMBEDDING, SL_OP_CLAMP_MIN, SL_OP_LT_SCALAR, SL_OP_MASKED_FILL, SL_OP_SELECT, SL_OP_COPY, SL_OP_ZERO, SL_OP_CAST,
	SL_OP_ADD, SL_OP_RMS_NORM, SL_OP_MM, SL_OP_SWIGLU, SL_OP_ARGMAX, SL_OP_ROPE, SL_OP_SCATTER, SL_OP_ATTENTION,
};

// sl_aclnn_run issues the call on a stream with a workspace of n bytes: both
// phases, and everything that they need on the host is made and destroyed here.
// The context of the stream is current.
int sl_aclnn_run(const uint64_t *call, void *ws, uint64_t n, aclrtStream s, sl_err *e);

// sl_aclnn_need asks how much workspace the call needs, and issues nothing.
int sl_aclnn_need(sl_ctx c, const uint64_t *call, uint64_t *n, sl_err *e);

#endif
