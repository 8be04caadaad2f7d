// Compares csrc/device/nccl_abi.h with NVIDIA's nccl.h; test_gpu_abi.py compiles it where there is one. Nothing to run.
#include <nccl.h>
// Ours after theirs.
#include "abi_check.h"
#include "device/nccl_abi.h"

namespace {

namespace cuda = hvdlite::device::cuda;
namespace ours = hvdlite::device::nccl;
using abi_check::same;
using ours::Comm;
using ours::Config;
using ours::DataType;
using ours::RedOp;
using ours::Result;
using ours::UniqueId;

// Of the config only the beginning is ours: a pointer to it is any pointer here.
template <typename Function>
struct Unconfigured {
  using Type = Function;
};
template <>
struct Unconfigured<ncclResult_t(ncclComm_t*, int, ncclUniqueId, int, ncclConfig_t*)> {
  using Type = ncclResult_t(ncclComm_t*, int, ncclUniqueId, int, Config*);
};
#define CHECK_FUNCTION(name, symbol, type)                                         \
  static_assert(same<type, Unconfigured<decltype(::nccl##name)>::Type>(), symbol); \
  static_assert(abi_check::equal(symbol, ABI_CHECK_TEXT(nccl##name)), symbol);
HVDLITE_NCCL_FUNCTIONS(CHECK_FUNCTION)

static_assert(ours::kSuccess == ncclSuccess);
static_assert(ours::kUnhandledCudaError == ncclUnhandledCudaError);
static_assert(ours::kSystemError == ncclSystemError);
static_assert(ours::kInternalError == ncclInternalError);
static_assert(ours::kInvalidArgument == ncclInvalidArgument);
static_assert(ours::kInvalidUsage == ncclInvalidUsage);
static_assert(ours::kRemoteError == ncclRemoteError);
static_assert(ours::kInProgress == ncclInProgress);

static_assert(ours::kInt8 == static_cast<int>(ncclInt8));
static_assert(ours::kUInt8 == static_cast<int>(ncclUint8));
static_assert(ours::kInt32 == static_cast<int>(ncclInt32));
static_assert(ours::kUInt32 == static_cast<int>(ncclUint32));
static_assert(ours::kInt64 == static_cast<int>(ncclInt64));
static_assert(ours::kUInt64 == static_cast<int>(ncclUint64));
static_assert(ours::kFloat16 == static_cast<int>(ncclFloat16));
static_assert(ours::kFloat32 == static_cast<int>(ncclFloat32));
static_assert(ours::kFloat64 == static_cast<int>(ncclFloat64));
static_assert(ours::kBFloat16 == static_cast<int>(ncclBfloat16));
static_assert(ours::kSum == static_cast<int>(ncclSum));
static_assert(ours::kProd == static_cast<int>(ncclProd));
static_assert(ours::kMax == static_cast<int>(ncclMax));
static_assert(ours::kMin == static_cast<int>(ncclMin));
static_assert(ours::kAvg == static_cast<int>(ncclAvg));

static_assert(sizeof(UniqueId) == sizeof(ncclUniqueId) && sizeof(UniqueId) == NCCL_UNIQUE_ID_BYTES);
static_assert(offsetof(Config, size) == offsetof(ncclConfig_t, size));
static_assert(offsetof(Config, magic) == offsetof(ncclConfig_t, magic));
static_assert(offsetof(Config, version) == offsetof(ncclConfig_t, version));
static_assert(offsetof(Config, blocking) == offsetof(ncclConfig_t, blocking));
static_assert(sizeof(Config) <= sizeof(ncclConfig_t));
constexpr ncclConfig_t kTheirs = NCCL_CONFIG_INITIALIZER;
static_assert(Config{}.magic == kTheirs.magic);
static_assert(NCCL_VERSION_CODE >= ours::kOldestVersion && NCCL_VERSION(2, 14, 0) == 21400);

}  // namespace
