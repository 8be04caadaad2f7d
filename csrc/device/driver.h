// The CUDA driver of this machine: libcuda.so.1, opened at run time. It turns errors into exceptions.
// Thread: any. Owns: the library. Blocks: where the driver does. Throws: Error(Unsupported) if there is no driver, or it is too
// old, or it has no GPU; Error(System), such as "cuMemAlloc failed: CUDA_ERROR_OUT_OF_MEMORY (out of memory)", when a call
// fails.
#pragma once

#include <memory>
#include <string>

#include "device/cuda_abi.h"
#include "device/library.h"

namespace hvdlite::device {

class Driver {
 public:
  explicit Driver(const Candidates& candidates);
  const cuda::Functions& call() const { return functions_; }
  int version() const {
    return version_;
  }  // the newest CUDA that the driver knows; 13000 for CUDA 13.0
  int devices() const { return devices_; }
  // Throws if `result` is an error. `function` is the name with cu in front.
  void check(cuda::Result result, const char* function) const {
    if (result != cuda::kSuccess) fail(result, function);
  }
  // For the result of a query whether the GPU has done some work. CUDA_ERROR_NOT_READY gives false; other errors throw.
  bool is_done(cuda::Result result, const char* function) const {
    if (result != cuda::kNotReady) check(result, function);
    return result == cuda::kSuccess;
  }
  // The text of the exception that check() throws.
  std::string describe(cuda::Result result, const char* function) const;

 private:
  [[noreturn]] void fail(cuda::Result result, const char* function) const;
  void initialize();

  Library library_;
  cuda::Functions functions_;
  int version_ = 0;
  int devices_ = 0;
};
using DriverPtr = std::shared_ptr<const Driver>;

}  // namespace hvdlite::device
