// Our own declarations of the Ascend runtime (ACL), of the aclnn base and
// operators and of HCCL, as far as they are used: typed by hand, under the
// vendor's names, for dlopen. Compiles alone, as C11 and C++17.
//
// Enums of the vendor are uint32_t here where no value is negative, else int;
// both agree with the vendor's headers in size and in calling convention.
//
// X(required, since, name, result, arguments): since is the CANN release whose
// headers first declare the symbol, as major·10 + minor. A symbol that is not
// required may be absent; what needs it is then refused by name.
#ifndef SLUICE_ACL_ABI_H
#define SLUICE_ACL_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define SL_ASSERT(c) static_assert(c, #c)
#else
#define SL_ASSERT(c) _Static_assert(c, #c)
#endif

#ifndef SLUICE_ACL_GATE // a check against the vendor's headers takes the types from there
typedef int aclError;
typedef int32_t aclnnStatus;
typedef void *aclrtStream;
typedef void *aclrtEvent;
typedef void *aclrtContext;
typedef void *aclrtBinHandle;
typedef void *aclrtFuncHandle;
typedef void *aclrtTaskGrp;
typedef void *aclmdlRI;
typedef void *HcclComm;
typedef struct aclTensor aclTensor;
typedef struct aclScalar aclScalar;
typedef struct aclIntArray aclIntArray;
typedef struct aclTensorList aclTensorList;
typedef struct aclOpExecutor aclOpExecutor;

typedef struct { uint32_t id, type; } aclrtMemLocation; // type: SL_LOC_
typedef struct { aclrtMemLocation dstLoc, srcLoc; uint8_t rsv[16]; } aclrtMemcpyBatchAttr;
typedef struct { aclrtMemLocation location; uint32_t pageSize, rsv[4]; } aclrtPtrAttributes;
typedef union { uint64_t failureMode; uint32_t reserve[4]; } aclrtStreamAttrValue;
typedef struct { char bytes[16]; } aclrtUuid;
typedef struct { uint32_t type; union { uint32_t isLazyLoad, magic, rsv[4]; } value; } aclrtBinaryLoadOption;
typedef struct { aclrtBinaryLoadOption *options; size_t numOpt; } aclrtBinaryLoadOptions;
typedef struct { uint32_t id; union { uint8_t schemMode; uint32_t dynUBufSize, rsv[4]; } value; } aclrtLaunchKernelAttr;
typedef struct { aclrtLaunchKernelAttr *attrs; size_t numAttrs; } aclrtLaunchKernelCfg;
typedef struct { uint32_t addrOffset, dataOffset; } aclrtPlaceHolderInfo;
typedef struct { char internal[4108]; } HcclRootInfo;

SL_ASSERT(sizeof(void *) == 8 && sizeof(size_t) == 8 && sizeof(aclError) == 4);
SL_ASSERT(sizeof(aclrtMemLocation) == 8 && offsetof(aclrtMemLocation, id) == 0);
SL_ASSERT(sizeof(aclrtMemcpyBatchAttr) == 32 && offsetof(aclrtMemcpyBatchAttr, srcLoc) == 8);
SL_ASSERT(sizeof(aclrtPtrAttributes) == 28 && offsetof(aclrtPtrAttributes, pageSize) == 8);
SL_ASSERT(sizeof(aclrtStreamAttrValue) == 16);
SL_ASSERT(sizeof(aclrtUuid) == 16);
SL_ASSERT(sizeof(aclrtBinaryLoadOption) == 20 && offsetof(aclrtBinaryLoadOption, value) == 4);
SL_ASSERT(sizeof(aclrtBinaryLoadOptions) == 16 && offsetof(aclrtBinaryLoadOptions, numOpt) == 8);
SL_ASSERT(sizeof(aclrtLaunchKernelAttr) == 20 && offsetof(aclrtLaunchKernelAttr, value) == 4);
SL_ASSERT(sizeof(aclrtLaunchKernelCfg) == 16);
SL_ASSERT(sizeof(aclrtPlaceHolderInfo) == 8);
SL_ASSERT(sizeof(HcclRootInfo) == 4108);
#endif

