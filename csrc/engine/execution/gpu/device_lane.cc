// How an operation passes through the lane. Each advance() does four things, in this order:
//
//    link            comes up (device_link.cc); until then no operation starts
//    start()         waiting_ ──► running_, in the agreed order; if the route is refused, the operation ends with an error
//    step()          running_ ──► handed_over_, when the GPU has all work of the operation; its entries are then done
//    look_after()    handed_over_ ──► forgotten, when the GPU has reached the operation's event
//
// All members start their operations in the same order, so they make NCCL's calls in the same order. An example with the
// operations A (staged), B (NCCL) and C (staged):
//
//    A starts     it stays in running_ until its data have passed through host memory, and the copies back are enqueued
//    B starts     when A has started: B does not wait until A has moved its data
//    C waits      until B is handed over, because until then only NCCL may enqueue work in the link's stream
//
// While an NCCL operation runs, no other operation starts. So an NCCL operation is the last one in running_, and runs_nccl()
// looks only at that place.
//
// Staged operations wait for their turn: each begins to move data only when all earlier ones have begun. An example shows why.
// Let A be an allreduce, and C a broadcast from rank 0, for which rank 1 copies nothing from its GPU. If C did not wait for its
// turn, this could happen:
//
//    rank 0    the copy of A arrives before the copy of C, because both are in one stream; A moves first
//    rank 1    the copy of A has not arrived; C needs no copy, and moves first
//
// Each rank uses the shared memory for one operation after the other, in the order in which the rank has begun to move their
// data. So rank 0 would move A and rank 1 would move C through the same memory at the same time. Therefore, of the staged
// operations that have yet to begin to move data (awaits_turn()), step() advances only the oldest. The operations that already
// move data, and those of NCCL, are always advanced.
//
// If a kernel waits for a lost rank, the GPU never reaches the later events of the stream. So while the GPU has unfinished
// work, look_after() also asks the communicator for errors.
#include "engine/execution/gpu/device_lane.h"

