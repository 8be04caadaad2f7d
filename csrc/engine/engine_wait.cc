// The callers' side of Engine after the queue: they poll, or wait and drive progress meanwhile.

#include <sched.h>

#include <algorithm>
#include <utility>

#include "engine/engine.h"
#include "engine/model/text.h"

namespace hvdlite::engine {

using base::Clock;
using base::Error;
using base::ErrorCode;
using base::microseconds;

namespace {

// A caller that polls looks for control messages this often.
constexpr std::uint32_t kPassesBetweenMessages = 8;
// Of those that have ended; null if none failed.
CompletionPtr first_failure(const Batch& batch) {
  for (std::size_t i = 0; i < batch.size; ++i) {
    if (batch[i].failure) return batch.at(i);
  }
  return nullptr;
}

}  // namespace

bool Engine::poll(std::int64_t handle) const {
  const Batch batch = shared_.handles.find(handle);
  for (std::size_t i = 0; i < batch.size; ++i) {
    if (!batch[i].is_done()) return false;
  }
  return true;
}

void Engine::order(std::int64_t handle, void* stream) const {
  const Batch batch = shared_.handles.find(handle);
  const device::Event* last = nullptr;  // tensors that were fused share one
  for (std::size_t i = 0; i < batch.size; ++i) {
    if (!batch[i].is_done()) {
      throw Error(ErrorCode::kInvalidArgument,
                  "the operations have not ended yet; wait for them first");
    }
    const device::Event* event = batch[i].event.get();
    if (event == nullptr || event == last) continue;
    if (shared_.failure.happened()) {
      const base::Status first = shared_.failure.status();
      throw Error(first.code, first.message);
    }
    event->order(static_cast<device::cuda::Stream>(stream));
    last = event;
  }
}

bool Engine::wait(std::span<const std::int64_t> handles, microseconds limit,
                  CompletionPtr* failed) {
  require_usable();
  const Clock::time_point start = shared_.time.now();
  const std::int64_t moving_before = shared_.usage.moving(start);
  Clock::time_point ended = start;
  bool done = true;
  for (std::size_t i = 0; i < handles.size() && done; ++i) {
    const Batch batch = completions(handles[i]);
    done = wait_for_all(batch, start + limit, &ended);
    if (done && !*failed) *failed = first_failure(batch);
  }
  shared_.usage.blocked(start, done ? ended : shared_.time.now(), moving_before);
  return done;
}

bool Engine::wait_for_all(const Batch& batch, Clock::time_point deadline,
                          Clock::time_point* ended) {
  for (std::size_t i = 0; i < batch.size; ++i) {
    if (batch[i].is_done()) continue;
    const Timeline::Waiting waiting(shared_.timeline, batch[i].record);
    if (!wait_for(batch.at(i), deadline, ended)) return false;
  }
  return true;
}

bool Engine::wait_for(const CompletionPtr& completion, Clock::time_point deadline,
                      Clock::time_point* ended) {
  bool drove = false;  // to the end, so that the cycle knows when that was
  waiting_callers_.fetch_add(1, std::memory_order_seq_cst);
  shared_.waits.enter(completion);
  bool over = false;
  while (!completion->is_done() && !closed_.load(std::memory_order_acquire) && !over) {
    const std::uint32_t seen = shared_.event.value();
    if (!claimed() && try_take_token()) {
      drive(completion, deadline);
      drove = completion->is_done();
      if (drove) *ended = cycle_.moved_at();
      give_token_back();
    } else if (!completion->is_done()) {
      transport_->ring(transport_->rank());  // whoever drives shall look at what we wait for
      const auto rest = std::chrono::duration_cast<microseconds>(deadline - shared_.time.now());
      shared_.event.wait(seen, std::clamp(rest, microseconds(0), kStandAside));
      if (completion->is_done() && shared_.event.value() == seen) count_unrung_find();
    }
    over = !drove && shared_.time.now() >= deadline;
  }
  if (!drove) *ended = shared_.time.now();
  shared_.waits.leave(completion->is_done(), *ended);
  const bool others_wait = waiting_callers_.fetch_sub(1, std::memory_order_seq_cst) > 1;
  // What is left is the engine thread's again.
  const Counters& counters = shared_.counters;
  const bool work_left =
      counters.submitted.load(std::memory_order_relaxed) != counters.completed + counters.failed;
  if (!others_wait && work_left) kick_.bump();
  if (!completion->is_done() && closed_.load(std::memory_order_acquire)) {
    throw Error(ErrorCode::kAborted, kShutDownHere);
  }
  return completion->is_done();
}

void Engine::give_token_back() {
  auto to_tell = std::exchange(shared_.to_tell, {});
  token_.store(false, std::memory_order_release);
  shared_.event.bump();
  tell(std::move(to_tell));
}

// Without the token: what a watcher does may need progress.
void Engine::tell(std::vector<std::unique_ptr<Watcher>> watchers) {
  for (const auto& watcher : watchers) watcher->then(watcher->data);
}

// With the token: passes until the completion is done, a watcher is to be told, or somebody has more need of the token.
void Engine::drive(const CompletionPtr& completion, Clock::time_point deadline) {
  Stillness still;
  while (completion->done.load(std::memory_order_acquire) == 0 && shared_.to_tell.empty() &&
         !claimed() && pass_or_pause(&still, deadline, microseconds::max())) {
  }
}

// With the token: one pass. If there was nothing to do a pause of at most limit, of a kind that depends on how long nothing has
// moved: spin, yield, sleep. False once the deadline is over. While things move the cycle reads the clock, and nobody else.
bool Engine::pass_or_pause(Stillness* still, Clock::time_point deadline, microseconds limit) {
  const std::uint32_t seen = still->sleeps ? transport_->listen() : 0;
  const bool thorough = still->sleeps || passes_++ % kPassesBetweenMessages == 0;
  if (cycle_.pass(true, thorough)) {
    if (still->sleeps) transport_->unlisten();
    if (still->unrung) count_unrung_find();
    *still = {};
    return cycle_.moved_at() < deadline;
  }
  const Clock::time_point now = shared_.time.now();
  if (still->sleeps) {
    const auto rest = std::chrono::duration_cast<microseconds>(deadline - now);
    still->unrung = sleep(seen, cycle_.outlook(), std::min(rest, limit));
    return now < deadline;
  }
  if (!still->since) still->since = now;
  const auto lasted = now - *still->since;
  still->sleeps = lasted >= waiting_.spin + waiting_.yield;
  if (lasted < waiting_.spin) {
    base::spin_pause();
  } else if (!still->sleeps) {
    sched_yield();
  }
  return now < deadline;
}

// At the doorbell, at most so long. True: nobody rang, though a ring was to tell of whatever there may be to do now.
bool Engine::sleep(std::uint32_t seen, const Outlook& outlook, microseconds most) {
  const auto limit =
      std::max(microseconds(0), std::min(longest_sleep(outlook, bells_reach_all_), most));
  Counters& counters = shared_.counters;
  counters.sleeps.fetch_add(1, std::memory_order_relaxed);
  counters.sleep_limits_us.fetch_add(limit.count(), std::memory_order_relaxed);
  transport_->wait(seen, limit);
  const bool rung = transport_->listen() != seen;
  transport_->unlisten();
  if (rung) counters.rung_sleeps.fetch_add(1, std::memory_order_relaxed);
  const bool looks_itself =
      outlook.moving_data || outlook.gpu_at_work || outlook.due.count() > 0 || !bells_reach_all_;
  return !rung && !looks_itself;
}

}  // namespace hvdlite::engine
