// The core of the engine. The thread that holds the progress token (engine.h) calls pass() again and again. A pass gives
// messages and queued entries to the four state machines Negotiation, PointToPoint, Execution and Membership, lets them
// advance, and carries out what they want.
// Thread: the holder of the progress token only. Owns: the machines. Blocks: only on GPUs (execution.h) and on the lock of
// Numbering (numbering.h). Throws: the constructor, end_all() and close(). In all other functions any exception (of the
// transport, a GPU, a lack of memory, a bug in hvdlite) makes this rank fail, with the exception's text as the cause
// (SharedState::failure).
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "engine/carrier.h"
#include "engine/execution/execution.h"
#include "engine/intake/shared_state.h"
#include "engine/membership/membership.h"
#include "engine/negotiation/negotiation.h"
#include "engine/pacing.h"
#include "engine/system_facts.h"
#include "transport/transport.h"

namespace hvdlite::engine {

// The size in bytes of the largest point-to-point message that travels whole, inside its Offer (point_to_point.h). For such a
// message, waiting for a Clearance would take longer than sending the bytes.
inline constexpr std::size_t kWholeBytes = 8192;

class Cycle {
 public:
  Cycle(transport::Transport& transport, SharedState& shared, collectives::Selection selection);

  // Returns true if anything happened. flush: announce queued entries now, because a caller waits. thorough: look for the
  // control messages of all ranks. If all ranks of the job agree in shared memory, they send few control messages, and this
  // look costs more than the rest of the pass. So a caller that drives asks for the look only in some passes.
  bool pass(bool flush, bool thorough);
  Outlook outlook() const;
  // When anything last happened.
  base::Clock::time_point moved_at() const { return moved_at_; }

  // say_goodbye: fails entries that are not agreed, except those that a coordinator may still decide, and sends a Goodbye to
  // all other ranks. If it returns false, call it again. drained: true when agreed operations, matched sends and receives, and
  // the GPUs' work are done, and all messages are sent. After the Goodbyes there is one more condition: each coordinator that
  // was asked for an answer has answered or left. If another rank cannot be reached any more, both functions make this rank
  // fail, as a pass does.
  bool say_goodbye();
  bool drained();
  // raise_failure: makes this rank fail with this cause, ends all its operations, and tells the cause to every rank that has
  // not left. failure_seen_by_all: see FailureDetector::failure_seen_by_all().
  void raise_failure(const std::string& cause);
  bool failure_seen_by_all() const { return membership_.failure_seen_by_all(); }
  // The last step; call no function after it.
  void close() {
    negotiation_.stop_reading();
    execution_.close(transport_.close());
  }
  // Ends all operations of this rank with this error.
  void end_all(const base::Status& why);

 private:
  // Calls step() and returns its result. If step() throws, this rank fails and tells the other ranks the cause; guard() then
  // returns true if this is the rank's first failure.
  template <typename Step>
  bool guard(Step step);
  void fail_for(const std::exception& error);
  bool pass_once(bool flush, bool thorough);
  bool take_queued(bool flush);
  void admit(Entry& entry);

  // --- messages of other ranks, and Membership's actions (control_messages.cc) ---
  // Handles all messages that have arrived, or (host_only) only those of ranks that share a window with this rank; stops if
  // this rank fails. Returns true if there were any messages.
  bool receive(bool host_only);
  // For a rank that has failed: handles only what Membership::hear_late handles, and drops all other messages.
  void receive_late();
  // Gives the message to the machine that it concerns. A Verdict goes to Negotiation or PointToPoint. If a kind of message has
  // no overload in this class, the message goes to Membership (the template). Before Membership gets a Goodbye, Negotiation
  // carries out what was agreed with the leaving rank (Negotiation::catch_up).
  void hear(int source, Message& message);
  void hear(int source, Announcement& message) { negotiation_.hear(source, std::move(message)); }
  void hear(int source, ResponseList& message) { negotiation_.hear(source, std::move(message)); }
  void hear(int source, LedgerSteps& message) { negotiation_.hear(source, std::move(message)); }
  void hear(int source, Verdict& message);
  void hear(int source, Offer& message) { point_to_point_.hear(source, std::move(message)); }
  void hear(int source, Clearance& message) { point_to_point_.hear(source, message); }
  void hear(int source, Coming& message) { point_to_point_.hear(source, message); }
  void hear(int source, Withdrawal& message) { point_to_point_.hear(source, message); }
  void hear(int source, Rejection& message) { point_to_point_.hear(source, message); }
  void hear(int source, Receipt& message) { point_to_point_.hear(source, message); }
  template <typename Content>
  void hear(int source, Content& message);
  // Carries the actions out in order.
  void apply(Membership::Actions actions);
  void carry_out(Membership::Send& action);
  void carry_out(const Membership::Announce& action);
  void carry_out(const Membership::Warn& action);
  void carry_out(const Membership::Fail& action);
  void carry_out(const Membership::Left& action);
  void carry_out(const Membership::Undecided& action);
  void carry_out(const Membership::Log& action) {
    shared_.log.write(action.level, "control", action.text);
  }
  void tell_failure(const std::vector<int>& ranks, const std::string& cause);
  void tell_user(const base::Status& why);

  transport::Transport& transport_;
  SharedState& shared_;
  const bool share_window_;  // all ranks of the job share one window
  const Patience patience_;
  Execution execution_;
  Membership membership_;
  Carrier carrier_;
  PointToPoint point_to_point_;
  Negotiation negotiation_;
  SystemFacts facts_;
  std::uint64_t seen_activity_ = 0;
  std::vector<std::byte> bytes_;  // memory for a message
  // Entries that this pass has taken from the queue. Empty between two passes, except after an exception: in that case
  // end_all() ends the entries that no machine has taken over. The memory is reused.
  std::vector<Entry> taken_;
  base::Clock::time_point moved_at_ = shared_.time.now();
};

}  // namespace hvdlite::engine
