// The engine proper: whoever holds the progress token calls pass() until there is nothing to do.
// Thread: the holder of the progress token only. Owns: process sets, executor, negotiation, membership. Blocks: never.
// Throws: nothing; an error of the transport or a bug of ours fails the whole engine with its text (SharedState::failure).
//
// One pass is six steps: receive control messages; announce what callers submitted; coordinate (on a set's rank 0, decide);
// follow the decisions; advance operations; let Membership look for lost ranks, stalls and deadlocks.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>

#include "engine/execution/executor.h"
#include "engine/intake/shared_state.h"
#include "engine/membership/membership.h"
#include "engine/model/messages.h"
#include "engine/negotiation/process_set.h"
#include "engine/pacing.h"
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
  void close() { executor_.close(transport_.close()); }
  // Ends everything this rank has in flight with this error.
  void end_all(const base::Status& why);

 private:
  // A region of the window, which at most one process set uses.
  struct Region {
    std::int32_t set = -1;
    std::uint64_t users = 0;  // ranks of this host in all sets that have used it
  };

  // Runs a step. What it throws fails this rank for good, with the cause told to all: then true, if that is news.
  template <typename Step>
  bool guard(Step step) {
    const bool failed_before = shared_.failure.happened();
    try {
      return step();
    } catch (const std::exception& error) {
      below_failed(error);
    }
    return !failed_before;
  }
  void below_failed(const std::exception& error);
  bool pass_once(bool flush, bool thorough);
  void leave();

  // The six steps.
  bool receive();
  bool announce(bool flush);
  bool coordinate();
  void follow(ProcessSet& set, const ResponseList& list);

  // Agreements in shared memory.
  bool agree(ProcessSet& set);
  bool open_ledger(ProcessSet& set);
  bool go_by_message(ProcessSet& set, std::vector<Entry> entries);
  void await_decision(ProcessSet& set, Entry entry);
  bool lock_up_to_date(ProcessSet& set);
  bool close_up_to_date(ProcessSet& set);
  bool announce_join(ProcessSet& set);
  bool announce_in_ledger(ProcessSet& set);
  bool put_payload(ProcessSet& set);
  void finish_riding(const ProcessSet& set, Entry& entry);
  void wake_members(const ProcessSet& set);
  bool keep_ledger(ProcessSet& set);
  bool read_ledger(ProcessSet& set);
  bool read_ledger(ProcessSet& set, std::vector<Entry>& taken);
  void take_agreed(ProcessSet& set, const Ledger::Entry& entry, std::vector<Agreed>& agreed,
                   std::vector<Entry>& taken);
  static Agreed agreed_in_ledger(const ProcessSet& set, const RequestPtr& request,
                                 int contributors);
  void fuse_and_execute(ProcessSet& set, const std::vector<Agreed>& agreed,
                        std::vector<Entry> entries);
  void defer_verdict(ProcessSet& set, Verdict message);
  void carry_out_verdicts(ProcessSet& set);
  bool leave_ledgers();
  void abandon_ledgers();

  // What Membership wants done, in its order.
  void apply(Membership::Actions actions);
  void carry_out(Membership::Send& action);
  void carry_out(Membership::Announce& action);
  void carry_out(Membership::Warn& action);
  void carry_out(Membership::Fail& action);
  void carry_out(Membership::Left& action);
  void carry_out(Membership::Undecided& action);
  void carry_out(Membership::Log& action);

  void handle(int source, Announcement& message);
  void handle(int source, ResponseList& message);
  void handle(int source, Goodbye& message);
  void handle(int source, Verdict& message);
  // The rest is Membership's.
  template <typename Content>
  void handle(int source, Content& message) {
    apply(membership_.hear(source, std::move(message), shared_.time.now(), *facts_));
  }

  void send(int peer, const Message& message);
  // Sends to a rank that is there, or hands the message to our own handler.
  template <typename Content>
  void deliver(int rank, Content message) {
    if (rank == transport_.rank()) {
      handle(rank, message);
    } else if (!membership_.roster().has_left(rank)) {
      send(rank, message);
    }
  }
  ProcessSet* find_set(SetId id);
  // Visits every set; a visit may add and remove sets, also its own.
  template <typename Visit>
  void for_each_set(Visit visit) {
    for (auto at = sets_.begin(); at != sets_.end();) {
      const std::int32_t id = at->first;
      visit(*at->second);
      at = sets_.upper_bound(id);
    }
  }
  // Keeps a message for a set that this rank is about to learn of; one for a set that is gone is dropped.
  void keep_for_later(SetId id, int source, const Message& message);
  void admit(Entry entry);
  void announce_pending(ProcessSet& set);
  bool has_joined(const ProcessSet& set) const;
  void check_mine(const ProcessSet& set, const Response& response) const;
  void check_absence(const ProcessSet& set, const Response& first, std::span<const Entry> entries);
  ResponsePtr remember(ProcessSet& set, const Decision& decision);
  void follow_fused(ProcessSet& set, const ResponsePtr& first, FusedOp fused);
  bool send_decisions(ProcessSet& set);
  // The set's members are about to agree on so many operations, as this member has come to ask for them; -1: nobody has.
  void came_last(const ProcessSet& set, int member, std::size_t operations);
  void execute(ProcessSet& set, FusedOp fused, std::vector<Entry> entries);
  Entry take_entry(ProcessSet& set, const std::string& name);
  void settle_without_data(const Response& response, Entry& entry);
  SetId create_set(const std::vector<std::int64_t>& ranks);
  // What came for a set of this epoch before this rank knew of it.
  void handle_early(std::uint32_t epoch);
  void remove_set(std::int32_t id);
  bool hold_removal(Entry& entry);
  bool resume_removals();
  Entry take_held_removal(SetId set, const std::string& name);
  void insert_set(SetId id, std::vector<int> members);
  const Region* share_memory(const ProcessSet& set, SharedRegions& shared);
  void make_accord(ProcessSet& set, const Region& region);
  void share_staging_memory(ProcessSet& set);
  std::shared_ptr<collectives::SharedChannel> take_region(const ProcessSet& set, Region& region);
  // All entries of this rank that the set has not agreed on.
  static std::vector<Entry> take_pending(ProcessSet& set);
  void fail_pending(ProcessSet& set, const base::Status& why);
  void fail_undecided(ProcessSet& set, const base::Status& why);
  void finish(std::span<const Entry> entries, const base::Status& status);
  void fail(const Entry& entry, const base::Status& status);
  void tell_user(const base::Status& why);
  void hear_who_knows();

  class Facts;  // facts.cc
  std::unique_ptr<Membership::Facts> make_facts();

  transport::Transport& transport_;
  SharedState& shared_;
  const Patience patience_;
  const kernels::Isa isa_;
  const bool may_ride_;  // no algorithm is forced that small payloads would bypass
  const bool
      agreement_is_barrier_;  // all members have come to it, which is all there is to a barrier
  Executor executor_;
  Membership membership_;
  const std::unique_ptr<Membership::Facts> facts_;
  std::map<std::int32_t, std::unique_ptr<ProcessSet>> sets_;
  std::vector<Region> regions_;    // of the host's window
  bool agrees_in_memory_ = false;  // the set of all ranks does
  std::uint32_t last_epoch_ = 0;
  std::int32_t next_set_id_ = 0;
  std::deque<std::int32_t> free_set_ids_;
  std::vector<Entry> held_removals_;  // until what this rank has in flight on the set has ended
  std::map<std::uint32_t, std::vector<std::pair<int, Message>>> early_;  // by epoch
  std::uint64_t seen_activity_ = 0;
  std::vector<Entry> taken_;  // empty: memory for what the queue gives
  base::Clock::time_point moved_at_ = shared_.time.now();
};

}  // namespace hvdlite::engine
