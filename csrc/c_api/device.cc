// The part of the C ABI about GPUs that needs no engine.

#include <memory>

#include "c_api/c_api.h"
#include "device/driver.h"
#include "device/gpu.h"
#include "device/nccl.h"

using hvdlite::device::Driver;
using hvdlite::device::Gpu;
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

int hvdlite_gpu_read(const char* cuda_library, const void* from, void* to, size_t bytes,
                     void* stream, int* busy) {
  return guarded([&] {
    require(cuda_library != nullptr, "no place to look for the CUDA driver");
    const auto driver = std::make_shared<const Driver>(parse_candidates(cuda_library));
    const int ordinal = hvdlite::device::gpu_of_address(*driver, from);
    require(ordinal >= 0, "the memory is not on a GPU");
    const auto gpu = std::make_shared<const Gpu>(driver, ordinal);
    const auto in = static_cast<hvdlite::device::cuda::Stream>(stream);
    *busy = gpu->is_idle(in) ? 0 : 1;
    gpu->copy(to, from, bytes, in);
    gpu->record(in)->synchronize();
  });
}