namespace hvdlite::engine {

using base::Clock;
using base::ErrorCode;
using base::Status;

namespace {

// The least time between two questions to NCCL about errors.
constexpr base::microseconds kLookInterval{1'000};
// In each kReportInterval a lane logs at most kLinesInInterval lines about results that are not finite. A line names at most
// kNamesInLine tensors.
constexpr std::chrono::seconds kReportInterval{10};
constexpr int kLinesInInterval = 8;
constexpr std::size_t kNamesInLine = 8;

}  // namespace

bool DeviceLane::idle() const {
  return waiting_.empty() && running_.empty() && !link_.is_coming_up();
}

bool DeviceLane::advance() {
  bool moved = false;
  if (link_.is_coming_up() && !waiting_.empty()) {
    moved = naming(waiting_.front().fused.first(), [&] { return link_.advance(); });
  }
  moved = start() || moved;
  moved = step() || moved;
  return look_after() || moved;
}

// All members make the same choice: serves() depends only on the agreed operation and on facts of the link that are equal on
// all members.
std::unique_ptr<DeviceOperation> DeviceLane::make(QueuedOperation next) {
  Counters& counters = context_.shared.counters;
  if (link_.route() == Route::kNccl && NcclOperation::serves(next.fused, link_)) {
    ++counters.nccl_ops;
    return std::make_unique<NcclOperation>(std::move(next), link_);
  }
  ++counters.staged_ops;
  collectives::Comm comm = set_->comm(context_.transport, next.tag);
  return std::make_unique<StagedOperation>(std::move(next), link_, std::move(comm));
}

bool DeviceLane::start() {
  bool started = false;
  while (!waiting_.empty() && !runs_nccl() && !link_.is_coming_up() &&
         running_.size() < kMaxRunning && (running_.empty() || running_bytes_ < kMaxRunningBytes)) {
    QueuedOperation next = std::move(waiting_.front());
    waiting_.pop_front();
    started = true;
    if (link_.route() == Route::kRefused) {
      context_.shared.finish(
          next.entries,
          {ErrorCode::kUnsupported, describe(next.fused.first()) +
                                        ": the ranks cannot exchange GPU tensors: " + link_.why()});
      continue;
    }
    context_.shared.reached(next.entries, FlightRecorder::Stage::kStarted);
    DeviceOperation& operation = *running_.emplace_back(make(std::move(next)));
    running_bytes_ += operation.bytes();
    naming(operation.first_request(), [&] { operation.start(); });
    // Most NCCL operations are handed over already in this step(), so that the next operation can start at once.
    step();
  }
  return started;
}

// An operation may end before one that started earlier. So operations leave running_ from any place. An operation without an
// event has given the GPU no work, so the lane keeps nothing of it.
bool DeviceLane::step() {
  bool finished = false;
  bool one_awaits = false;
  for (auto operation = running_.begin(); operation != running_.end();) {
    bool done = false;
    if (!one_awaits || !(*operation)->awaits_turn()) {
      done = naming((*operation)->first_request(), [&] { return (*operation)->advance(); });
      one_awaits = one_awaits || (*operation)->awaits_turn();
    }
    if (!done) {
      ++operation;
      continue;
    }
    running_bytes_ -= (*operation)->bytes();
    HandedOver& left = (*operation)->handed_over();
    if (left.event) {
      // When the GPU has reached the event, the flags are valid, and the watcher wakes the engine, which reports the flags.
      if (left.check.flags) context_.watcher.watch(left.event);
      handed_over_.push_back(std::move(left));
    }
    context_.shared.finish((*operation)->entries(), Status{});
    operation = running_.erase(operation);
    finished = true;
  }
  return finished;
}

// Looks at the oldest event first, and at the next one only if the GPU has reached the oldest. Events of staged operations and
// of NCCL operations are in different streams, so the GPU may reach a newer event before an older one. In that case the lane
// keeps the newer event until the GPU has reached all older ones.
bool DeviceLane::look_after() {
  bool moved = false;
  while (!handed_over_.empty()) {
    HandedOver& oldest = handed_over_.front();
    const bool done = naming(*oldest.request, [&] {
      const Clock::time_point now = context_.shared.time.now();
      if (link_.route() == Route::kNccl && now - looked_at_ > kLookInterval) {
        looked_at_ = now;
        // The answer is not used: busy() throws the communicator's error, if there is one.
        static_cast<void>(link_.busy());
      }
      return oldest.event->finished();
    });
    if (!done) break;
    if (oldest.check.flags) report_not_finite(oldest.check);
    handed_over_.pop_front();
    moved = true;
  }
  return moved;
}

void DeviceLane::report_not_finite(const FiniteCheck& check) {
  const auto* flags = static_cast<const std::int32_t*>(check.flags.data());
  std::string names;
  std::size_t count = 0;
  for (std::size_t i = 0; i < check.requests.size(); ++i) {
    if (flags[i] == 0) continue;
    if (count++ < kNamesInLine)
      names += (names.empty() ? "'" : ", '") + display_name(*check.requests[i]) + "'";
  }
  if (count == 0) return;
  // Without a limit, the log of a training that has diverged would fill the disk.
  const Clock::time_point now = context_.shared.time.now();
  if (now - counted_since_ > kReportInterval) {
    counted_since_ = now;
    lines_ = 0;
  }
  if (lines_++ >= kLinesInInterval) {
    ++unreported_;
    return;
  }
  if (count > kNamesInLine) names += " and " + std::to_string(count - kNamesInLine) + " more";
  context_.shared.log.write(
      base::LogLevel::kWarning, "device",
      "infinite or NaN values in the allreduced tensors " + names + " in process set " +
          std::to_string(set_->id.id) + " (HVDLITE_CHECK_FINITE" +
          (unreported_ > 0 ? "; " + std::to_string(unreported_) +
                                 " FusedOps were not reported since the last such line"
                           : std::string()) +
          ")");
  unreported_ = 0;
}

// Without the abort of the communicator, a kernel that waits for a lost rank would run for ever, and the GPU would never reach
// the event after which the buffers are free. If no such event can be recorded, the buffers are never freed. Operations that
// have not started have no buffers.
void DeviceLane::abandon(const Status& why) {
  link_.abort();
  for (auto& operation : running_) {
    operation->abandon();
    context_.shared.finish(operation->entries(), why);
  }
  for (QueuedOperation& waiting : waiting_) context_.shared.finish(waiting.entries, why);
  waiting_.clear();
  const device::EventPtr last = handed_over_.empty() ? nullptr : link_.last_event();
  for (HandedOver& left : handed_over_) {
    if (last) {
      left.check.flags.free_after(last);
    } else {
      left.check.flags.abandon();
    }
  }
  handed_over_.clear();
}

}  // namespace hvdlite::engine
