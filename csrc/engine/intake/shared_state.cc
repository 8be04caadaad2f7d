// What WaitRegistry::all_waiting() does about each known thread:
//
//    the thread                                         all_waiting()
//    waits                                              adds to the result the operation for which the thread waits
//    interrupted its wait at most 200 ms ago            does the same: the interrupted wait counts
//    runs, or interrupted its wait longer ago           returns nothing
//    has ended                                          removes the thread's row
//
// A caller from Python interrupts its wait every 100 ms to handle signals (bindings/python/engine.cc), and then waits again.
// Without the 200 ms, all_waiting() during such an interruption would find a thread that runs. As a result, the time for which
// the rank is blocked would begin anew (Membership::report_if_blocked), and a deadlock could be reported late or never.
//
// When SharedState::finish() stores `done`, other threads may read the completion at once. So this store is the last access of
// finish() to the completion.
#include "engine/intake/shared_state.h"

#include <algorithm>

namespace hvdlite::engine {
namespace {

// A wait that is interrupted for at most this time counts as one wait.
constexpr base::microseconds kInterruption{200'000};

// An object that is destroyed when its thread ends. At that moment the weak pointer in the thread's row expires. The first call
// of thread_life() in a thread may wait for a lock of the dynamic linker. So callers call it before they take the registry's
// lock.
const std::shared_ptr<int>& thread_life() {
  thread_local const std::shared_ptr<int> life = std::make_shared<int>(0);
  return life;
}

std::uint64_t next_serial() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

}  // namespace

device::DeviceSettings device_settings(const base::Config& config, const base::Logger& log) {
  return {.cuda = device::parse_candidates(config.cuda_library),
          .nccl = device::parse_candidates(config.nccl_library),
          .kernels = {device::parse_candidates(config.nvrtc_library), config.kernel_cache, log},
          .keep_bytes = config.gpu_cache_bytes};
}

WaitRegistry::WaitRegistry(base::TimeSource time) : time_(time), serial_(next_serial()) {}

void WaitRegistry::may_submit() {
  thread_local std::uint64_t known_to = 0;
  if (known_to == serial_) return;
  known_to = serial_;
  const std::shared_ptr<int>& life = thread_life();
  const std::lock_guard lock(mutex_);
  Thread& thread = threads_[std::this_thread::get_id()];
  thread.life = life;
  thread.stays = true;
}

void WaitRegistry::enter(const CompletionPtr& completion) {
  const std::shared_ptr<int>& life = thread_life();
  const std::lock_guard lock(mutex_);
  Thread& thread = threads_[std::this_thread::get_id()];
  // If `life` has expired, the row is new, or belongs to an ended thread whose id the system has given to this thread.
  if (thread.life.expired()) thread.stays = !completion->pool_thread;
  thread.life = life;
  thread.waits_for = completion;
  thread.until = base::Clock::time_point::max();
}

void WaitRegistry::leave(bool done, base::Clock::time_point now) {
  const std::lock_guard lock(mutex_);
  // enter() of this thread has made the row. During the wait this thread may call a watcher. If the watcher waits too, the
  // registry forgets the outer wait: the inner leave() changes this row, and removes it if `stays` is false.
  const auto row = threads_.find(std::this_thread::get_id());
  if (row == threads_.end()) return;
  Thread& thread = row->second;
  if (done && !thread.stays) {
    threads_.erase(row);
    return;
  }
  if (done) thread.waits_for.reset();
  thread.until = now + kInterruption;
}

std::optional<std::vector<CompletionPtr>> WaitRegistry::all_waiting() {
  const std::lock_guard lock(mutex_);
  std::vector<CompletionPtr> awaited;
  std::erase_if(threads_, [](const auto& item) { return item.second.life.expired(); });
  // If one thread runs, the result is nothing: the thread may still submit what other ranks wait for.
  for (const auto& [id, thread] : threads_) {
    if (!thread.waits_for || thread.until < time_.now()) return std::nullopt;
    awaited.push_back(thread.waits_for);
  }
  if (awaited.empty()) return std::nullopt;
  return awaited;
}

void SetDirectory::add(Info info) {
  const std::lock_guard lock(mutex_);
  sets_[info.id.id] = std::move(info);
}

void SetDirectory::remove(std::int32_t id) {
  const std::lock_guard lock(mutex_);
  sets_.erase(id);
}

std::optional<SetDirectory::Info> SetDirectory::find(std::int32_t id) const {
  const std::lock_guard lock(mutex_);
  const auto found = sets_.find(id);
  if (found == sets_.end()) return std::nullopt;
  return found->second;
}

std::vector<std::int32_t> SetDirectory::ids() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::int32_t> ids;
  ids.reserve(sets_.size());
  for (const auto& [id, info] : sets_) ids.push_back(id);
  return ids;
}

void SharedState::finish(std::span<const Entry> entries, const base::Status& status) {
  reached(entries, status.ok() ? FlightRecorder::Stage::kDone : FlightRecorder::Stage::kFailed);
  // The names are freed before `done` is set, because a caller that sees `done` may submit the same name at once, and push()
  // refuses a name in flight.
  queue.forget(entries);
  // Counted first, so that a caller who sees the end of an operation also finds it in the counters.
  (status.ok() ? counters.completed : counters.failed) +=
      std::ranges::count_if(entries, [](const Entry& entry) { return entry.request != nullptr; });
  for (const Entry& entry : entries) {
    if (!entry.request) continue;
    Completion& completion = *entry.completion;
    if (!status.ok()) {
      completion.failure = std::make_unique<const base::Status>(
          base::Status{status.code, status.message, entry.request->set});
    }
    if (completion.watcher != nullptr) {
      --watched;
      if (--completion.watcher->awaited == 0) to_tell.emplace_back(completion.watcher);
    }
    completion.done.store(1, std::memory_order_release);
  }
  event.bump();
}

}  // namespace hvdlite::engine
