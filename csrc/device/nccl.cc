// A communicator's life without a blocking call. ncclCommInitRankConfig with blocking = 0 returns at once, and NCCL connects
// the ranks in the background. busy() asks CommGetAsyncError whether the last call is still under way:
//
//    constructor ──► busy() until it is false ──► a call of NCCL ──► busy() until it is false ──► ... ──► finish() or abort()
//
// A call that NCCL has accepted returns kInProgress or kSuccess. If it fails later, the error comes out of busy().
//
// The end of a communicator may wait for the GPU, and for peers that are lost. The thread that drives the engine must not wait
// there. So each end runs in a thread of its own, which holds the library, the GPU and the communicator:
//
//    finish()    settle: the last call is complete ──► CommFinalize ──► settle: it is complete ──► CommDestroy
//    abort()     CommAbort
//
// If a step of finish() before CommDestroy fails, or a settle takes longer than `patience`, CommAbort replaces the remaining
// steps. Each settle may take up to `patience`.
//
// ending_ counts these threads. end() raises it before the thread starts, so a call of wait_for_endings() after finish() or
// abort() waits for that end, too. Devices::close() makes this call, with a limit. Threads that have not ended after the limit
// still hold what they need.
#include "device/nccl.h"

#include <exception>
#include <thread>
#include <utility>

#include "base/error.h"