// libascendcl.so, or libacl_rt.so from 8.5 on.
#define SL_ACL_SYMS(X) \
	X(1, 81, aclInit, aclError, (const char *)) \
	X(0, 81, aclFinalize, aclError, (void)) \
	X(0, 85, aclFinalizeReference, aclError, (uint64_t *)) \
	X(0, 81, aclGetRecentErrMsg, const char *, (void)) \
	X(0, 81, aclrtGetSocName, const char *, (void)) \
	X(0, 81, aclrtGetVersion, aclError, (int32_t *, int32_t *, int32_t *)) \
	X(0, 85, aclsysGetVersionStr, aclError, (char *, char *)) \
	X(1, 81, aclrtSetDevice, aclError, (int32_t)) \
	X(1, 81, aclrtResetDevice, aclError, (int32_t)) \
	X(0, 81, aclrtGetDevice, aclError, (int32_t *)) \
	X(1, 81, aclrtGetDeviceCount, aclError, (uint32_t *)) \
	X(0, 85, aclrtGetDeviceInfo, aclError, (uint32_t, uint32_t, int64_t *)) \
	X(0, 85, aclrtDeviceGetUuid, aclError, (int32_t, aclrtUuid *)) \
	X(0, 81, aclGetDeviceCapability, aclError, (uint32_t, uint32_t, int64_t *)) \
	X(0, 81, aclrtDeviceTaskAbort, aclError, (int32_t, uint32_t)) \
	X(0, 81, aclrtPeekAtLastError, aclError, (uint32_t)) \
	X(1, 81, aclrtGetMemInfo, aclError, (uint32_t, size_t *, size_t *)) \
	X(1, 81, aclrtSetCurrentContext, aclError, (aclrtContext)) \
	X(1, 81, aclrtGetCurrentContext, aclError, (aclrtContext *)) \
	X(1, 81, aclrtCreateStreamWithConfig, aclError, (aclrtStream *, uint32_t, uint32_t)) \
	X(1, 81, aclrtDestroyStream, aclError, (aclrtStream)) \
	X(0, 81, aclrtDestroyStreamForce, aclError, (aclrtStream)) \
	X(1, 81, aclrtSynchronizeStreamWithTimeout, aclError, (aclrtStream, int32_t)) \
	X(1, 81, aclrtStreamQuery, aclError, (aclrtStream, uint32_t *)) \
	X(0, 81, aclrtStreamAbort, aclError, (aclrtStream)) \
	X(0, 81, aclrtSetStreamFailureMode, aclError, (aclrtStream, uint64_t)) \
	X(0, 85, aclrtSetStreamAttribute, aclError, (aclrtStream, uint32_t, aclrtStreamAttrValue *)) \
	X(0, 85, aclrtGetStreamAvailableNum, aclError, (uint32_t *)) \
	X(0, 85, aclrtGetEventAvailNum, aclError, (uint32_t *)) \
	X(1, 81, aclrtCreateEventWithFlag, aclError, (aclrtEvent *, uint32_t)) \
	X(1, 81, aclrtCreateEventExWithFlag, aclError, (aclrtEvent *, uint32_t)) \
	X(1, 81, aclrtDestroyEvent, aclError, (aclrtEvent)) \
	X(1, 81, aclrtRecordEvent, aclError, (aclrtEvent, aclrtStream)) \
	X(1, 81, aclrtResetEvent, aclError, (aclrtEvent, aclrtStream)) \
	X(1, 81, aclrtStreamWaitEvent, aclError, (aclrtStream, aclrtEvent)) \
	X(1, 81, aclrtQueryEventStatus, aclError, (aclrtEvent, uint32_t *)) \
	X(1, 81, aclrtSynchronizeEventWithTimeout, aclError, (aclrtEvent, int32_t)) \
	X(1, 81, aclrtEventElapsedTime, aclError, (float *, aclrtEvent, aclrtEvent)) \
	X(1, 81, aclrtMalloc, aclError, (void **, size_t, uint32_t)) \
	X(1, 81, aclrtFree, aclError, (void *)) \
	X(1, 81, aclrtMallocHost, aclError, (void **, size_t)) \
	X(1, 81, aclrtFreeHost, aclError, (void *)) \
	X(1, 81, aclrtMemset, aclError, (void *, size_t, int32_t, size_t)) \
	X(1, 81, aclrtMemsetAsync, aclError, (void *, size_t, int32_t, size_t, aclrtStream)) \
	X(1, 81, aclrtMemcpy, aclError, (void *, size_t, const void *, size_t, uint32_t)) \
	X(1, 81, aclrtMemcpyAsync, aclError, (void *, size_t, const void *, size_t, uint32_t, aclrtStream)) \
	X(1, 81, aclrtMemcpy2dAsync, aclError, (void *, size_t, const void *, size_t, size_t, size_t, uint32_t, aclrtStream)) \
	X(0, 85, aclrtMemcpyBatchAsync, aclError, (void **, size_t *, void **, size_t *, size_t, aclrtMemcpyBatchAttr *, size_t *, size_t, size_t *, aclrtStream)) \
	X(0, 85, aclrtPointerGetAttributes, aclError, (const void *, aclrtPtrAttributes *)) \
	X(0, 81, aclrtDeviceCanAccessPeer, aclError, (int32_t *, int32_t, int32_t)) \
	X(0, 81, aclrtDeviceEnablePeerAccess, aclError, (int32_t, uint32_t)) \
	X(0, 85, aclrtIpcMemGetExportKey, aclError, (void *, size_t, char *, size_t, uint64_t)) \
	X(0, 85, aclrtIpcMemImportByKey, aclError, (void **, const char *, uint64_t)) \
	X(0, 85, aclrtIpcMemClose, aclError, (const char *)) \
	X(0, 85, aclrtBinaryLoadFromData, aclError, (const void *, size_t, const aclrtBinaryLoadOptions *, aclrtBinHandle *)) \
	X(0, 81, aclrtBinaryGetFunction, aclError, (const aclrtBinHandle, const char *, aclrtFuncHandle *)) \
	X(0, 81, aclrtBinaryUnLoad, aclError, (aclrtBinHandle)) \
	X(0, 85, aclrtLaunchKernelWithHostArgs, aclError, (aclrtFuncHandle, uint32_t, aclrtStream, aclrtLaunchKernelCfg *, void *, size_t, aclrtPlaceHolderInfo *, size_t)) \
	X(0, 81, aclmdlRICaptureBegin, aclError, (aclrtStream, uint32_t)) \
	X(0, 81, aclmdlRICaptureGetInfo, aclError, (aclrtStream, uint32_t *, aclmdlRI *)) \
	X(0, 81, aclmdlRICaptureThreadExchangeMode, aclError, (uint32_t *)) \
	X(0, 81, aclmdlRICaptureEnd, aclError, (aclrtStream, aclmdlRI *)) \
	X(0, 81, aclmdlRIExecuteAsync, aclError, (aclmdlRI, aclrtStream)) \
	X(0, 81, aclmdlRIDestroy, aclError, (aclmdlRI)) \
	X(0, 81, aclmdlRICaptureTaskGrpBegin, aclError, (aclrtStream)) \
	X(0, 81, aclmdlRICaptureTaskGrpEnd, aclError, (aclrtStream, aclrtTaskGrp *)) \
	X(0, 81, aclmdlRICaptureTaskUpdateBegin, aclError, (aclrtStream, aclrtTaskGrp)) \
	X(0, 81, aclmdlRICaptureTaskUpdateEnd, aclError, (aclrtStream))

