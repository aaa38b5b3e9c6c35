// The optional libraries' tables, within the C side.
#ifndef SLUICE_CUDA_LIBS_H
#define SLUICE_CUDA_LIBS_H
#include "abi.h"

#define X(required, name, result, args) result (*name) args;
extern struct sl_nvrtc_table { SL_NVRTC_SYMS(X) } NVRTC;
extern struct sl_lt_table { SL_CUBLASLT_SYMS(X) } LT;
extern struct sl_nccl_table { SL_NCCL_SYMS(X) } NCCL;
#undef X

#endif
