//go:build cgo && linux

package acl

import (
	"github.com/sluice-serving/sluice/ascendrt"
)

// library numbers whose code an error carries; those of shim.h.
type library int

const (
	libACL library = iota
	libNNOP
	libOPAPI
	libHCCL
	libraryCount
)

func (l library) String() string {
	return [...]string{"libascendcl", "libnnopbase", "libopapi", "libhccl"}[l]
}

// codeNames are the codes that a caller may meet, by the vendor's names.
var codeNames = map[int]string{
	100000: "ACL_ERROR_INVALID_PARAM", 100001: "ACL_ERROR_UNINITIALIZE", 100002: "ACL_ERROR_REPEAT_INITIALIZE",
	107000: "ACL_ERROR_RT_PARAM_INVALID", 107001: "ACL_ERROR_RT_INVALID_DEVICEID", 107002: "ACL_ERROR_RT_CONTEXT_NULL",
	107003: "ACL_ERROR_RT_STREAM_CONTEXT", 107017: "ACL_ERROR_RT_INVALID_HANDLE", 107019: "ACL_ERROR_WAIT_TIMEOUT",
	107020: "ACL_ERROR_RT_TASK_TIMEOUT", 107022: "ACL_ERROR_RT_DEVICE_TASK_ABORT", 107023: "ACL_ERROR_RT_STREAM_ABORT",
	107024: "ACL_ERROR_RT_CAPTURE_DEPENDENCY", 107025: "ACL_ERROR_RT_STREAM_UNJOINED", 107026: "ACL_ERROR_RT_MODEL_CAPTURED",
	107027: "ACL_ERROR_RT_STREAM_CAPTURED", 107028: "ACL_ERROR_RT_EVENT_CAPTURED", 107029: "ACL_ERROR_RT_STREAM_NOT_CAPTURED",
	107030: "ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT", 107031: "ACL_ERROR_RT_STREAM_CAPTURE_IMPLICIT",
	107032: "ACL_ERROR_STREAM_CAPTURE_CONFLICT", 107033: "ACL_ERROR_STREAM_TASK_GROUP_STATUS", 107034: "ACL_ERROR_STREAM_TASK_GROUP_INTR",
	107036: "ACL_ERROR_RT_STREAM_CAPTURE_UNMATCHED", 107037: "ACL_ERROR_RT_MODEL_RUNNING", 107038: "ACL_ERROR_RT_STREAM_CAPTURE_WRONG_THREAD",
	107040: "ACL_ERROR_RT_MODEL_UPDATE_FAILED", 107041: "ACL_ERROR_RT_CAPTURE_MODE_BLOCK_ASYNC",
	207000: "ACL_ERROR_RT_FEATURE_NOT_SUPPORT", 207001: "ACL_ERROR_RT_MEMORY_ALLOCATION", 207004: "ACL_ERROR_RT_NO_DEVICE",
	207005: "ACL_ERROR_RT_RESOURCE_ALLOC_FAIL", 207006: "ACL_ERROR_RT_NO_PERMISSION", 207007: "ACL_ERROR_RT_NO_EVENT_RESOURCE",
	207008: "ACL_ERROR_RT_NO_STREAM_RESOURCE", 207009: "ACL_ERROR_RT_NO_NOTIFY_RESOURCE", 207010: "ACL_ERROR_RT_NO_MODEL_RESOURCE",
	207018: "ACL_ERROR_RT_DEVICE_OOM",
	507000: "ACL_ERROR_RT_INTERNAL_ERROR", 507002: "ACL_ERROR_RT_STREAM_TASK_FULL", 507009: "ACL_ERROR_RT_TASK_TYPE_NOT_SUPPORT",
	507010: "ACL_ERROR_RT_LOST_HEARTBEAT", 507011: "ACL_ERROR_RT_MODEL_EXECUTE", 507014: "ACL_ERROR_RT_AICORE_TIMEOUT",
	507015: "ACL_ERROR_RT_AICORE_EXCEPTION", 507018: "ACL_ERROR_RT_AICPU_EXCEPTION", 507033: "ACL_ERROR_RT_DEV_SETUP_ERROR",
	507034: "ACL_ERROR_RT_VECTOR_CORE_TIMEOUT", 507035: "ACL_ERROR_RT_VECTOR_CORE_EXCEPTION", 507046: "ACL_ERROR_RT_STREAM_SYNC_TIMEOUT",
	507047: "ACL_ERROR_RT_EVENT_SYNC_TIMEOUT", 507053: "ACL_ERROR_RT_DEVICE_MEM_ERROR", 507899: "ACL_ERROR_RT_DRV_INTERNAL_ERROR",
	507903: "ACL_ERROR_RT_CAPTURE_INVALIDATED",
	161001: "ACLNN_ERR_PARAM_NULLPTR", 161002: "ACLNN_ERR_PARAM_INVALID", 361001: "ACLNN_ERR_RUNTIME_ERROR", 561000: "ACLNN_ERR_INNER",
	561001: "ACLNN_ERR_INNER_INFERSHAPE_ERROR", 561002: "ACLNN_ERR_INNER_TILING_ERROR", 561003: "ACLNN_ERR_INNER_FIND_KERNEL_ERROR",
	561101: "ACLNN_ERR_INNER_CREATE_EXECUTOR", 561103: "ACLNN_ERR_INNER_NULLPTR", 561107: "ACLNN_ERR_INNER_OPP_PATH_NOT_FOUND",
	561112: "ACLNN_ERR_INNER_OPP_KERNEL_PKG_NOT_FOUND",
}