// libnnopbase.so.
#define SL_NNOP_SYMS(X) \
	X(1, 81, aclCreateTensor, aclTensor *, (const int64_t *, uint64_t, int, const int64_t *, int64_t, int, const int64_t *, uint64_t, void *)) \
	X(1, 81, aclDestroyTensor, aclnnStatus, (const aclTensor *)) \
	X(1, 81, aclCreateScalar, aclScalar *, (void *, int)) \
	X(1, 81, aclDestroyScalar, aclnnStatus, (const aclScalar *)) \
	X(1, 81, aclCreateIntArray, aclIntArray *, (const int64_t *, uint64_t)) \
	X(1, 81, aclDestroyIntArray, aclnnStatus, (const aclIntArray *)) \
	X(1, 81, aclCreateTensorList, aclTensorList *, (const aclTensor *const *, uint64_t)) \
	X(1, 81, aclDestroyTensorList, aclnnStatus, (const aclTensorList *)) \
	X(1, 81, aclSetAclOpExecutorRepeatable, aclnnStatus, (aclOpExecutor *)) \
	X(1, 81, aclDestroyAclOpExecutor, aclnnStatus, (aclOpExecutor *))

// libopapi_*.so, or libopapi.so: the first phases. Each one ends with the
// workspace size and the executor. The second phases are all
// aclnnStatus name(void *workspace, uint64_t size, aclOpExecutor *, aclrtStream).
#define SL_ACLNN_OPS(X) \
	X(81, aclnnEmbedding, (const aclTensor *weight, const aclTensor *indices, const aclTensor *out, uint64_t *ws, aclOpExecutor **ex)) \
	X(81, aclnnClampMin, (const aclTensor *self, const aclScalar *min, aclTensor *out, uint64_t *ws, aclOpExecutor **ex)) \
	X(81, aclnnLtScalar, (const aclTensor *self, const aclScalar *other, aclTensor *out, uint64_t *ws, aclOpExecutor **ex)) \
	X(81, aclnnInplaceMaskedFillScalar, (aclTensor *self, const aclTensor *mask, const aclScalar *value, uint64_t *ws, aclOpExecutor **ex)) \
	X(81, aclnnSWhere, (const aclTensor *condition, const aclTensor *self, const aclTensor *other, aclTensor *out, uint64_t *ws, aclOpExecutor **ex)) \
	X(81, aclnnInplaceZero, (aclTensor *self, uint64_t *ws, aclOpExecutor **ex)) \
	X(81, aclnnInplaceCopy, (aclTensor *self, const aclTensor *src, uint64_t *ws, aclOpExecutor **ex)) \
	X(81, aclnnCast, (const aclTensor *self, const int dtype, aclTensor *out, uint64_t *ws, aclOpExecutor **ex)) \
	X(81, aclnnAdd, (const aclTensor *self, const aclTensor *other, const aclScalar *alpha, aclTensor *out, uint64_t *ws, aclOpExecutor **ex)) \
	X(81, aclnnRmsNorm, (const aclTensor *x, const aclTensor *gamma, double epsilon, const aclTensor *y, const aclTensor *rstd, uint64_t *ws, aclOpExecutor **ex)) \
	X(81, aclnnMm, (const aclTensor *self, const aclTensor *mat2, aclTensor *out, int8_t cubeMathType, uint64_t *ws, aclOpExecutor **ex)) \
	X(81, aclnnSwiGlu, (const aclTensor *x, int64_t dim, const aclTensor *out, uint64_t *ws, aclOpExecutor **ex)) \
	X(81, aclnnArgMax, (const aclTensor *self, int64_t dim, bool keepdim, aclTensor *out, uint64_t *ws, aclOpExecutor **ex)) \
	X(85, aclnnRopeWithSinCosCache, (const aclTensor *positions, const aclTensor *query, const aclTensor *key, const aclTensor *cosSin, \
		const aclIntArray *mrope, int64_t headSize, bool isNeox, aclTensor *queryOut, aclTensor *keyOut, uint64_t *ws, aclOpExecutor **ex)) \
	X(85, aclnnScatterPaKvCache, (const aclTensor *key, aclTensor *keyCache, const aclTensor *slots, const aclTensor *value, aclTensor *valueCache, \
		const aclTensor *compressLens, const aclTensor *compressOffset, const aclTensor *seqLens, char *cacheMode, char *scatterMode, \
		const aclIntArray *strides, const aclIntArray *offsets, uint64_t *ws, aclOpExecutor **ex)) \
	X(81, aclnnFusedInferAttentionScoreV3, (const aclTensor *query, const aclTensorList *key, const aclTensorList *value, const aclTensor *pseShift, \
		const aclTensor *mask, const aclIntArray *seqLengths, const aclIntArray *seqLengthsKv, const aclTensor *deqScale1, const aclTensor *quantScale1, \
		const aclTensor *deqScale2, const aclTensor *quantScale2, const aclTensor *quantOffset2, const aclTensor *antiquantScale, \
		const aclTensor *antiquantOffset, const aclTensor *blockTable, const aclTensor *queryPadding, const aclTensor *kvPadding, \
		const aclTensor *keyAntiquantScale, const aclTensor *keyAntiquantOffset, const aclTensor *valueAntiquantScale, \
		const aclTensor *valueAntiquantOffset, const aclTensor *keyPrefix, const aclTensor *valuePrefix, const aclIntArray *prefixLen, \
		const aclTensor *queryRope, const aclTensor *keyRope, const aclTensor *keyRopeAntiquantScale, int64_t heads, double scale, \
		int64_t preTokens, int64_t nextTokens, char *layout, int64_t kvHeads, int64_t sparseMode, int64_t innerPrecise, int64_t blockSize, \
		int64_t antiquantMode, bool lseFlag, int64_t keyAntiquantMode, int64_t valueAntiquantMode, const aclTensor *out, const aclTensor *lse, \
		uint64_t *ws, aclOpExecutor **ex))