namespace hvdlite::device {

using base::Error;
using base::ErrorCode;

namespace {

constexpr base::microseconds kCommNap{500};

// Waits until the communicator's last call is complete. NCCL has no function that sleeps until then, so this asks in intervals.
// Returns false if the call fails or takes too long.
bool settle(const nccl::Functions& call, nccl::Comm comm, base::microseconds patience) {
  const base::Clock::time_point limit = base::Clock::now() + patience;
  for (;;) {
    nccl::Result state = nccl::kSuccess;
    if (call.CommGetAsyncError(comm, &state) != nccl::kSuccess) return false;
    if (state != nccl::kInProgress) return state == nccl::kSuccess;
    if (base::Clock::now() > limit) return false;
    std::this_thread::sleep_for(kCommNap);
  }
}

// Finalises the communicator: NCCL completes its operations and synchronises with the peers. After that CommDestroy only frees
// resources of this rank (NCCL's documentation, ncclCommFinalize). Returns false if a step fails or takes too long.
bool finalized(const nccl::Functions& call, nccl::Comm comm, base::microseconds patience) {
  if (!settle(call, comm, patience)) return false;
  const nccl::Result result = call.CommFinalize(comm);
  return (result == nccl::kSuccess || result == nccl::kInProgress) && settle(call, comm, patience);
}

}  // namespace

std::string nccl_version_text(int version) {
  // 22703 is 2.27.3; 2708 is 2.7.8.
  const int unit = version < 10000 ? 1000 : 10000;  // until 2.8, minor versions had one digit
  return std::to_string(version / unit) + "." + std::to_string(version % unit / 100) + "." +
         std::to_string(version % 100);
}

Nccl::Nccl(const Candidates& candidates) : library_("NCCL", candidates, "HVDLITE_NCCL_LIBRARY") {
  // The version comes before the other symbols. The error for an old NCCL would otherwise name a missing function.
  library_.require(&functions_.GetVersion, "ncclGetVersion");
  const nccl::Result result = functions_.GetVersion(&version_);
  if (result != nccl::kSuccess) {
    throw Error(ErrorCode::kSystem, "ncclGetVersion of " + library_.path() + " failed (" +
                                        std::to_string(result) +
                                        "); name another NCCL by HVDLITE_NCCL_LIBRARY");
  }
  if (version_ < nccl::kOldestVersion) {
    throw Error(ErrorCode::kUnsupported,
                "NCCL " + nccl_version_text(version_) + " (" + library_.path() +
                    ") is too old: hvdlite needs " + nccl_version_text(nccl::kOldestVersion) +
                    " or newer; update it, or name another by HVDLITE_NCCL_LIBRARY");
  }
#define HVDLITE_NCCL_REQUIRE(name, symbol, type) library_.require(&functions_.name, symbol);
  HVDLITE_NCCL_FUNCTIONS(HVDLITE_NCCL_REQUIRE)
#undef HVDLITE_NCCL_REQUIRE
}

nccl::UniqueId Nccl::unique_id() const {
  nccl::UniqueId id;
  check(functions_.GetUniqueId(&id), "ncclGetUniqueId");
  return id;
}

// The text of GetLastError names the cause (a socket, a CUDA call), and the text of `result` does not.
void Nccl::fail(nccl::Result result, const char* function, nccl::Comm comm) const {
  std::string text = std::string(function) + " failed: " + functions_.GetErrorString(result);
  const char* details = functions_.GetLastError(comm);
  if (details != nullptr && *details != '\0') text += std::string(" (") + details + ")";
  throw Error(ErrorCode::kSystem, text);
}

bool Nccl::wait_for_endings(base::microseconds limit) const {
  std::unique_lock lock(mutex_);
  return ended_.wait_for(lock, limit, [this] { return ending_ == 0; });
}

// NCCL may return an error together with an incomplete communicator, which must be aborted. The destructor does not run if the
// constructor throws, so the constructor aborts the communicator.
NcclComm::NcclComm(NcclPtr nccl, GpuPtr gpu, const nccl::UniqueId& id, int size, int rank)
    : nccl_(std::move(nccl)), gpu_(std::move(gpu)) {
  const Current current(*gpu_);
  nccl::Config config;
  const nccl::Result result = nccl_->call().CommInitRankConfig(&comm_, size, id, rank, &config);
  try {
    nccl_->check(result, "ncclCommInitRankConfig");
  } catch (const Error&) {
    if (comm_ != nullptr) abort();
    throw;
  }
}

NcclComm::~NcclComm() { abort(); }

// CommGetAsyncError gives two results, and both are checked: its own, and the state of the communicator.
bool NcclComm::busy() {
  HVD_CHECK(comm_ != nullptr);
  const Current current(*gpu_);
  nccl::Result state = nccl::kSuccess;
  nccl_->check(nccl_->call().CommGetAsyncError(comm_, &state), "ncclCommGetAsyncError", comm_);
  nccl_->check(state, "NCCL", comm_);
  return state == nccl::kInProgress;
}

void NcclComm::finish(base::microseconds patience) { end(true, patience); }

void NcclComm::abort() { end(false, {}); }

// comm_ is null at once, so a second end() does nothing. In a forked child nothing is done, because NCCL and CUDA do not work
// there.
void NcclComm::end(bool in_order, base::microseconds patience) {
  if (comm_ == nullptr || !gpu_->in_own_process()) return;
  {
    const std::lock_guard lock(nccl_->mutex_);
    ++nccl_->ending_;
  }
  auto work = [nccl = nccl_, gpu = gpu_, comm = std::exchange(comm_, nullptr), in_order,
               patience]() mutable {
    const nccl::Functions& call = nccl->call();
    // If the driver has ended, this does nothing, and the count below is lowered all the same.
    gpu->clean_up([&](const cuda::Functions&) {
      if (in_order && finalized(call, comm, patience)) {
        call.CommDestroy(comm);
      } else {
        call.CommAbort(comm);
      }
    });
    gpu.reset();  // this thread releases the GPU before waiters see the end
    const std::lock_guard lock(nccl->mutex_);
    --nccl->ending_;
    nccl->ended_.notify_all();
  };
  try {
    // A copy of `work`: if no thread can be started, the original is called below.
    std::thread([work]() mutable {
      base::name_this_thread("hvd-nccl-end");
      work();
    }).detach();
  } catch (const std::exception&) {  // no thread can be started
    work();
  }
}

}  // namespace hvdlite::device
