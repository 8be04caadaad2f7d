// NCCL, opened at run time, and a communicator that never blocks.
// Thread: any for Nccl; for a communicator only the holder of the progress token (docs/threading.md). Owns: the library; the
// communicator, and a thread for each communicator that is being ended. Blocks: wait_for_endings; finish() and abort(), if no
// thread can be started. Throws: Error(Unsupported) if there is no NCCL or it is older than 2.14 (the first with communicators
// that do not block); Error(System) "ncclAllReduce failed: unhandled cuda error (...)".
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>

#include "base/thread.h"
#include "device/gpu.h"
#include "device/nccl_abi.h"

namespace hvdlite::device {

std::string nccl_version_text(int version);  // "2.27.3" for 22703

class Nccl {
 public:
  explicit Nccl(const Candidates& candidates);
  const nccl::Functions& call() const { return functions_; }
  int version() const { return version_; }  // 22703 for 2.27.3
  const std::string& path() const { return library_.path(); }
  nccl::UniqueId unique_id() const;
  // kInProgress is no error.
  void check(nccl::Result result, const char* function, nccl::Comm comm = nullptr) const {
    if (result != nccl::kSuccess && result != nccl::kInProgress) fail(result, function, comm);
  }
  // Sleeps until all communicators for which finish() or abort() was called have ended, but at most for `limit`. Returns
  // whether all have ended.
  bool wait_for_endings(base::microseconds limit) const;

 private:
  friend class NcclComm;
  [[noreturn]] void fail(nccl::Result result, const char* function, nccl::Comm comm) const;

  Library library_;
  nccl::Functions functions_;
  int version_ = 0;
  // ending_ is the number of communicators that are being ended. The threads that end them keep this object alive.
  mutable std::mutex mutex_;
  mutable std::condition_variable ended_;
  mutable int ending_ = 0;
};
using NcclPtr = std::shared_ptr<const Nccl>;

// A communicator. Its constructor does not block. While busy() is true, call no function of NCCL with the communicator. Any
// such call may make it busy again.
class NcclComm {
 public:
  NcclComm(NcclPtr nccl, GpuPtr gpu, const nccl::UniqueId& id, int size, int rank);
  ~NcclComm();  // aborts it, unless finish() or abort() was called
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;
  // Is the last call still under way on the host? Throws the asynchronous error, if there is one.
  bool busy();
  // For NCCL's functions, with the GPU's context current (gpu.h). Null after finish() or abort().
  nccl::Comm get() const { return comm_; }
  const Nccl& nccl() const { return *nccl_; }
  const GpuPtr& gpu() const { return gpu_; }
  // For an end without a failure: all work is in the stream, and no rank is lost. Returns at once. A thread waits for the last
  // call, and then for the end of the work. The thread aborts the communicator if one of the two waits takes longer than
  // `patience`.
  void finish(base::microseconds patience = std::chrono::seconds(10));
  // For an end after a failure. It ends the kernels that wait for a lost peer; their results are garbage. Returns at once, too.
  void abort();

 private:
  void end(bool in_order, base::microseconds patience);

  const NcclPtr nccl_;
  const GpuPtr gpu_;
  nccl::Comm comm_ = nullptr;
};

}  // namespace hvdlite::device