// libhccl.so. Its data types have numbers of their own: SL_HCCL_.
#define SL_HCCL_SYMS(X) \
	X(1, 81, HcclGetRootInfo, uint32_t, (HcclRootInfo *)) \
	X(1, 81, HcclCommInitRootInfo, uint32_t, (uint32_t, const HcclRootInfo *, uint32_t, HcclComm *)) \
	X(1, 81, HcclCommDestroy, uint32_t, (HcclComm)) \
	X(1, 81, HcclAllReduce, uint32_t, (void *, void *, uint64_t, uint32_t, uint32_t, HcclComm, aclrtStream)) \
	X(1, 81, HcclAllGather, uint32_t, (void *, void *, uint64_t, uint32_t, HcclComm, aclrtStream)) \
	X(1, 81, HcclAlltoAll, uint32_t, (const void *, uint64_t, uint32_t, const void *, uint64_t, uint32_t, HcclComm, aclrtStream)) \
	X(0, 81, HcclGetCommAsyncError, uint32_t, (HcclComm, uint32_t *))

#ifndef SLUICE_ACL_GATE
enum { // aclDataType and aclFormat
	ACL_FLOAT = 0, ACL_FLOAT16 = 1, ACL_INT8 = 2, ACL_INT32 = 3, ACL_UINT8 = 4, ACL_INT16 = 6, ACL_UINT16 = 7, ACL_UINT32 = 8,
	ACL_INT64 = 9, ACL_UINT64 = 10, ACL_DOUBLE = 11, ACL_BOOL = 12, ACL_BF16 = 27,
	ACL_FORMAT_ND = 2,
};
enum {
	ACL_SUCCESS = 0, ACL_ERROR_INVALID_PARAM = 100000, ACL_ERROR_UNINITIALIZE = 100001, ACL_ERROR_REPEAT_INITIALIZE = 100002,
	ACL_ERROR_RT_PARAM_INVALID = 107000, ACL_ERROR_RT_INVALID_DEVICEID = 107001, ACL_ERROR_RT_CONTEXT_NULL = 107002,
	ACL_ERROR_RT_STREAM_CONTEXT = 107003, ACL_ERROR_RT_INVALID_HANDLE = 107017, ACL_ERROR_WAIT_TIMEOUT = 107019,
	ACL_ERROR_RT_TASK_TIMEOUT = 107020, ACL_ERROR_RT_DEVICE_TASK_ABORT = 107022, ACL_ERROR_RT_STREAM_ABORT = 107023,
	ACL_ERROR_RT_CAPTURE_DEPENDENCY = 107024, ACL_ERROR_RT_STREAM_UNJOINED = 107025, ACL_ERROR_RT_MODEL_CAPTURED = 107026,
	ACL_ERROR_RT_STREAM_CAPTURED = 107027, ACL_ERROR_RT_EVENT_CAPTURED = 107028, ACL_ERROR_RT_STREAM_NOT_CAPTURED = 107029,
	ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT = 107030, ACL_ERROR_RT_STREAM_CAPTURE_IMPLICIT = 107031,
	ACL_ERROR_STREAM_CAPTURE_CONFLICT = 107032, ACL_ERROR_STREAM_TASK_GROUP_STATUS = 107033, ACL_ERROR_STREAM_TASK_GROUP_INTR = 107034,
	ACL_ERROR_RT_STREAM_CAPTURE_UNMATCHED = 107036, ACL_ERROR_RT_MODEL_RUNNING = 107037, ACL_ERROR_RT_STREAM_CAPTURE_WRONG_THREAD = 107038,
	ACL_ERROR_RT_MODEL_UPDATE_FAILED = 107040, ACL_ERROR_RT_CAPTURE_MODE_BLOCK_ASYNC = 107041,
	ACL_ERROR_RT_FEATURE_NOT_SUPPORT = 207000, ACL_ERROR_RT_MEMORY_ALLOCATION = 207001, ACL_ERROR_RT_NO_DEVICE = 207004,
	ACL_ERROR_RT_RESOURCE_ALLOC_FAIL = 207005, ACL_ERROR_RT_NO_EVENT_RESOURCE = 207007, ACL_ERROR_RT_NO_STREAM_RESOURCE = 207008,
	ACL_ERROR_RT_NO_MODEL_RESOURCE = 207010, ACL_ERROR_RT_DEVICE_OOM = 207018,
	ACL_ERROR_RT_INTERNAL_ERROR = 507000, ACL_ERROR_RT_STREAM_TASK_FULL = 507002, ACL_ERROR_RT_LOST_HEARTBEAT = 507010,
	ACL_ERROR_RT_MODEL_EXECUTE = 507011, ACL_ERROR_RT_AICORE_TIMEOUT = 507014, ACL_ERROR_RT_AICORE_EXCEPTION = 507015,
	ACL_ERROR_RT_AICPU_EXCEPTION = 507018, ACL_ERROR_RT_STREAM_SYNC_TIMEOUT = 507046, ACL_ERROR_RT_EVENT_SYNC_TIMEOUT = 507047,
	ACL_ERROR_RT_DEVICE_MEM_ERROR = 507053, ACL_ERROR_RT_CAPTURE_INVALIDATED = 507903,
	ACLNN_ERR_PARAM_NULLPTR = 161001, ACLNN_ERR_PARAM_INVALID = 161002, ACLNN_ERR_RUNTIME_ERROR = 361001, ACLNN_ERR_INNER = 561000,
	ACLNN_ERR_INNER_TILING_ERROR = 561002, ACLNN_ERR_INNER_FIND_KERNEL_ERROR = 561003, ACLNN_ERR_INNER_CREATE_EXECUTOR = 561101,
	ACLNN_ERR_INNER_NULLPTR = 561103,
};
#endif

