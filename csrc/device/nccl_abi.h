// The part of NCCL's binary interface that hvdlite calls. It is declared here so that the build needs no header of NCCL.
#pragma once

#include <climits>
#include <cstddef>
#include <type_traits>

#include "device/cuda_abi.h"

namespace hvdlite::device::nccl {

using Result = int;  // ncclResult_t
inline constexpr Result kSuccess = 0;
inline constexpr Result kUnhandledCudaError = 1;
inline constexpr Result kSystemError = 2;
inline constexpr Result kInternalError = 3;
inline constexpr Result kInvalidArgument = 4;
inline constexpr Result kInvalidUsage = 5;
inline constexpr Result kRemoteError = 6;
inline constexpr Result kInProgress = 7;
using Comm = struct ncclComm*;
struct UniqueId {
  char bytes[128];
};
enum DataType : int {
  kInt8 = 0,
  kUInt8 = 1,
  kInt32 = 2,
  kUInt32 = 3,
  kInt64 = 4,
  kUInt64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBFloat16 = 9,
};
enum RedOp : int { kSum = 0, kProd = 1, kMax = 2, kMin = 3, kAvg = 4 };

inline constexpr int kOldestVersion = 21400;  // the first with communicators that do not block

// ncclConfig_t of NCCL 2.14. A later NCCL reads the size of this struct from the first field, and the version of the struct
// from the third. It uses defaults for fields that were added later.
struct Config {
  std::size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = kOldestVersion;
  int blocking = 0;
};

#define HVDLITE_NCCL_FUNCTIONS(X)                                                               \
  X(GetVersion, "ncclGetVersion", Result(int* version))                                         \
  X(GetUniqueId, "ncclGetUniqueId", Result(UniqueId* id))                                       \
  X(GetErrorString, "ncclGetErrorString", const char*(Result result))                           \
  X(GetLastError, "ncclGetLastError", const char*(Comm comm))                                   \
  X(CommInitRankConfig, "ncclCommInitRankConfig",                                               \
    Result(Comm* comm, int ranks, UniqueId id, int rank, Config* config))                       \
  X(CommGetAsyncError, "ncclCommGetAsyncError", Result(Comm comm, Result* error))               \
  X(CommFinalize, "ncclCommFinalize", Result(Comm comm))                                        \
  X(CommDestroy, "ncclCommDestroy", Result(Comm comm))                                          \
  X(CommAbort, "ncclCommAbort", Result(Comm comm))                                              \
  X(GroupStart, "ncclGroupStart", Result())                                                     \
  X(GroupEnd, "ncclGroupEnd", Result())                                                         \
  X(AllReduce, "ncclAllReduce",                                                                 \
    Result(const void* send, void* recv, std::size_t count, DataType type, RedOp op, Comm comm, \
           cuda::Stream stream))                                                                \
  X(Broadcast, "ncclBroadcast",                                                                 \
    Result(const void* send, void* recv, std::size_t count, DataType type, int root, Comm comm, \
           cuda::Stream stream))                                                                \
  X(Reduce, "ncclReduce",                                                                       \
    Result(const void* send, void* recv, std::size_t count, DataType type, RedOp op, int root,  \
           Comm comm, cuda::Stream stream))                                                     \
  X(AllGather, "ncclAllGather",                                                                 \
    Result(const void* send, void* recv, std::size_t count, DataType type, Comm comm,           \
           cuda::Stream stream))                                                                \
  X(ReduceScatter, "ncclReduceScatter",                                                         \
    Result(const void* send, void* recv, std::size_t count, DataType type, RedOp op, Comm comm, \
           cuda::Stream stream))                                                                \
  X(Send, "ncclSend",                                                                           \
    Result(const void* data, std::size_t count, DataType type, int peer, Comm comm,             \
           cuda::Stream stream))                                                                \
  X(Recv, "ncclRecv",                                                                           \
    Result(void* data, std::size_t count, DataType type, int peer, Comm comm,                   \
           cuda::Stream stream))

struct Functions {
#define HVDLITE_NCCL_POINTER(name, symbol, type) std::add_pointer_t<type> name = nullptr;
  HVDLITE_NCCL_FUNCTIONS(HVDLITE_NCCL_POINTER)
#undef HVDLITE_NCCL_POINTER
};

}  // namespace hvdlite::device::nccl
