// How operations end, and how ranks do: in good order, by a failure of their own, or by that of another (the rest of
// Cycle is cycle.cc).

#include "engine/cycle.h"

namespace hvdlite::engine {

using base::ErrorCode;
using base::LogLevel;
using base::Status;
using Stage = FlightRecorder::Stage;

namespace {

// Operations of the flight recorder that a failure prints.
constexpr std::size_t kRecordsInLog = 16;

}  // namespace

void Cycle::finish(Entry& entry, const Status& status) {
  Completion& completion = *entry.completion;
  completion.status = status;
  completion.status.set = entry.request->set;
  shared_.recorder.reached(completion.record, status.ok() ? Stage::kDone : Stage::kFailed);
  ++(status.ok() ? shared_.counters.completed : shared_.counters.failed);
  shared_.queue.forget(*entry.request);
  if (!status.ok() && entry.request->kind == base::OpKind::kRemoveProcessSet) {
    const auto kept = sets_.find(entry.request->root);
    if (kept != sets_.end()) kept->second->being_removed = false;
  }
  completion.done.store(1, std::memory_order_release);
  shared_.event.bump();
}

void Cycle::handle(int source, Goodbye&) {
  // What the leaver took part in, and the lists it sent, come before its leaving.
  for_each_set([&](ProcessSet& set) {
    if (set.accord && set.accord->ledger().exists()) read_ledger(set);
  });
  left_.insert(source);
  failure_unseen_.erase(source);
  if (detector_) detector_->report(source, BlockedReport{});
  const Status why = {
      ErrorCode::kAborted,
      transport_.describe_peer(source) +
          " has left: its program ended or called shutdown(), and it takes part in nothing more. " +
          kShutDown + " on that rank"};
  for (auto& [id, set] : sets_) {
    const int member = set->index_of(source);
    if (member < 0 || !set->is_member()) continue;
    if (set->coordinator) set->coordinator->leave(member, why);
    if (set->accord) set->accord->to_close = true;
    if (set->coordinator_rank() == source) {
      set->broken = why;
      fail_pending(*set, why);
    }
  }
}

// Leaving. What the others have not agreed to can never complete here.
bool Cycle::say_goodbye() {
  if (said_goodbye_) return true;
  if (!leave_ledgers()) return false;
  said_goodbye_ = true;
  const Status why = {ErrorCode::kAborted, kShutDownHere};
  for (Entry& entry : shared_.queue.take(true, 0, base::microseconds(0))) finish(entry, why);
  for (Entry& entry : std::exchange(held_removals_, {})) finish(entry, why);
  for (auto& [id, set] : sets_) fail_pending(*set, why);
  transport_.announce_leaving();
  send_to_all(Goodbye{});
  return true;
}

bool Cycle::drained() { return executor_.idle() && transport_.messages_flushed(); }

void Cycle::handle(int source, Failure& message) {
  peer_failed(source, message.cause);
  send(source, FailureSeen{});
}

void Cycle::handle(int source, FailureSeen&) { failure_unseen_.erase(source); }

void Cycle::peer_failed(int rank, const std::string& text) {
  left_.insert(rank);
  fail_all({ErrorCode::kPeerLost, transport_.describe_peer(rank) + " " + text + ". " + kShutDown});
}

// An error below us: this rank can go on no more, and the others must not wait for it.
void Cycle::engine_failed(ErrorCode code, const std::string& text) {
  try {
    broadcast_failure("failed: " + text);
  } catch (const std::exception& error) {
    shared_.log.write(LogLevel::kError, "control",
                      std::string("could not tell the other ranks: ") + error.what());
  }
  fail_all(
      {code, transport_.describe_peer(transport_.rank()) + " failed: " + text + ". " + kShutDown});
}

void Cycle::broadcast_failure(const std::string& cause) {
  transport_.announce_failure(cause);
  for (int peer = 0; peer < transport_.size(); ++peer) {
    if (peer == transport_.rank() || left_.contains(peer)) continue;
    failure_unseen_.insert(peer);
  }
  send_to_all(Failure{cause});
}

void Cycle::fail_pending(ProcessSet& set, const Status& why) {
  for (auto& [name, pending] : std::exchange(set.pending, {})) {
    finish(pending.entry, {why.code, describe(*pending.entry.request) + ": " + why.message});
  }
  set.to_announce.clear();
  if (set.accord) set.accord->take_all();
}

void Cycle::fail_all(const Status& why) {
  if (!shared_.failure.happened()) {
    const std::string record = shared_.recorder.text(kRecordsInLog);
    shared_.log.write(
        LogLevel::kError, "control",
        why.message + (record.empty() ? "" : "\nlast operations of this rank:\n" + record));
  }
  shared_.failure.record(why);
  end_all(shared_.failure.status());
}

void Cycle::end_all(const Status& why) {
  executor_.park_all(why);
  for (auto& [id, set] : sets_) {
    for (auto& [name, pending] : std::exchange(set->pending, {})) finish(pending.entry, why);
    set->to_announce.clear();
    if (set->accord) set->accord->take_all();
  }
  for (Entry& entry : std::exchange(held_removals_, {})) finish(entry, why);
  for (Entry& entry : shared_.queue.take(true, 0, base::microseconds(0))) finish(entry, why);
}

}  // namespace hvdlite::engine
