// Our own declarations of the CUDA driver API, NVRTC, cuBLASLt and NCCL, as far
// as they are used: typed by hand, for dlopen. Compiles alone, as C11 and C++17.
//
// X(required, base name, version, arguments): the version is the one whose
// signature stands here, and the one that cuGetProcAddress_v2 is asked for; an
// unsuffixed dlsym would give the oldest ABI instead. Enums are unsigned,
// device pointers unsigned long long, as the vendor's headers have them:
// testdata/gate.c proves the agreement against cudaTypedefs.h.
#ifndef SLUICE_CUDA_ABI_H
#define SLUICE_CUDA_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef struct CUctx_st *sl_ctx;
typedef struct CUstream_st *sl_stream;
typedef struct CUevent_st *sl_event;
typedef struct CUmod_st *sl_module;
typedef struct CUfunc_st *sl_func;
typedef struct CUgraph_st *sl_graph;
typedef struct CUgraphNode_st *sl_node;
typedef struct CUgraphExec_st *sl_exec;
typedef struct CUmemPoolHandle_st *sl_pool;
typedef unsigned long long sl_ptr;
typedef unsigned sl_result;

#ifndef SLUICE_CUDA_GATE // the gate takes these from the vendor's header
struct CUuuid_st { char bytes[16]; };
struct CUipcMemHandle_st { char reserved[64]; };
struct CUipcEventHandle_st { char reserved[64]; };
struct CUDA_MEMCPY2D_st {
	size_t srcXInBytes, srcY;
	unsigned srcMemoryType;
	const void *srcHost;
	sl_ptr srcDevice;
	struct CUarray_st *srcArray;
	size_t srcPitch, dstXInBytes, dstY;
	unsigned dstMemoryType;
	void *dstHost;
	sl_ptr dstDevice;
	struct CUarray_st *dstArray;
	size_t dstPitch, WidthInBytes, Height;
};
struct CUmemLocation_st { unsigned type; int id; };
struct CUmemcpyAttributes_st { unsigned srcAccessOrder; struct CUmemLocation_st srcLocHint, dstLocHint; unsigned flags; };
struct CUDA_KERNEL_NODE_PARAMS_v2_st {
	sl_func func;
	unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
	void **kernelParams, **extra;
	struct CUkern_st *kern;
	sl_ctx ctx;
};
struct CUlaunchAttribute_st { unsigned id; char pad[4]; union { char bytes[64]; int programmatic; } value; };
struct CUlaunchConfig_st {
	unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
	sl_stream hStream;
	struct CUlaunchAttribute_st *attrs;
	unsigned numAttrs;
};
#ifdef __cplusplus
#define SL_ASSERT(c) static_assert(c, #c)
#else
#define SL_ASSERT(c) _Static_assert(c, #c)
#endif
SL_ASSERT(sizeof(struct CUuuid_st) == 16);
SL_ASSERT(sizeof(struct CUipcMemHandle_st) == 64);
SL_ASSERT(sizeof(struct CUDA_MEMCPY2D_st) == 128 && offsetof(struct CUDA_MEMCPY2D_st, dstDevice) == 88);
SL_ASSERT(sizeof(struct CUDA_KERNEL_NODE_PARAMS_v2_st) == 72);
SL_ASSERT(offsetof(struct CUDA_KERNEL_NODE_PARAMS_v2_st, kernelParams) == 40);
SL_ASSERT(offsetof(struct CUDA_KERNEL_NODE_PARAMS_v2_st, extra) == 48);
SL_ASSERT(offsetof(struct CUDA_KERNEL_NODE_PARAMS_v2_st, ctx) == 64);
SL_ASSERT(sizeof(struct CUlaunchAttribute_st) == 72 && offsetof(struct CUlaunchAttribute_st, value) == 8);
SL_ASSERT(sizeof(struct CUlaunchConfig_st) == 56 && offsetof(struct CUlaunchConfig_st, attrs) == 40);
SL_ASSERT(sizeof(sl_ptr) == 8 && sizeof(void *) == 8);
#endif

