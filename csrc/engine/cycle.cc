// A pass makes its steps in the order in which work goes through the engine:
//
//    receive ──► take_queued ──► Negotiation::advance ──► Execution::advance ──► Membership::look
//
// So work goes as far as possible in one pass: an entry from the queue can be announced in the pass that takes it. If only
// this announcement was missing, the operation can also start in the same pass. In the opposite order each step would wait for
// the next pass.
//
// For which messages a pass looks (pass_once); the first line that holds decides. A look in the window costs a few reads of
// memory, and a look for all messages also asks MPI:
//
//    a thorough pass, or some ranks do not agree in memory     all messages
//    a send or receive waits, and all ranks share one window   those in the window
//    a send or receive waits, and there is no such window      all messages
//    none of these                                             none: what other ranks announce is in the ledger
//
// A pass has "moved" if one of the first four steps did something, or if the transport's activity() has changed.
// Execution::advance does not say whether a running operation has moved data, but activity() counts completed messages and
// steps in shared memory.
//
// A rank that has failed still makes passes: it ends what callers have queued meanwhile, answers the messages that need an
// answer, and sends the messages that tell the others of its failure.
#include "engine/cycle.h"

#include <algorithm>
#include <new>
#include <utility>

#include "engine/model/text.h"
#include "engine/set_up.h"
#include "kernels/float_mode.h"