var hcclNames = map[int]string{1: "HCCL_E_PARA", 2: "HCCL_E_PTR", 3: "HCCL_E_MEMORY", 4: "HCCL_E_INTERNAL", 5: "HCCL_E_NOT_SUPPORT",
	9: "HCCL_E_TIMEOUT", 15: "HCCL_E_RUNTIME", 19: "HCCL_E_NETWORK", 20: "HCCL_E_AGAIN", 21: "HCCL_E_REMOTE", 22: "HCCL_E_SUSPENDING"}

func codeName(lib library, code int) string {
	if lib == libHCCL {
		return hcclNames[code]
	}
	return codeNames[code]
}

// classOf maps a code to the class that callers decide on.
func classOf(lib library, code int) error {
	if code < 0 {
		return ascendrt.ErrUnsupported
	}
	if lib == libHCCL && code < 100 {
		switch code {
		case 1, 2:
			return ascendrt.ErrInvalid
		case 3:
			return ascendrt.ErrOutOfMemory
		case 5:
			return ascendrt.ErrUnsupported
		case 9:
			return ascendrt.ErrTimeout
		}
		return ascendrt.ErrDegraded
	}
	switch code {
	case 207001, 207018:
		return ascendrt.ErrOutOfMemory
	case 207005, 207007, 207008, 207009, 207010, 507002:
		return ascendrt.ErrResourceLimit
	case 207000, 561003, 561107, 561112:
		return ascendrt.ErrUnsupported
	case 107001, 207004, 207006, 100001:
		return ascendrt.ErrUnavailable
	case 107019, 507046, 507047:
		return ascendrt.ErrTimeout
	case 107037, 107040:
		return ascendrt.ErrGraphUpdate
	case 507903:
		return ascendrt.ErrCapture
	case 107020, 107022, 107023, 507010, 507011, 507014, 507015, 507016, 507017, 507018, 507033, 507034, 507035, 507053, 507054, 507899:
		return ascendrt.ErrDeviceLost
	}
	if code >= 107024 && code <= 107041 {
		return ascendrt.ErrCapture
	}
	return ascendrt.ErrInvalid
}

// adviceFor adds to a vendor's text what to do about a code that needs it.
func adviceFor(code int) string {
	switch code {
	case 561003, 561107, 561112:
		return "install the operator package (opp kernels) of this chip for this CANN release, and source its set_env.sh"
	case 207004, 107001:
		return "check npu-smi info and ASCEND_RT_VISIBLE_DEVICES"
	case 207006:
		return "add the user to the group of /dev/davinci*"
	case 207005, 207008:
		return "streams are shared by all processes of the device, and graphs take some: close graphs, or capture fewer sizes"
	case 207000:
		return "the driver does not have it: install a newer driver"
	}
	return ""
}

func invalid(call, text string, class error) error {
	return &ascendrt.Error{Backend: name, Call: call, Text: text, Command: -1, Class: class}
}

// need opens a library for a call.
func need(call string, l library) error {
	return use(l).Need(name, call, l.String(), advice(l))
}
