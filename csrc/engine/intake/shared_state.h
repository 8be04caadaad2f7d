// The state that callers (Engine) and the holder of the progress token (Cycle) share. The holder is the thread that drives the
// engine (engine.h). Each member that several threads change has its own lock, or consists of atomics.
// Thread: any, unless a member says otherwise. Owns: its members. Blocks: as each member says. Throws: as each member says.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/config.h"
#include "base/log.h"
#include "base/time_source.h"
#include "device/devices.h"
#include "engine/intake/arenas.h"
#include "engine/intake/handle_table.h"
#include "engine/intake/numbering.h"
#include "engine/intake/tensor_queue.h"
#include "engine/observe/flight_recorder.h"
#include "engine/observe/timeline.h"
#include "engine/observe/usage.h"
#include "engine/observe/watchdog.h"

namespace hvdlite::engine {

// An event count (Reed and Kanodia, 1979): a number; threads of this process can sleep until it changes. A thread that waits
// for a condition reads value(), then checks the condition, and then calls wait() with the value that it read. So the thread
// also notices a change between these steps.
class EventCount {
 public:
  std::uint32_t value() const { return value_.load(std::memory_order_seq_cst); }
  void bump() {
    value_.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) > 0) {
      base::futex_wake_all(value_, base::FutexScope::kProcess);
    }
  }
  // Sleeps while the number is `seen`, at most for `limit`; may return earlier.
  void wait(std::uint32_t seen, base::microseconds limit) {
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    base::futex_wait(value_, seen, limit, base::FutexScope::kProcess);
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
  }

 private:
  std::atomic<std::uint32_t> value_{0};
  std::atomic<int> sleepers_{0};
};

// Keeps the first cause of failure, and ignores later ones.
class FirstFailure {
 public:
  bool happened() const { return happened_.load(std::memory_order_acquire); }
  // Returns true if this cause is the first.
  bool record(const base::Status& status) {
    const std::lock_guard lock(mutex_);
    if (happened_.load(std::memory_order_relaxed)) return false;
    status_ = status;
    happened_.store(true, std::memory_order_release);
    return true;
  }
  base::Status status() const {
    const std::lock_guard lock(mutex_);
    return status_;
  }

 private:
  mutable std::mutex mutex_;
  std::atomic<bool> happened_{false};
  base::Status status_;
};

// Knows which threads of this rank wait, and for what. Deadlock detection reads this registry. The registry knows a thread
// from its first wait, or its first submission without a callback, until the thread ends. A known thread that does not wait
// may still submit an operation for which other ranks wait. The registry knows a thread of a framework's pool only while the
// thread waits: after the wait the thread may idle in the pool for ever, and must not count as a thread that may still submit.
class WaitRegistry {
 public:
  explicit WaitRegistry(base::TimeSource time);
  // The calling thread is about to submit, without a callback and not as a thread of a pool.
  void may_submit();
  // The calling thread begins to wait.
  void enter(const CompletionPtr& completion);
  // The wait of the last enter() ends. done: has the operation ended? If it has not, the thread may wait again at once, for
  // example after it has handled signals. So its wait still counts for a moment. now: the approximate time.
  void leave(bool done, base::Clock::time_point now);
  // For each known thread, the operation for which the thread waits. Nothing if a known thread does not wait, or if the
  // registry knows no thread.
  std::optional<std::vector<CompletionPtr>> all_waiting();

 private:
  struct Thread {
    std::weak_ptr<int> life;  // expires with the thread
    bool stays = true;        // does it count after its wait?
    CompletionPtr waits_for;
    // From this time on, an interrupted wait counts as ended. max(): the wait is not interrupted.
    base::Clock::time_point until = base::Clock::time_point::max();
  };
  const base::TimeSource time_;
  const std::uint64_t serial_;  // no two registries have the same; an address may be used again
  std::mutex mutex_;
  std::map<std::thread::id, Thread> threads_;
};

// The process sets that exist now. A pass adds and removes them. Callers look them up to check requests before anything is
// sent.
class SetDirectory {
 public:
  struct Info : ProcessSet {
    // All members can exchange data through their host's window (collectives::SharedChannel), or the set has only one member.
    bool shares_memory = false;
  };
  void add(Info info);
  void remove(std::int32_t id);
  std::optional<Info> find(std::int32_t id) const;
  std::vector<std::int32_t> ids() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::int32_t, Info> sets_;
};

// The settings of SharedState::devices, from the knobs: where the GPU's libraries and the compiled kernels are, and how much
// memory of returned buffers the engine keeps.
device::DeviceSettings device_settings(const base::Config& config, const base::Logger& log);

struct SharedState {
  SharedState(const base::Config& knobs, base::Logger logger, TimelineOwner owner,
              std::shared_ptr<OutputCache> output_cache, base::TimeSource clock = {})
      : config(knobs),
        log(logger),
        time(clock),
        devices(device_settings(knobs, logger)),
        queue(clock),
        recorder({knobs.flight_recorder_size, knobs.flight_recorder_folder, owner.rank}, clock),
        timeline(owner, clock, tracing),
        usage(owner.size, clock),
        waits(clock),
        stall_exemption(clock),
        outputs(std::move(output_cache)) {}

  // The operations of these entries reach a stage together. A caller calls submitted() before it pushes the entries. The holder
  // of the progress token calls reached().
  void submitted(std::span<const Entry> entries) {
    recorder.submitted(entries);
    if (tracing) timeline.submitted(entries);
  }
  void reached(std::span<const Entry> entries, FlightRecorder::Stage stage) {
    for (const Entry& entry : entries) {
      if (entry.request) recorder.reached(entry.completion->record, stage);
    }
    if (tracing) timeline.reached(entries, stage);
    usage.reached(entries, stage);
  }

  // Ends the operations of these entries. If `status` is ok, they have succeeded; otherwise `status` is the reason why they
  // failed. Frees their names, and marks their completions done, so the completions must already hold the results. An entry
  // without a request belongs to no caller of this rank. For the holder of the progress token.
  void finish(std::span<const Entry> entries, const base::Status& status);

  const base::Config config;
  const base::Logger log;
  const base::TimeSource time;
  device::Devices devices;  // outlives the members below, which may hold GPU memory
  TensorQueue queue;
  HandleTable handles;
  FlightRecorder recorder;
  std::atomic<bool> tracing{false};  // is a timeline being written?
  Timeline timeline;
  Usage usage;
  WaitRegistry waits;
  Watchdog watchdog;
  StallExemption stall_exemption;
  std::atomic<std::int64_t> watched{0};  // operations in flight whose submission has a callback
  SetDirectory sets;
  Numbering numbering;
  // Shared with the ArenaDrafts, which may outlive the engine.
  const std::shared_ptr<ArenaDirectory> arenas = std::make_shared<ArenaDirectory>();
  FirstFailure failure;
  const std::shared_ptr<OutputCache> outputs;  // shared with the arrays that use its blocks
  Counters counters;
  // Watchers whose operations have all ended. Only for the holder of the progress token: it takes them, returns the token (or,
  // at shutdown, closes the engine), and then calls them.
  std::vector<std::unique_ptr<Watcher>> to_tell;
  // Wakes waiting callers. Bumped when an operation ends, when the progress token is returned, and when the engine closes.
  EventCount event;
};

}  // namespace hvdlite::engine
