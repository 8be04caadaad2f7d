// Compares csrc/device/cuda_abi.h with the toolkit's cuda.h; test_gpu_abi.py compiles it where there is one. Nothing to run.
#include <cuda.h>
// Ours after theirs.
#include "abi_check.h"
#include "device/cuda_abi.h"

namespace {

namespace ours = hvdlite::device::cuda;
using abi_check::same;

// cuda.h makes cuMemAlloc a macro for the version that it describes.
#define CHECK_TYPE(name, symbol, type) \
  static_assert(same<type, decltype(::cu##name)>(), "type of cu" #name);
using ours::Address;
using ours::Context;
using ours::Device;
using ours::Event;
using ours::Function;
using ours::Module;
using ours::Result;
using ours::Stream;
using ours::Uuid;
HVDLITE_CUDA_FUNCTIONS(CHECK_TYPE)

// Later toolkits may give a function another version; the driver keeps the one that we take. Not so up to CUDA 12.
#if CUDA_VERSION < 13000
#define CHECK_SYMBOL(name, symbol, type) \
  static_assert(abi_check::equal(symbol, ABI_CHECK_TEXT_OF(cu##name)), symbol);
HVDLITE_CUDA_FUNCTIONS(CHECK_SYMBOL)
#endif

static_assert(ours::kSuccess == CUDA_SUCCESS);
static_assert(ours::kInvalidValue == CUDA_ERROR_INVALID_VALUE);
static_assert(ours::kOutOfMemory == CUDA_ERROR_OUT_OF_MEMORY);
static_assert(ours::kNotInitialized == CUDA_ERROR_NOT_INITIALIZED);
static_assert(ours::kDeinitialized == CUDA_ERROR_DEINITIALIZED);
static_assert(ours::kStubLibrary == CUDA_ERROR_STUB_LIBRARY);
static_assert(ours::kNoDevice == CUDA_ERROR_NO_DEVICE);
static_assert(ours::kInvalidContext == CUDA_ERROR_INVALID_CONTEXT);
static_assert(ours::kNoBinaryForGpu == CUDA_ERROR_NO_BINARY_FOR_GPU);
static_assert(ours::kUnsupportedPtxVersion == CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
static_assert(ours::kInvalidHandle == CUDA_ERROR_INVALID_HANDLE);
static_assert(ours::kNotReady == CUDA_ERROR_NOT_READY);
static_assert(ours::kSystemNotReady == CUDA_ERROR_SYSTEM_NOT_READY);
static_assert(ours::kDriverMismatch == CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
static_assert(ours::kCaptureUnsupported == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
static_assert(ours::kCaptureImplicit == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
static_assert(ours::kCaptureWrongThread == CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
static_assert(ours::kStreamNonBlocking == CU_STREAM_NON_BLOCKING);
static_assert(ours::kEventBlockingSync == CU_EVENT_BLOCKING_SYNC);
static_assert(ours::kEventDisableTiming == CU_EVENT_DISABLE_TIMING);
static_assert(ours::kHostAllocPortable == CU_MEMHOSTALLOC_PORTABLE);
static_assert(ours::kAttributeMultiprocessorCount == CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
static_assert(ours::kAttributeComputeCapabilityMajor ==
              CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
static_assert(ours::kAttributeComputeCapabilityMinor ==
              CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
static_assert(ours::kPointerAttributeMemoryType == CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
static_assert(ours::kPointerAttributeDeviceOrdinal == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
static_assert(ours::kMemoryTypeHost == CU_MEMORYTYPE_HOST);
static_assert(ours::kMemoryTypeDevice == CU_MEMORYTYPE_DEVICE);
static_assert(ours::kCaptureStatusNone == CU_STREAM_CAPTURE_STATUS_NONE);
static_assert(ours::kCaptureModeRelaxed == CU_STREAM_CAPTURE_MODE_RELAXED);

// The comparison itself finds differences.
static_assert(!same<Result(unsigned), CUresult(std::size_t)>());
static_assert(!same<Result(unsigned), CUresult(unsigned, unsigned)>());
static_assert(!same<Result(const char**), CUresult(char**)>());

}  // namespace