#define SL_CUDA_SYMS(X) \
	X(1, cuInit, 2000, (unsigned)) \
	X(1, cuDriverGetVersion, 2020, (int *)) \
	X(1, cuGetErrorName, 6000, (unsigned, const char **)) \
	X(1, cuGetErrorString, 6000, (unsigned, const char **)) \
	X(1, cuDeviceGetCount, 2000, (int *)) \
	X(1, cuDeviceGet, 2000, (int *, int)) \
	X(1, cuDeviceGetName, 2000, (char *, int, int)) \
	X(0, cuDeviceGetUuid, 11040, (struct CUuuid_st *, int)) \
	X(1, cuDeviceTotalMem, 3020, (size_t *, int)) \
	X(1, cuDeviceGetAttribute, 2000, (int *, unsigned, int)) \
	X(0, cuDeviceGetPCIBusId, 4010, (char *, int, int)) \
	X(1, cuDevicePrimaryCtxRetain, 7000, (sl_ctx *, int)) \
	X(1, cuDevicePrimaryCtxRelease, 11000, (int)) \
	X(1, cuCtxSetCurrent, 4000, (sl_ctx)) \
	X(1, cuCtxGetStreamPriorityRange, 5050, (int *, int *)) \
	X(1, cuMemGetInfo, 3020, (size_t *, size_t *)) \
	X(1, cuMemAlloc, 3020, (sl_ptr *, size_t)) \
	X(1, cuMemFree, 3020, (sl_ptr)) \
	X(1, cuMemHostAlloc, 2020, (void **, size_t, unsigned)) \
	X(1, cuMemFreeHost, 2000, (void *)) \
	X(1, cuMemHostRegister, 6050, (void *, size_t, unsigned)) \
	X(1, cuMemHostUnregister, 4000, (void *)) \
	X(1, cuMemHostGetDevicePointer, 3020, (sl_ptr *, void *, unsigned)) \
	X(1, cuMemcpyAsync, 4000, (sl_ptr, sl_ptr, size_t, sl_stream)) \
	X(1, cuMemcpyHtoDAsync, 3020, (sl_ptr, const void *, size_t, sl_stream)) \
	X(1, cuMemcpyDtoHAsync, 3020, (void *, sl_ptr, size_t, sl_stream)) \
	X(1, cuMemcpyDtoDAsync, 3020, (sl_ptr, sl_ptr, size_t, sl_stream)) \
	X(0, cuMemcpyBatchAsync, 12080, (sl_ptr *, sl_ptr *, size_t *, size_t, struct CUmemcpyAttributes_st *, size_t *, size_t, size_t *, sl_stream)) \
	X(0, cuMemcpy2DAsync, 3020, (const struct CUDA_MEMCPY2D_st *, sl_stream)) \
	X(1, cuMemsetD8Async, 3020, (sl_ptr, unsigned char, size_t, sl_stream)) \
	X(0, cuMemAllocAsync, 11020, (sl_ptr *, size_t, sl_stream)) \
	X(0, cuMemFreeAsync, 11020, (sl_ptr, sl_stream)) \
	X(0, cuDeviceGetDefaultMemPool, 11020, (sl_pool *, int)) \
	X(0, cuMemPoolSetAttribute, 11020, (sl_pool, unsigned, void *)) \
	X(0, cuMemPoolTrimTo, 11020, (sl_pool, size_t)) \
	X(1, cuStreamCreateWithPriority, 5050, (sl_stream *, unsigned, int)) \
	X(1, cuStreamDestroy, 4000, (sl_stream)) \
	X(1, cuStreamSynchronize, 2000, (sl_stream)) \
	X(1, cuStreamQuery, 2000, (sl_stream)) \
	X(1, cuStreamWaitEvent, 3020, (sl_stream, sl_event, unsigned)) \
	X(1, cuStreamWriteValue64, 11070, (sl_stream, sl_ptr, uint64_t, unsigned)) \
	X(1, cuStreamWaitValue64, 11070, (sl_stream, sl_ptr, uint64_t, unsigned)) \
	X(1, cuEventCreate, 2000, (sl_event *, unsigned)) \
	X(1, cuEventDestroy, 4000, (sl_event)) \
	X(1, cuEventRecord, 2000, (sl_event, sl_stream)) \
	X(0, cuEventRecordWithFlags, 11010, (sl_event, sl_stream, unsigned)) \
	X(1, cuEventQuery, 2000, (sl_event)) \
	X(1, cuEventElapsedTime, 2000, (float *, sl_event, sl_event)) \
	X(1, cuModuleLoadDataEx, 2010, (sl_module *, const void *, unsigned, unsigned *, void **)) \
	X(1, cuModuleUnload, 2000, (sl_module)) \
	X(1, cuModuleGetFunction, 2000, (sl_func *, sl_module, const char *)) \
	X(1, cuFuncSetAttribute, 9000, (sl_func, unsigned, int)) \
	X(0, cuFuncLoad, 12040, (sl_func)) \
	X(0, cuFuncGetParamInfo, 12040, (sl_func, size_t, size_t *, size_t *)) \
	X(0, cuOccupancyMaxActiveClusters, 11070, (int *, sl_func, const struct CUlaunchConfig_st *)) \
	X(1, cuLaunchKernel, 4000, (sl_func, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, sl_stream, void **, void **)) \
	X(0, cuLaunchKernelEx, 11060, (const struct CUlaunchConfig_st *, sl_func, void **, void **)) \
	X(1, cuStreamBeginCapture, 10010, (sl_stream, unsigned)) \
	X(1, cuStreamEndCapture, 10000, (sl_stream, sl_graph *)) \
	X(1, cuStreamGetCaptureInfo, 11030, (sl_stream, unsigned *, uint64_t *, sl_graph *, const sl_node **, size_t *)) \
	X(1, cuGraphDestroy, 10000, (sl_graph)) \
	X(1, cuGraphGetNodes, 10000, (sl_graph, sl_node *, size_t *)) \
	X(1, cuGraphInstantiateWithFlags, 11040, (sl_exec *, sl_graph, unsigned long long)) \
	X(0, cuGraphUpload, 11010, (sl_exec, sl_stream)) \
	X(1, cuGraphLaunch, 10000, (sl_exec, sl_stream)) \
	X(1, cuGraphExecDestroy, 10000, (sl_exec)) \
	X(0, cuGraphExecKernelNodeSetParams, 12000, (sl_exec, sl_node, const struct CUDA_KERNEL_NODE_PARAMS_v2_st *)) \
	X(0, cuIpcGetMemHandle, 4010, (struct CUipcMemHandle_st *, sl_ptr)) \
	X(0, cuIpcOpenMemHandle, 11000, (sl_ptr *, struct CUipcMemHandle_st, unsigned)) \
	X(0, cuIpcCloseMemHandle, 4010, (sl_ptr)) \
	X(0, cuIpcGetEventHandle, 4010, (struct CUipcEventHandle_st *, sl_event)) \
	X(0, cuIpcOpenEventHandle, 4010, (sl_event *, struct CUipcEventHandle_st)) \
	X(0, cuDeviceCanAccessPeer, 4000, (int *, int, int)) \
	X(0, cuCtxEnablePeerAccess, 4000, (sl_ctx, unsigned))

