// The part of the C ABI that asks what GPU support there is, without an engine.

#include "device/driver.h"
#include "device/nccl.h"
#include "engine/c_api.h"

using hvdlite::device::Driver;
using hvdlite::device::Nccl;
using hvdlite::device::parse_candidates;
using hvdlite::engine::guarded;
using hvdlite::engine::require;

int hvdlite_cuda_version(const char* cuda_library, int32_t* version, int32_t* gpus) {
  return guarded([&] {
    require(cuda_library != nullptr, "no place to look for the CUDA driver");
    const Driver driver(parse_candidates(cuda_library));
    *version = driver.version();
    *gpus = driver.devices();
  });
}

int hvdlite_nccl_version(const char* nccl_library, int32_t* version) {
  return guarded([&] {
    require(nccl_library != nullptr, "no place to look for NCCL");
    *version = Nccl(parse_candidates(nccl_library)).version();
  });
}
