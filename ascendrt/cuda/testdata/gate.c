// Proves abi.h against the vendor's headers: compile with
//   gcc -std=gnu11 -fsyntax-only -I<cuda>/include -I.. gate.c
// For each driver symbol, the type that the vendor gives to this version of it
// must be the one declared here.
#include <cuda.h>
#include <cudaTypedefs.h>
#define SLUICE_CUDA_GATE 1
#include "../abi.h"

#define SAME(t, u, what) _Static_assert(__builtin_types_compatible_p(t, u), what)
#define X(required, name, version, args) \
	typedef sl_result (*gate_##name) args; \
	SAME(PFN_##name##_v##version, gate_##name, #name " at version " #version);
SL_CUDA_SYMS(X)
#undef X

SAME(CUcontext, sl_ctx, "context");
SAME(CUstream, sl_stream, "stream");
SAME(CUevent, sl_event, "event");
SAME(CUgraphExec, sl_exec, "exec");
SAME(CUdeviceptr, sl_ptr, "device pointer");
_Static_assert(sizeof(CUDA_KERNEL_NODE_PARAMS_v2) == 72, "kernel node params");
_Static_assert(sizeof(CUlaunchConfig) == 56 && sizeof(CUlaunchAttribute) == 72, "launch config");
_Static_assert(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION == SL_LAUNCH_PROGRAMMATIC, "launch attribute");
_Static_assert(sizeof(CUmemcpyAttributes) == 24, "memcpy attributes");
_Static_assert(sizeof(CUDA_MEMCPY2D) == 128 && CU_MEMORYTYPE_UNIFIED == SL_MEMORY_UNIFIED, "rows");
_Static_assert(CUDA_ERROR_NOT_READY == SL_NOT_READY && CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED == SL_PEER_ALREADY, "errors");
_Static_assert(CU_STREAM_NON_BLOCKING == SL_STREAM_NON_BLOCKING && CU_EVENT_DISABLE_TIMING == SL_EVENT_DISABLE_TIMING, "flags");
_Static_assert(CU_EVENT_INTERPROCESS == SL_EVENT_INTERPROCESS && CU_EVENT_RECORD_EXTERNAL == SL_EVENT_EXTERNAL, "flags");
_Static_assert(CU_EVENT_WAIT_EXTERNAL == SL_EVENT_EXTERNAL && CU_STREAM_WAIT_VALUE_GEQ == SL_WAIT_GEQ, "flags");
_Static_assert(CU_MEMHOSTALLOC_PORTABLE == SL_HOST_PORTABLE && CU_MEMHOSTALLOC_DEVICEMAP == SL_HOST_DEVICEMAP, "flags");
_Static_assert(CU_MEMHOSTREGISTER_PORTABLE == SL_HOST_PORTABLE && CU_MEMHOSTREGISTER_DEVICEMAP == SL_HOST_DEVICEMAP, "flags");
_Static_assert(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL == SL_CAPTURE_THREAD_LOCAL && CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS == SL_IPC_LAZY_PEER, "flags");
_Static_assert(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD == SL_POOL_RELEASE_THRESHOLD, "pool");
_Static_assert(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES == SL_FUNC_MAX_DYNAMIC_SHARED, "function attribute");
_Static_assert(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED == SL_FUNC_LARGE_CLUSTERS, "function attribute");
_Static_assert(CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION == SL_LAUNCH_CLUSTER, "launch attribute");
_Static_assert(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT == SL_ATTR_SM_COUNT && CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR == SL_ATTR_CC_MAJOR, "attributes");
_Static_assert(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR == SL_ATTR_CC_MINOR && CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED == SL_ATTR_POOLS, "attributes");
_Static_assert(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN == SL_ATTR_SHARED_OPTIN, "attributes");
