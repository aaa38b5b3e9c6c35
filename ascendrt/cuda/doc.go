// Package cuda is the NVIDIA backend of ascendrt: a thin wrapper over the CUDA
// driver API, NVRTC, cuBLASLt and NCCL.
//
// Nothing is linked and no vendor SDK is needed to build: the libraries are
// opened at first use, each driver symbol at the version whose signature abi.h
// declares. What is absent is named in Backend.Probe's report and answers
// ErrUnsupported when it is used. The search order is the library's soname (so
// LD_LIBRARY_PATH and the loader's cache), then $CUDA_HOME/lib64 and the usual
// places below /usr/local/cuda. SLUICE_CUDA_LIB, SLUICE_NVRTC_LIB,
// SLUICE_CUBLASLT_LIB and SLUICE_NCCL_LIB name a file that is tried first.
//
// No caller thinks of threads: each call is one crossing into C that makes the
// device's primary context current, does its work and brings the error back.
// Submit replays a whole buffer in one crossing, Capture does begin, replay,
// end and instantiation in one. Completion is a word in pinned memory that the
// device writes behind each submission: Done reads it without a crossing, and
// Wait spins on it briefly (OpenOptions.WaitSpin, 50 µs by default), then polls
// it in C in slices of 2 ms.
//
// The named operations are kernels of this package (kernels.cu), compiled by
// NVRTC at the first Plan and kept in a disk cache, keyed by source, options,
// architecture and compiler version. They compute the bits of docs/numerics.md;
// a matmul planned with SumFree goes to cuBLASLt instead. The fused operations and
// attention with SumFree or SumPerRow are those of the folder fused, for tensor cores
// of compute capability 9.0: their launches overlap, and products of more tokens than
// their kernels take go to cuBLASLt, but for those per row, which are all our own. A batch of many small copies within device memory,
// this process' or an imported one, is one kernel (copylist.cu), as a copy engine
// takes longer to begin a copy than the memory to make it. Blocks of many regions
// (CopyBlocks) are one too, which is told blocks and regions and finds their product
// by itself; and so is a copy of up to 64 KiB to or from pinned memory, as what a step
// uploads and downloads must not wait for the large copies of others. What these kernels
// take as lists is put into device memory ahead of them, unless
// SLUICE_CUDA_PINNED_LISTS leaves it in pinned memory for comparison.
//
// A sticky fault (an illegal address, a trap, an ECC error) loses the device:
// the driver answers every later call of the process with the same error, so
// the process must be restarted. Every method then answers ErrDeviceLost
// without a driver call.
//
// Goroutines: none. Without cgo, or on another system than Linux, the package
// builds and reports that it cannot work.
package cuda

const name = "cuda"

// Backend is the CUDA runtime.
type Backend struct{}

// Name is "cuda".
func (Backend) Name() string { return name }
