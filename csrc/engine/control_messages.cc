// The part of Cycle that gives each message of another rank to the state machine that it concerns, and carries out Membership's
// actions.
//
// How this rank comes to fail. All causes end in carry_out(Fail):
//
//    a Failure of another rank                  ──► receive ──► hear ──┐
//    a lost rank, a silent host, a long stall   ──► look (cycle.cc) ───┼──► Membership ──► apply ──► carry_out(Fail)
//    an exception in a step                     ──► fail_for ──────────┤
//    an exception of the program                ──► raise_failure ─────┘
//
// carry_out(Fail) makes its steps in this order:
//
//    1  tell_user    writes the log, while the flight recorder still shows which operations are in flight
//    2  record       callers' submissions are refused from here on
//    3  abandon      tries to close the ports to the ledgers: then no operation that this rank announced there is agreed later
//    4  end_all      the callers wake up, and get the text of the first failure
//
// After a later failure only step 4 happens. It ends entries that came into the queue after the first failure, because their
// callers had looked for a failure just before step 2. Ranks may differ in the failure that they see first, but on one rank
// step 4 always gives the text of that rank's first failure.

#include <type_traits>
#include <utility>

#include "engine/cycle.h"
#include "engine/model/text.h"

namespace hvdlite::engine {

using base::ErrorCode;
using base::LogLevel;
using base::Status;

namespace {

// If this rank has no operation in flight when it fails, the log names this many ended operations. (With the log levels trace,
// debug and info the log always names all recorded operations.)
constexpr std::size_t kEndedInLog = 3;

}  // namespace

// --- messages ---------------------------------------------------------------------------------------------------------

// Adds the sender to the text of an error, because a decoder knows only the bytes. After a failure of this rank, the remaining
// messages wait for receive_late().
bool Cycle::receive(bool host_only) {
  bool any = false;
  int source = 0;
  while (transport_.receive_message(&source, &bytes_, host_only)) {
    any = true;
    try {
      Message message = decode(bytes_);
      hear(source, message);
    } catch (const base::Error& error) {
      throw base::Error(error.code(), "cannot handle a message from " +
                                          transport_.describe_peer(source) + ": " + error.what());
    }
    if (shared_.failure.happened()) break;
  }
  return any;
}

// std::visit picks the overload by the message's type. The template below is the overload for all messages to Membership.
void Cycle::hear(int source, Message& message) {
  std::visit([&](auto& content) { hear(source, content); }, message);
}

void Cycle::hear(int source, Verdict& message) {
  if (message.point_to_point) {
    point_to_point_.hear(source, message);
  } else {
    negotiation_.hear(source, std::move(message));
  }
}

template <typename Content>
void Cycle::hear(int source, Content& message) {
  if constexpr (std::is_same_v<Content, Goodbye>) negotiation_.catch_up();
  apply(membership_.hear(source, std::move(message), shared_.time.now(), facts_));
}

// After this rank's failure only Membership hears messages: the other machines have ended all their entries, and must not begin
// new ones.
void Cycle::receive_late() {
  int source = 0;
  while (transport_.receive_message(&source, &bytes_)) {
    apply(membership_.hear_late(source, decode(bytes_)));
  }
}

// --- what Membership wants done ---------------------------------------------------------------------------------------

void Cycle::apply(Membership::Actions actions) {
  for (Membership::Action& action : actions) {
    std::visit([&](auto& each) { carry_out(each); }, action);
  }
}

// Transports carry no message from a rank to itself, so this rank hears such a message at once.
void Cycle::carry_out(Membership::Send& action) {
  if (action.to == transport_.rank()) {
    hear(action.to, action.message);
  } else {
    carrier_.send(action.to, action.message);
  }
}

// This rank fails in any case. So if a send throws, the error is only logged, and the next rank is told.
void Cycle::tell_failure(const std::vector<int>& ranks, const std::string& cause) {
  for (const int rank : ranks) {
    try {
      carrier_.send(rank, Failure{cause});
    } catch (const std::exception& error) {
      shared_.log.write(
          LogLevel::kError, "control",
          "could not tell " + transport_.describe_peer(rank) + " of the failure: " + error.what());
    }
  }
}

// The cause is first stored where the ranks of this host can read it, because sending may fail.
void Cycle::carry_out(const Membership::Announce& action) {
  transport_.announce_failure(action.cause);
  tell_failure(action.ranks, action.cause);
}

void Cycle::carry_out(const Membership::Warn& action) { tell_failure(action.ranks, action.cause); }

void Cycle::carry_out(const Membership::Left& action) {
  negotiation_.left(action.rank, action.why);
  point_to_point_.left(action.rank, action.why);
}

void Cycle::carry_out(const Membership::Undecided& action) {
  negotiation_.fail_undecided(action.coordinator, {ErrorCode::kAborted, kShutDownHere});
}

void Cycle::carry_out(const Membership::Fail& action) {
  // If `told` is true, the failure is an exception of the program, and the user sees this exception anyway.
  if (!action.told) tell_user(action.why);
  if (shared_.failure.record(action.why)) negotiation_.abandon();
  end_all(shared_.failure.status());
}

void Cycle::tell_user(const Status& why) {
  if (shared_.failure.happened()) return;
  // Announcements at a port are recorded only here, because recording each of them would cost time in every operation.
  negotiation_.for_each_set([&](const SetNegotiation& set) {
    set.for_each_announced_at_port([&](const Entry& entry) {
      shared_.reached({&entry, 1}, FlightRecorder::Stage::kAnnounced);
    });
  });
  const std::string record = shared_.config.log_level <= LogLevel::kInfo
                                 ? shared_.recorder.text()
                                 : shared_.recorder.report(kEndedInLog);
  shared_.log.write(
      LogLevel::kError, "control",
      why.message + (record.empty() ? "" : "\nlast operations of this rank:\n" + record));
}

// --- endings ----------------------------------------------------------------------------------------------------------

void Cycle::end_all(const Status& why) {
  execution_.retain_all(why);
  negotiation_.end_all(why);
  point_to_point_.end_all(why);
  shared_.finish(shared_.queue.take_all(), why);
  shared_.finish(taken_, why);
  taken_.clear();
}

}  // namespace hvdlite::engine
