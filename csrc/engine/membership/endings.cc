// How operations end, and how ranks do: in good order, by a failure of their own, or by that of another (the rest of
// Cycle is cycle.cc).

#include "engine/cycle.h"

namespace hvdlite::engine {

using base::ErrorCode;
using base::LogLevel;
using base::Status;
using Stage = FlightRecorder::Stage;

namespace {

// Operations that have ended, of which a failure tells where this rank has none in flight.
constexpr std::size_t kEndedInLog = 3;

}  // namespace

// What is known of the failure before the entry is done.
void Cycle::fail(const Entry& entry, const Status& status) {
  const Request& request = *entry.request;
  entry.completion->failure =
      std::make_unique<const Status>(Status{status.code, status.message, request.set});
  if (request.kind != base::OpKind::kRemoveProcessSet) return;
  const auto kept = sets_.find(request.root);
  if (kept != sets_.end()) kept->second->being_removed = false;
}

// Those without a request are not ours.
void Cycle::finish(std::span<const Entry> entries, const Status& status) {
  shared_.reached(entries, status.ok() ? Stage::kDone : Stage::kFailed);
  shared_.queue.forget(entries);
  std::int64_t ended = 0;
  for (const Entry& entry : entries) {
    if (!entry.request) continue;
    ++ended;
    if (!status.ok()) fail(entry, status);
    Watcher* watcher = entry.completion->watcher;
    if (watcher != nullptr) {
      --shared_.watched;
      if (--watcher->awaited == 0) shared_.to_tell.emplace_back(watcher);
    }
    entry.completion->done.store(1, std::memory_order_release);
  }
  (status.ok() ? shared_.counters.completed : shared_.counters.failed) += ended;
  shared_.event.bump();
}

void Cycle::handle(int source, Goodbye& message) {
  // What the leaver took part in, and the lists it sent, come before its leaving.
  for_each_set([&](ProcessSet& set) {
    if (set.accord && set.accord->ledger().exists()) read_ledger(set);
  });
  // What is decided with the leaver it has to learn, while it still counts as one who is told.
  coordinate();
  left_.insert(source);
  if (heartbeat_) heartbeat_->forget(source);
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
  if (message.answer) send(source, GoodbyeSeen{});
  goodbye_was_seen(source);
}

void Cycle::handle(int source, GoodbyeSeen&) { goodbye_was_seen(source); }

// Its lists came before this: what it has not decided with this rank by now it never will.
void Cycle::goodbye_was_seen(int coordinator) {
  if (goodbye_unseen_.erase(coordinator) == 0) return;
  for (auto& [id, set] : sets_) {
    if (set->coordinator_rank() == coordinator) {
      fail_pending(*set, {ErrorCode::kAborted, kShutDownHere});
    }
  }
}

bool Cycle::say_goodbye() {
  return guard([&] {
    if (said_goodbye_) return true;
    if (!leave_ledgers()) return false;
    said_goodbye_ = true;
    leave();
    return true;
  });
}

// What the others have not agreed to can never complete here.
void Cycle::leave() {
  const Status why = {ErrorCode::kAborted, kShutDownHere};
  finish(shared_.queue.take_all(), why);
  finish(std::exchange(held_removals_, {}), why);
  // What was announced may be decided already, and then the others wait for this rank's part in it.
  for (auto& [id, set] : sets_) {
    if (!set->is_member()) continue;
    const int coordinator = set->coordinator_rank();
    if (coordinator == transport_.rank() || left_.contains(coordinator)) {
      fail_pending(*set, why);
    } else {
      fail_undecided(*set, why);
      if (!set->pending.empty()) goodbye_unseen_.insert(coordinator);
    }
  }
  transport_.announce_leaving();
  for (int peer = 0; peer < transport_.size(); ++peer) {
    if (peer == transport_.rank() || left_.contains(peer)) continue;
    send(peer, Goodbye{goodbye_unseen_.contains(peer)});
  }
}

bool Cycle::drained() {
  return guard([&] {
    return goodbye_unseen_.empty() && executor_.idle() && executor_.settled() &&
           transport_.messages_flushed();
  });
}

void Cycle::handle(int source, Failure& message) {
  peer_failed(source, message.cause);
  send(source, FailureSeen{});
}

// Only who has failed is told so, and then hear_who_knows takes it.
void Cycle::handle(int, FailureSeen&) {}

// After a failure no message counts any more, but for who else knows of one. A rank that has failed itself need not be told.
void Cycle::hear_who_knows() {
  int source = 0;
  std::vector<std::byte> bytes;
  while (transport_.receive_message(&source, &bytes)) {
    const Message message = decode(bytes);
    const bool fails = std::holds_alternative<Failure>(message);
    if (fails) send(source, FailureSeen{});
    if (fails || std::holds_alternative<FailureSeen>(message) ||
        std::holds_alternative<Goodbye>(message)) {
      failure_unseen_.erase(source);
    }
  }
}

void Cycle::peer_failed(int rank, const std::string& text) {
  left_.insert(rank);
  fail_all({ErrorCode::kPeerLost, transport_.describe_peer(rank) + " " + text + ". " + kShutDown});
}

void Cycle::below_failed(const std::exception& error) {
  const auto* known = dynamic_cast<const base::Error*>(&error);
  // MPI says that somebody is lost, but not who.
  if (known != nullptr && known->code() == ErrorCode::kPeerLost) {
    try {
      look_for_lost_peers();
    } catch (const std::exception&) {
      // Then the error itself is the cause.
    }
  }
  if (shared_.failure.happened()) return;
  if (known != nullptr) {
    engine_failed(known->code(), error.what());
  } else {
    engine_failed(ErrorCode::kInternal, std::string("hvdlite's engine failed: ") + error.what());
  }
}

void Cycle::raise_failure(const std::string& cause) {
  guard([&] {
    for (int peer = 0; peer < transport_.size(); ++peer) {
      if (peer != transport_.rank() && !left_.contains(peer)) failure_unseen_.insert(peer);
    }
    broadcast_failure(cause);
    give_up({ErrorCode::kAborted,
             transport_.describe_peer(transport_.rank()) + " " + cause + ". " + kShutDown});
    return true;
  });
}

// An error below us: this rank can go on no more, and the others must not wait for it.
void Cycle::engine_failed(ErrorCode code, const std::string& text) {
  broadcast_failure("failed: " + text);
  fail_all(
      {code, transport_.describe_peer(transport_.rank()) + " failed: " + text + ". " + kShutDown});
}

void Cycle::broadcast_failure(const std::string& cause) {
  try {
    transport_.announce_failure(cause);
    send_to_all(Failure{cause});
  } catch (const std::exception& error) {
    shared_.log.write(LogLevel::kError, "control",
                      std::string("could not tell the other ranks: ") + error.what());
  }
}

std::vector<Entry> Cycle::take_pending(ProcessSet& set) {
  std::vector<Entry> entries = set.accord ? set.accord->take_all() : std::vector<Entry>();
  for (auto& [name, pending] : std::exchange(set.pending, {})) {
    entries.push_back(std::move(pending.entry));
  }
  set.to_announce.clear();
  return entries;
}

// What no other rank has heard of, so that it cannot be decided.
void Cycle::fail_undecided(ProcessSet& set, const Status& why) {
  decltype(set.pending) announced;
  for (auto at = set.pending.begin(); at != set.pending.end();) {
    const auto entry = at++;
    if (entry->second.announced) announced.insert(set.pending.extract(entry));
  }
  fail_pending(set, why);
  set.pending = std::move(announced);
}

void Cycle::fail_pending(ProcessSet& set, const Status& why) {
  for (Entry& entry : take_pending(set)) {
    finish({&entry, 1}, {why.code, describe(*entry.request) + ": " + why.message});
  }
}

void Cycle::fail_all(const Status& why) {
  if (!shared_.failure.happened()) {
    // Only now, for nobody else asks: recording it at each announcement in a ledger would cost every operation.
    for (const auto& [id, set] : sets_) {
      if (!set->accord) continue;
      set->accord->for_each_announced([&](const Entry& entry) {
        shared_.reached({&entry, 1}, FlightRecorder::Stage::kAnnounced);
      });
    }
    const std::string record = shared_.config.log_level <= LogLevel::kInfo
                                   ? shared_.recorder.text()
                                   : shared_.recorder.report(kEndedInLog);
    shared_.log.write(
        LogLevel::kError, "control",
        why.message + (record.empty() ? "" : "\nlast operations of this rank:\n" + record));
  }
  give_up(why);
}

void Cycle::give_up(const Status& why) {
  if (shared_.failure.record(why)) abandon_ledgers();
  end_all(shared_.failure.status());
}

void Cycle::end_all(const Status& why) {
  executor_.park_all(why, shared_.failure.happened());
  for (auto& [id, set] : sets_) finish(take_pending(*set), why);
  finish(std::exchange(held_removals_, {}), why);
  finish(shared_.queue.take_all(), why);
}

}  // namespace hvdlite::engine
