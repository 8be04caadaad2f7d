// The part of the CUDA driver's binary interface that hvdlite calls. It is declared here so that the build needs no CUDA
// header. tests/native/check_cuda_abi.cc compares every number and type with cuda.h on machines that have cuda.h. Plain
// declarations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace hvdlite::device::cuda {

using Result = int;  // CUresult
inline constexpr Result kSuccess = 0;
inline constexpr Result kInvalidValue = 1;
inline constexpr Result kOutOfMemory = 2;
inline constexpr Result kNotInitialized = 3;
inline constexpr Result kDeinitialized = 4;
inline constexpr Result kStubLibrary = 34;
inline constexpr Result kNoDevice = 100;
inline constexpr Result kInvalidContext = 201;
inline constexpr Result kNoBinaryForGpu = 209;
inline constexpr Result kUnsupportedPtxVersion = 222;
inline constexpr Result kInvalidHandle = 400;
inline constexpr Result kNotReady = 600;
inline constexpr Result kSystemNotReady = 802;
inline constexpr Result kDriverMismatch = 803;
inline constexpr Result kCaptureUnsupported = 900;  // the first error about stream capture
inline constexpr Result kCaptureImplicit = 906;
inline constexpr Result kCaptureWrongThread = 908;  // the last error about stream capture

using Device = int;                  // CUdevice
using Address = unsigned long long;  // CUdeviceptr
using Context = struct CUctx_st*;    // CUcontext
// CUstream. null and 1 stand for the legacy default stream, 2 for the per-thread default stream of the calling thread.
using Stream = struct CUstream_st*;
using Event = struct CUevent_st*;    // CUevent
using Module = struct CUmod_st*;     // CUmodule
using Function = struct CUfunc_st*;  // CUfunction
struct Uuid {
  unsigned char bytes[16];
};

inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventBlockingSync = 1;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr int kAttributeMultiprocessorCount = 16;
inline constexpr int kAttributeComputeCapabilityMajor = 75;
inline constexpr int kAttributeComputeCapabilityMinor = 76;
inline constexpr unsigned kHostAllocPortable = 1;
inline constexpr int kPointerAttributeMemoryType = 2;
inline constexpr int kPointerAttributeDeviceOrdinal = 9;
inline constexpr int kMemoryTypeHost = 1;
inline constexpr int kMemoryTypeDevice = 2;
inline constexpr int kCaptureStatusNone = 0;
inline constexpr int kCaptureModeRelaxed = 2;

// The functions: the name without `cu`, by which hvdlite calls the function; the symbol, which ends with the function's version
// (_v2) if it has one; the type.
#define HVDLITE_CUDA_FUNCTIONS(X)                                                                  \
  X(Init, "cuInit", Result(unsigned flags))                                                        \
  X(DriverGetVersion, "cuDriverGetVersion", Result(int* version))                                  \
  X(GetErrorName, "cuGetErrorName", Result(Result error, const char** name))                       \
  X(GetErrorString, "cuGetErrorString", Result(Result error, const char** text))                   \
  X(DeviceGetCount, "cuDeviceGetCount", Result(int* count))                                        \
  X(DeviceGet, "cuDeviceGet", Result(Device* device, int ordinal))                                 \
  X(DeviceGetName, "cuDeviceGetName", Result(char* name, int length, Device device))               \
  X(DeviceGetUuid, "cuDeviceGetUuid", Result(Uuid* uuid, Device device))                           \
  X(DeviceGetAttribute, "cuDeviceGetAttribute", Result(int* value, int attribute, Device device))  \
  X(DevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", Result(Context* context, Device device))   \
  X(DevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", Result(Device device))                \
  X(CtxPushCurrent, "cuCtxPushCurrent_v2", Result(Context context))                                \
  X(CtxPopCurrent, "cuCtxPopCurrent_v2", Result(Context* context))                                 \
  X(CtxGetStreamPriorityRange, "cuCtxGetStreamPriorityRange", Result(int* least, int* greatest))   \
  X(MemAlloc, "cuMemAlloc_v2", Result(Address* address, std::size_t bytes))                        \
  X(MemFree, "cuMemFree_v2", Result(Address address))                                              \
  X(MemHostAlloc, "cuMemHostAlloc", Result(void** memory, std::size_t bytes, unsigned flags))      \
  X(MemFreeHost, "cuMemFreeHost", Result(void* memory))                                            \
  X(MemcpyAsync, "cuMemcpyAsync",                                                                  \
    Result(Address to, Address from, std::size_t bytes, Stream stream))                            \
  X(MemsetD8Async, "cuMemsetD8Async",                                                              \
    Result(Address to, unsigned char value, std::size_t bytes, Stream stream))                     \
  X(PointerGetAttribute, "cuPointerGetAttribute",                                                  \
    Result(void* value, int attribute, Address address))                                           \
  X(StreamCreateWithPriority, "cuStreamCreateWithPriority",                                        \
    Result(Stream* stream, unsigned flags, int priority))                                          \
  X(StreamDestroy, "cuStreamDestroy_v2", Result(Stream stream))                                    \
  X(StreamWaitEvent, "cuStreamWaitEvent", Result(Stream stream, Event event, unsigned flags))      \
  X(StreamSynchronize, "cuStreamSynchronize", Result(Stream stream))                               \
  X(StreamQuery, "cuStreamQuery", Result(Stream stream))                                           \
  X(StreamIsCapturing, "cuStreamIsCapturing", Result(Stream stream, int* status))                  \
  X(ThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode", Result(int* mode))       \
  X(EventCreate, "cuEventCreate", Result(Event* event, unsigned flags))                            \
  X(EventDestroy, "cuEventDestroy_v2", Result(Event event))                                        \
  X(EventRecord, "cuEventRecord", Result(Event event, Stream stream))                              \
  X(EventQuery, "cuEventQuery", Result(Event event))                                               \
  X(EventSynchronize, "cuEventSynchronize", Result(Event event))                                   \
  X(EventElapsedTime, "cuEventElapsedTime", Result(float* milliseconds, Event from, Event to))     \
  X(ModuleLoadData, "cuModuleLoadData", Result(Module* module, const void* image))                 \
  X(ModuleUnload, "cuModuleUnload", Result(Module module))                                         \
  X(ModuleGetFunction, "cuModuleGetFunction",                                                      \
    Result(Function* function, Module module, const char* name))                                   \
  X(LaunchKernel, "cuLaunchKernel",                                                                \
    Result(Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, \
           unsigned block_y, unsigned block_z, unsigned shared_bytes, Stream stream,               \
           void** parameters, void** extra))

struct Functions {
#define HVDLITE_CUDA_POINTER(name, symbol, type) std::add_pointer_t<type> name = nullptr;
  HVDLITE_CUDA_FUNCTIONS(HVDLITE_CUDA_POINTER)
#undef HVDLITE_CUDA_POINTER
};

}  // namespace hvdlite::device::cuda
