// NCCL, opened at run time, and a communicator of it that never blocks.
// Thread: any for Nccl; a communicator only by the holder of the progress token. Owns: the library; the communicator, and a
// thread for each that is being ended. Blocks: no (wait_for_endings: yes). Throws: Error(Unsupported) if there is no NCCL or it is
// older than 2.14 (no non-blocking communicators); Error(System) "ncclAllReduce failed: unhandled cuda error (...)".
#pragma once

#include <memory>
#include <string>

#include "base/thread.h"
#include "device/gpu.h"
#include "device/nccl_abi.h"

namespace hvdlite::device {

std::string nccl_version_text(int version);  // "2.27.3" for 22703

class Nccl {
 public:
  explicit Nccl(const Candidates& candidates);
  ~Nccl();
  const nccl::Functions& call() const { return functions_; }
  int version() const { return version_; }  // 22703 for 2.27.3
  const std::string& path() const { return library_.path(); }
  nccl::UniqueId unique_id() const;
  // kInProgress is no error.
  void check(nccl::Result result, const char* function, nccl::Comm comm = nullptr) const {
    if (result != nccl::kSuccess && result != nccl::kInProgress) fail(result, function, comm);
  }
  // Have all communicators that were finished or aborted ended? Sleeps until then, at most `limit`.
  bool wait_for_endings(base::microseconds limit) const;

 private:
  friend class NcclComm;
  struct Endings;
  [[noreturn]] void fail(nccl::Result result, const char* function, nccl::Comm comm) const;

  Library library_;
  nccl::Functions functions_;
  int version_ = 0;
  std::shared_ptr<Endings> endings_;
};
using NcclPtr = std::shared_ptr<const Nccl>;

// Created without blocking: busy() says until when it may not be used. Every call may leave it busy again.
class NcclComm {
 public:
  NcclComm(NcclPtr nccl, GpuPtr gpu, const nccl::UniqueId& id, int size, int rank);
  ~NcclComm();  // aborts it, unless it was ended
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;
  // Is what was called last still under way on the host? Throws the asynchronous error, if there is one.
  bool busy();
  // For calls of NCCL, with the GPU's context current (gpu.h). Null once it was ended.
  nccl::Comm get() const { return comm_; }
  const Nccl& nccl() const { return *nccl_; }
  const GpuPtr& gpu() const { return gpu_; }
  // All work is in the stream and nobody was lost: leaves in good order. It returns at once; a thread waits for the end of the
  // work, and aborts what takes longer than the patience.
  void finish(base::microseconds patience = std::chrono::seconds(10));
  // Kernels that wait for a lost peer end; their results are garbage. Returns at once, too.
  void abort();

 private:
  void end(bool in_order, base::microseconds patience);

  const NcclPtr nccl_;
  const GpuPtr gpu_;
  nccl::Comm comm_ = nullptr;
};

}  // namespace hvdlite::device