namespace hvdlite::engine {

using base::Clock;
using base::ErrorCode;
using base::Status;

namespace {

// Small messages of one sender that travel whole (kWholeBytes) may wait at the receiving rank for their receives. This is the
// limit to their bytes.
constexpr std::size_t kUnreceivedBytes = std::size_t{1} << 20;

// If all ranks share one window, a message for a send or receive always comes through it, and pass_once() need not ask MPI for
// such messages.
bool do_all_share_window(transport::Transport& transport) {
  bool all = transport.window() != nullptr;
  for (int rank = 0; rank < transport.size(); ++rank) {
    all = all && transport.host_of(rank) == transport.host_of(transport.rank());
  }
  return all;
}

}  // namespace

// The order of the data members matters. carrier_ comes before point_to_point_ and negotiation_, whose constructors get
// carrier_ as their Effects. carrier_'s constructor only stores the reference to point_to_point_, which does not exist yet.
// negotiation_ comes last of the three: its constructor adds the set of all ranks, and carrier_ hands the set on to
// point_to_point_.
Cycle::Cycle(transport::Transport& transport, SharedState& shared, collectives::Selection selection)
    : transport_(transport),
      shared_(shared),
      share_window_(do_all_share_window(transport)),
      patience_(patience_of(shared.config.cycle_time, transport.size())),
      execution_(transport, selection, shared),
      membership_(roster_of(transport), limits_of(shared.config), shared.time.now()),
      carrier_(transport, shared, membership_, execution_, point_to_point_),
      point_to_point_({transport.rank(), transport.size(), kWholeBytes, kUnreceivedBytes},
                      carrier_),
      negotiation_(settings_of(transport, shared.config), transport.size(), regions_of(transport),
                   shared.counters, carrier_),
      facts_(transport, shared, negotiation_, point_to_point_, execution_) {}

// --- a pass -----------------------------------------------------------------------------------------------------------

template <typename Step>
bool Cycle::guard(Step step) {
  const bool failed_before = shared_.failure.happened();
  try {
    return step();
  } catch (const std::exception& error) {
    fail_for(error);
  }
  return !failed_before;
}

// The thread that makes the pass may belong to a framework, and may flush subnormal floats to zero. So the pass first sets the
// standard way of computing (StandardFloats).
bool Cycle::pass(bool flush, bool thorough) {
  const kernels::StandardFloats floats;
  ++shared_.counters.passes;
  return guard([&] { return pass_once(flush, thorough); });
}

bool Cycle::pass_once(bool flush, bool thorough) {
  if (shared_.failure.happened()) {
    end_all(shared_.failure.status());
    receive_late();
    // Continues to send the messages that tell the other ranks of the failure.
    transport_.messages_flushed();
    return false;
  }
  shared_.usage.forget_now();
  // Does this pass look for messages of all ranks, not only of those that share a window with this one?
  const bool looks_far =
      thorough || !negotiation_.agrees_in_memory() || (point_to_point_.waits() && !share_window_);
  bool moved = (looks_far || point_to_point_.waits()) && receive(!looks_far);
  moved = take_queued(flush) || moved;
  moved = negotiation_.advance() || moved;
  moved = execution_.advance() || moved;
  if (transport_.activity() != seen_activity_) {
    seen_activity_ = transport_.activity();
    moved = true;
  }
  if (moved) {
    if (!execution_.idle())
      shared_.usage.forget_now();  // the pass may have spent a long time in advancing operations
    moved_at_ = shared_.usage.now();
  }
  const Clock::time_point now = shared_.usage.now();
  if (membership_.due(now)) apply(membership_.look(now, facts_));
  shared_.counters.data_bytes_sent.store(static_cast<std::int64_t>(transport_.bytes_sent()));
  return moved;
}

bool Cycle::take_queued(bool flush) {
  Clock::time_point since;
  shared_.queue.take(flush, shared_.config.fusion_threshold, patience_, &taken_, &since);
  if (taken_.empty()) return false;
  if (shared_.tracing) shared_.timeline.announcing();
  shared_.usage.taken(taken_, since);
  for (Entry& entry : taken_) {
    admit(entry);
    entry.request.reset();  // it has an owner now, or has ended: end_all() must not end it again
  }
  taken_.clear();
  return true;
}

// Negotiation refuses a collective on a set whose removal this rank has asked for. Negotiation does not see sends and receives,
// so this function refuses those on such a set.
void Cycle::admit(Entry& entry) {
  const Request& request = *entry.request;
  if (!base::is_point_to_point(request.kind)) return negotiation_.admit(entry);
  if (negotiation_.is_removing(request.set)) {
    return shared_.finish({&entry, 1},
                          {ErrorCode::kInvalidArgument, describe(request) + ": " + kBeingRemoved});
  }
  shared_.usage.moves(request.kind, request.bytes(), 1);
  point_to_point_.admit(entry);
}

// If entries are queued, `due` is at least 1 µs, because 0 means that nothing will be due.
Outlook Cycle::outlook() const {
  Outlook outlook;
  outlook.idle = std::chrono::duration_cast<base::microseconds>(shared_.time.now() - moved_at_);
  outlook.moving_data = !execution_.idle();
  outlook.gpu_at_work = !execution_.settled();
  outlook.negotiating = negotiation_.has_pending() || point_to_point_.waits();
  outlook.watching = membership_.watching();
  if (negotiation_.tries_again()) {
    outlook.due = pause_before_trying_again(outlook.idle);
  } else if (const auto due = shared_.queue.due(patience_)) {
    outlook.due =
        std::max(base::microseconds(1),
                 std::chrono::duration_cast<base::microseconds>(*due - shared_.time.now()));
  }
  return outlook;
}

// --- endings ----------------------------------------------------------------------------------------------------------

// Until Negotiation::close() has succeeded, an operation that this rank has announced at a port (Agreement, the way to a
// ledger) may still become agreed. If it does, the others need this rank for it. So this rank fails no entry before close()
// has succeeded. The Goodbyes are sent last. Because messages arrive in order, the others first handle all earlier messages of
// this rank.
bool Cycle::say_goodbye() {
  return guard([&] {
    if (membership_.said_goodbye()) return true;
    if (!negotiation_.close()) return false;
    const Status why = {ErrorCode::kAborted, kShutDownHere};
    // This rank has not announced the entries in the queue, and announces nothing more, so they can never be agreed.
    shared_.finish(shared_.queue.take_all(), why);
    std::set<int> undecided = negotiation_.leave(why);
    point_to_point_.leave(why);
    transport_.announce_leaving();
    apply(membership_.leave(std::move(undecided)));
    return true;
  });
}

bool Cycle::drained() {
  return guard([&] {
    return membership_.goodbyes_answered() && !point_to_point_.waits_for_sender() &&
           execution_.idle() && execution_.settled() && transport_.messages_flushed();
  });
}

void Cycle::raise_failure(const std::string& cause) {
  guard([&] {
    apply(membership_.raise(cause));
    return true;
  });
}

// The text tells four causes apart: a lost rank, another error that hvdlite itself reports (base::Error), a lack of memory, and
// any other exception, which hvdlite does not expect and which is therefore a bug.
void Cycle::fail_for(const std::exception& error) {
  const auto* known = dynamic_cast<const base::Error*>(&error);
  // Some rank is lost. If the search finds the lost rank, the failure names that rank.
  if (known != nullptr && known->code() == ErrorCode::kPeerLost) {
    try {
      apply(membership_.look_for_lost(facts_));
    } catch (const std::exception&) {
      // The search has failed, too. So the first error is the only known cause.
    }
  }
  if (shared_.failure.happened()) return;
  if (known != nullptr) {
    apply(membership_.fail(known->code(), error.what()));
  } else if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    apply(membership_.fail(ErrorCode::kSystem, kNoMemory));
  } else {
    apply(membership_.fail(ErrorCode::kInternal,
                           std::string("hvdlite's engine failed: ") + error.what()));
  }
}

}  // namespace hvdlite::engine
