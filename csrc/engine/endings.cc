// How operations end, and how ranks do: in good order, by a failure of their own, or by that of another (the rest of
// Cycle is cycle.cc).

#include "engine/cycle.h"
#include "engine/model/text.h"

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

// --- what Membership has to be done ---------------------------------------------------------------------------------------

void Cycle::apply(Membership::Actions actions) {
  for (Membership::Action& action : actions) {
    std::visit([&](auto& each) { carry_out(each); }, action);
  }
}

void Cycle::carry_out(Membership::Send& action) {
  if (action.to == transport_.rank()) {
    std::visit([&](auto& content) { handle(action.to, content); }, action.message);
  } else {
    send(action.to, action.message);
  }
}

void Cycle::carry_out(Membership::Announce& action) {
  try {
    transport_.announce_failure(action.cause);
    for (const int rank : action.ranks) send(rank, Failure{action.cause});
  } catch (const std::exception& error) {
    shared_.log.write(LogLevel::kError, "control",
                      std::string("could not tell the other ranks: ") + error.what());
  }
}

void Cycle::carry_out(Membership::Warn& action) {
  try {
    for (const int rank : action.ranks) send(rank, Failure{action.cause});
  } catch (const base::Error& error) {
    shared_.log.write(LogLevel::kError, "control",
                      std::string("could not tell the other hosts: ") + error.what());
  }
}

void Cycle::carry_out(Membership::Fail& action) {
  if (!action.told) tell_user(action.why);
  if (shared_.failure.record(action.why)) abandon_ledgers();
  end_all(shared_.failure.status());
}

void Cycle::carry_out(Membership::Left& action) {
  for (auto& [id, set] : sets_) {
    const int member = set->index_of(action.rank);
    if (member < 0 || !set->is_member()) continue;
    if (set->coordinator) set->coordinator->leave(member, action.why);
    if (set->accord) set->accord->to_close = true;
    if (set->coordinator_rank() == action.rank) {
      set->broken = action.why;
      fail_pending(*set, action.why);
    }
  }
}

void Cycle::carry_out(Membership::Undecided& action) {
  for (auto& [id, set] : sets_) {
    if (set->coordinator_rank() == action.coordinator) {
      fail_pending(*set, {ErrorCode::kAborted, kShutDownHere});
    }
  }
}

void Cycle::carry_out(Membership::Log& action) {
  shared_.log.write(action.level, "control", action.text);
}

// --- how this rank ends ---------------------------------------------------------------------------------------------------

void Cycle::handle(int source, Goodbye& message) {
  // What the leaver took part in, and the lists it sent, come before its leaving.
  for_each_set([&](ProcessSet& set) {
    if (set.accord && set.accord->ledger().exists()) read_ledger(set);
  });
  // What is decided with the leaver it has to learn, while it still counts as one who is told.
  coordinate();
  apply(membership_.hear(source, message, shared_.time.now(), *facts_));
}

bool Cycle::say_goodbye() {
  return guard([&] {
    if (membership_.said_goodbye()) return true;
    if (!leave_ledgers()) return false;
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
  std::set<int> undecided;
  for (auto& [id, set] : sets_) {
    if (!set->is_member()) continue;
    const int coordinator = set->coordinator_rank();
    if (coordinator == transport_.rank() || membership_.roster().has_left(coordinator)) {
      fail_pending(*set, why);
    } else {
      fail_undecided(*set, why);
      if (!set->pending.empty()) undecided.insert(coordinator);
    }
  }
  transport_.announce_leaving();
  apply(membership_.leave(std::move(undecided)));
}

bool Cycle::drained() {
  return guard([&] {
    return membership_.goodbyes_answered() && executor_.idle() && executor_.settled() &&
           transport_.messages_flushed();
  });
}

// After a failure.
void Cycle::hear_who_knows() {
  int source = 0;
  std::vector<std::byte> bytes;
  while (transport_.receive_message(&source, &bytes)) {
    apply(membership_.hear_late(source, decode(bytes)));
  }
}

void Cycle::below_failed(const std::exception& error) {
  const auto* known = dynamic_cast<const base::Error*>(&error);
  // MPI says that somebody is lost, but not who.
  if (known != nullptr && known->code() == ErrorCode::kPeerLost) {
    try {
      apply(membership_.look_for_lost(*facts_));
    } catch (const std::exception&) {
      // Then the error itself is the cause.
    }
  }
  if (shared_.failure.happened()) return;
  if (known != nullptr) {
    apply(membership_.fail(known->code(), error.what()));
  } else {
    apply(membership_.fail(ErrorCode::kInternal,
                           std::string("hvdlite's engine failed: ") + error.what()));
  }
}

void Cycle::raise_failure(const std::string& cause) {
  guard([&] {
    apply(membership_.raise(cause));
    return true;
  });
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

// Of the first failure.
void Cycle::tell_user(const Status& why) {
  if (shared_.failure.happened()) return;
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

void Cycle::end_all(const Status& why) {
  executor_.park_all(why, shared_.failure.happened());
  for (auto& [id, set] : sets_) finish(take_pending(*set), why);
  finish(std::exchange(held_removals_, {}), why);
  finish(shared_.queue.take_all(), why);
}

}  // namespace hvdlite::engine