// The libraries below export plain names, found by dlsym: X(required, name, result, arguments).
typedef struct _nvrtcProgram *sl_program;
#define SL_NVRTC_SYMS(X) \
	X(1, nvrtcVersion, unsigned, (int *, int *)) \
	X(1, nvrtcGetErrorString, const char *, (unsigned)) \
	X(1, nvrtcCreateProgram, unsigned, (sl_program *, const char *, const char *, int, const char *const *, const char *const *)) \
	X(1, nvrtcCompileProgram, unsigned, (sl_program, int, const char *const *)) \
	X(1, nvrtcGetCUBINSize, unsigned, (sl_program, size_t *)) \
	X(1, nvrtcGetCUBIN, unsigned, (sl_program, char *)) \
	X(1, nvrtcGetProgramLogSize, unsigned, (sl_program, size_t *)) \
	X(1, nvrtcGetProgramLog, unsigned, (sl_program, char *)) \
	X(1, nvrtcDestroyProgram, unsigned, (sl_program *))

typedef struct cublasLtContext *sl_lt;
typedef struct { uint64_t data[8]; } sl_lt_algo;
typedef struct { sl_lt_algo algo; size_t workspace; unsigned state; float waves; int reserved[4]; } sl_lt_result;
typedef struct cublasLtMatmulDescOpaque_t *sl_lt_desc; // opaque, made by Create
typedef struct cublasLtMatrixLayoutOpaque_t *sl_lt_layout;
typedef struct cublasLtMatmulPreferenceOpaque_t *sl_lt_pref;
#define SL_CUBLASLT_SYMS(X) \
	X(1, cublasLtCreate, unsigned, (sl_lt *)) \
	X(1, cublasLtDestroy, unsigned, (sl_lt)) \
	X(0, cublasLtGetVersion, size_t, (void)) \
	X(0, cublasLtGetStatusString, const char *, (unsigned)) \
	X(1, cublasLtMatmulDescCreate, unsigned, (sl_lt_desc *, unsigned, unsigned)) \
	X(1, cublasLtMatmulDescDestroy, unsigned, (sl_lt_desc)) \
	X(1, cublasLtMatmulDescSetAttribute, unsigned, (sl_lt_desc, unsigned, const void *, size_t)) \
	X(1, cublasLtMatrixLayoutCreate, unsigned, (sl_lt_layout *, unsigned, uint64_t, uint64_t, int64_t)) \
	X(1, cublasLtMatrixLayoutDestroy, unsigned, (sl_lt_layout)) \
	X(1, cublasLtMatmulPreferenceCreate, unsigned, (sl_lt_pref *)) \
	X(1, cublasLtMatmulPreferenceDestroy, unsigned, (sl_lt_pref)) \
	X(1, cublasLtMatmulPreferenceSetAttribute, unsigned, (sl_lt_pref, unsigned, const void *, size_t)) \
	X(1, cublasLtMatmulAlgoGetHeuristic, unsigned, (sl_lt, sl_lt_desc, sl_lt_layout, sl_lt_layout, sl_lt_layout, sl_lt_layout, sl_lt_pref, int, sl_lt_result *, int *)) \
	X(1, cublasLtMatmul, unsigned, (sl_lt, sl_lt_desc, const void *, const void *, sl_lt_layout, const void *, sl_lt_layout, const void *, const void *, sl_lt_layout, void *, sl_lt_layout, const sl_lt_algo *, void *, size_t, sl_stream))

