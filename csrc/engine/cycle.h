// The engine proper: whoever holds the progress token calls pass() until there is nothing to do. It calls the four machines in
// turn, Negotiation, PointToPoint, Execution and Membership, and carries out what they want done.
// Thread: the holder of the progress token only. Owns: the machines. Blocks: never.
// Throws: nothing; an error of the transport or a bug of ours fails the whole engine with its text (SharedState::failure).
#pragma once

#include <string>
#include <vector>

#include "engine/carrier.h"
#include "engine/execution/execution.h"
#include "engine/intake/shared_state.h"
#include "engine/membership/membership.h"
#include "engine/messenger.h"
#include "engine/negotiation/negotiation.h"
#include "engine/pacing.h"
#include "engine/system_facts.h"
#include "transport/transport.h"

namespace hvdlite::engine {

class Cycle {
 public:
  Cycle(transport::Transport& transport, SharedState& shared, collectives::Selection selection);

  // True if anything happened. flush: announce queued entries now, somebody waits. thorough: look for control messages,
  // also where they are rare because the ranks share memory; it costs more than the rest, and a caller that polls need not do
  // so every time.
  bool pass(bool flush, bool thorough);
  Outlook outlook() const;
  // When anything last happened.
  base::Clock::time_point moved_at() const { return moved_at_; }

  // Leaving: fails what is not agreed and says goodbye, false if that has to be tried again; true once agreed operations are
  // done and all messages have left. Whom neither can reach any more fails this rank, as in a pass.
  bool say_goodbye();
  bool drained();
  // Failing of its own accord: what this rank has in flight ends, every peer is told why; true once all of them know.
  void raise_failure(const std::string& cause);
  bool failure_seen_by_all() const { return membership_.failure_seen_by_all(); }
  // The last step: after it no function may be called.
  void close() { execution_.close(transport_.close()); }
  // Ends everything this rank has in flight with this error.
  void end_all(const base::Status& why) { messenger_.end_all(why); }

 private:
  // Runs a step. What it throws fails this rank for good, with the cause told to all: then true, if that is news.
  template <typename Step>
  bool guard(Step step);
  void below_failed(const std::exception& error);
  bool pass_once(bool flush, bool thorough);
  bool take_queued(bool flush);
  void admit(Entry& entry);

  transport::Transport& transport_;
  SharedState& shared_;
  const bool share_window_;  // all ranks of the job one
  const Patience patience_;
  Execution execution_;
  Membership membership_;
  Carrier carrier_;
  PointToPoint point_to_point_;
  Negotiation negotiation_;
  SystemFacts facts_;
  Messenger messenger_;
  std::uint64_t seen_activity_ = 0;
  std::vector<Entry> taken_;  // empty: memory for what the queue gives
  base::Clock::time_point moved_at_ = shared_.time.now();
};

}  // namespace hvdlite::engine