enum { // our names for flags of the vendor that we pass
	SL_STREAM_FAST = 3, // FAST_LAUNCH | FAST_SYNC
	SL_EVENT_SYNC = 1, SL_EVENT_TIME_LINE = 8, SL_EVENT_EXTERNAL = 0x20,
	SL_MALLOC_HUGE_FIRST = 0, SL_MALLOC_HUGE_FIRST_P2P = 3,
	SL_HBM_MEM = 1,
	SL_COPY_H2H = 0, SL_COPY_H2D = 1, SL_COPY_D2H = 2, SL_COPY_D2D = 3,
	SL_LOC_HOST = 0, SL_LOC_DEVICE = 1,
	SL_CAPTURE_GLOBAL = 0, SL_CAPTURE_THREAD_LOCAL = 1, SL_CAPTURE_RELAXED = 2,
	SL_CAPTURE_NONE = 0, SL_CAPTURE_ACTIVE = 1, SL_CAPTURE_INVALIDATED = 2,
	SL_STREAM_COMPLETE = 0, SL_STREAM_NOT_READY = 1,
	SL_EVENT_NOT_READY = 0, SL_EVENT_COMPLETE = 1, // the other way round than streams
	SL_INFO_AICORES = 101, SL_INFO_MEMORY = 301,
	SL_IPC_NO_PID_CHECK = 1, SL_IPC_ENABLE_PEER = 1, SL_IPC_KEY_BYTES = 65,
	SL_KEEP_DTYPE = 0, // cubeMathType
	SL_HCCL_INT8 = 0, SL_HCCL_INT32 = 2, SL_HCCL_FP16 = 3, SL_HCCL_FP32 = 4, SL_HCCL_INT64 = 5, SL_HCCL_UINT8 = 7, SL_HCCL_BFP16 = 11,
	SL_HCCL_SUM = 0, SL_HCCL_PROD = 1, SL_HCCL_MAX = 2, SL_HCCL_MIN = 3,
};

#endif