typedef struct ncclComm *sl_comm;
typedef struct { char internal[128]; } sl_nccl_id;
#define SL_NCCL_SYMS(X) \
	X(1, ncclGetVersion, int, (int *)) \
	X(1, ncclGetUniqueId, int, (sl_nccl_id *)) \
	X(1, ncclCommInitRank, int, (sl_comm *, int, sl_nccl_id, int)) \
	X(1, ncclCommDestroy, int, (sl_comm)) \
	X(1, ncclCommAbort, int, (sl_comm)) \
	X(1, ncclGetErrorString, const char *, (int)) \
	X(0, ncclGetLastError, const char *, (sl_comm)) \
	X(1, ncclAllReduce, int, (const void *, void *, size_t, int, int, sl_comm, sl_stream)) \
	X(1, ncclAllGather, int, (const void *, void *, size_t, int, sl_comm, sl_stream)) \
	X(1, ncclSend, int, (const void *, size_t, int, int, sl_comm, sl_stream)) \
	X(1, ncclRecv, int, (void *, size_t, int, int, sl_comm, sl_stream)) \
	X(1, ncclGroupStart, int, (void)) \
	X(1, ncclGroupEnd, int, (void))

enum { // numbers of the driver API that we use
	SL_OK = 0, SL_NOT_READY = 600, SL_PEER_ALREADY = 704,
	SL_STREAM_NON_BLOCKING = 1,
	SL_EVENT_DISABLE_TIMING = 2, SL_EVENT_INTERPROCESS = 4,
	SL_EVENT_EXTERNAL = 1,
	SL_HOST_PORTABLE = 1, SL_HOST_DEVICEMAP = 2, // also of a registration
	SL_CAPTURE_THREAD_LOCAL = 1,
	SL_WAIT_GEQ = 0,
	SL_MEMORY_UNIFIED = 4,
	SL_IPC_LAZY_PEER = 1,
	SL_POOL_RELEASE_THRESHOLD = 4,
	SL_FUNC_MAX_DYNAMIC_SHARED = 8, SL_FUNC_LARGE_CLUSTERS = 14,
	SL_ATTR_SM_COUNT = 16, SL_ATTR_CC_MAJOR = 75, SL_ATTR_CC_MINOR = 76, SL_ATTR_SHARED_OPTIN = 97, SL_ATTR_POOLS = 115,
	SL_LAUNCH_CLUSTER = 4, // attribute: blocks of a cluster, three unsigned numbers
	SL_LAUNCH_PROGRAMMATIC = 6, // attribute: the launch may start before the one ahead of it has ended
	SL_LAUNCH_BUFFER_POINTER = 1, SL_LAUNCH_BUFFER_SIZE = 2,
};

#endif
