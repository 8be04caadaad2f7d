// How ranks agree on what they all do, and in which order, as one rank sees it: all its process sets, and how they change.
// Thread: one at a time. Owns: the process sets, and this rank's entries until they are agreed. Blocks: never.
// Throws: Error(Internal) on messages that no correct rank sends, and what the effects throw.
//
// A machine apart from transport and threads: entries and messages go in, and what is to be done comes out through Effects, in
// its order. Where members share memory they agree through a port, an Agreement. Its digest tells states apart.
//
// It cannot be copied: callers share its entries, by their completions, and other members its ports, so that a copy of it alone would
// be a copy of nothing. Who wants a state again makes new machines and repeats what led there. In the tests, where a way is some
// twenty steps long, that takes 75 µs a state (negotiation_explored.cc).
//
//   what callers ask ---------> admit() --------+
//   what another rank says ---> hear() ---------+--> Effects: send, ring, execute, finish, add_set, remove_set
//   each pass ----------------> advance() ------+
//   how ranks end ------------> left, leave ----+
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/negotiation/set_negotiation.h"
#include "engine/observe/usage.h"

namespace hvdlite::engine {

class Negotiation {
 public:
  struct Settings {
    int rank = 0;
    std::size_t fusion_threshold = 0;
    std::size_t cache_capacity = 0;
    bool join_refuses_others = false;  // while members have joined, allreduce alone runs
    bool agreement_is_barrier =
        false;  // all members have come to it, which is all there is to a barrier
  };

  // Begins with the set of all ranks. effects and counters outlive it.
  Negotiation(const Settings& settings, int ranks, Regions regions, Counters& counters,
              Effects& effects);

  // --- what this rank asks ---
  // Takes the entry; one that must not be asked for ends at once.
  void admit(Entry& entry);
  // Announces it, decides where this rank coordinates, and does what is agreed. True if anything happened.
  bool advance();

  // --- what others say ---
  void hear(int source, Announcement message);
  void hear(int source, ResponseList message);
  void hear(int source, Verdict message);

  // --- how ranks end ---
  // A rank is about to leave: what it took part in comes before that.
  void catch_up();
  void left(int rank, const base::Status& why);
  // Before this rank leaves: nothing that it has announced in memory may be agreed any more. False: to be tried again.
  bool close();
  // It leaves. Gives the coordinators that may still decide what it has asked for.
  std::set<int> leave(const base::Status& why);
  // What this rank, having left, still waits for of this coordinator is never decided.
  void fail_undecided(int coordinator, const base::Status& why);
  // This rank fails. Its users are told so of all that it has asked for; the port closes, so that no other rank completes any of it
  // later.
  void abandon();
  // Ends all that is not agreed.
  void end_all(const base::Status& why);

  // --- questions ---
  bool has_pending() const;
  bool tries_again() const;
  // Do all ranks of the job agree in memory?
  bool agrees_in_memory() const { return agrees_in_memory_; }
  bool has_joined(SetId set) const;
  // Does this rank wait for the set's removal? Then it asks for nothing more there.
  bool is_removing(SetId set) const;
  const SetNegotiation* find(std::int32_t set) const;
  // Calls visit(const SetNegotiation&).
  template <typename Visit>
  void for_each_set(Visit visit) const {
    for (const auto& [id, set] : sets_) visit(*set);
  }
  // Removals that wait until what this rank has in flight on the set has ended.
  const std::vector<Entry>& held_removals() const { return held_removals_; }
  // Tells states apart that may go on differently. The port's state is not in it.
  std::uint64_t digest() const;

 private:
  friend class SetNegotiation;

  SetNegotiation* find(SetId id);
  // Visits every set; a visit may add and remove others.
  template <typename Visit>
  void visit_sets(Visit visit) {
    for (auto at = sets_.begin(); at != sets_.end();) {
      const std::int32_t id = at->first;
      visit(*at->second);
      at = sets_.upper_bound(id);
    }
  }
  // Keeps a message for a set that this rank is about to learn of; one for a set that is gone is dropped.
  template <typename Content>
  void keep_for_later(int source, Content message);
  template <typename Content>
  void hear_in_set(int source, Content message);

  bool coordinate();

  // --- for its sets ---
  bool has_left(int rank) const { return left_[static_cast<std::size_t>(rank)]; }
  // Sends to a rank that is there, or hands the message to this rank's own.
  template <typename Content>
  void deliver(int rank, Content message);
  // Those without a request are not ours.
  void finish(std::span<const Entry> entries, const base::Status& status);

  base::Status refusal(const SetNegotiation* set, const Request& request) const;

  // --- changes of sets (set_changes.cc) ---
  // An agreed operation that moves no data but changes process sets, or ends a join.
  void settle(const Response& response, Entry& entry);
  void handle_early(std::uint32_t epoch);
  SetId create_set(std::vector<int> members);
  void remove_set(std::int32_t id);
  bool may_remove(std::int32_t id) const;
  bool hold_removal(Entry& entry);
  bool resume_removals();
  Entry take_held_removal(SetId set, const std::string& name);
  void share_staging();

  const Settings settings_;
  Counters& counters_;
  Effects& effects_;
  Regions regions_;
  std::map<std::int32_t, std::unique_ptr<SetNegotiation>> sets_;
  bool agrees_in_memory_ = false;
  bool asked_for_staging_ = false;  // the set of all ranks has
  bool said_goodbye_ = false;
  std::vector<bool> left_;  // by rank
  std::uint32_t last_epoch_ = 0;
  std::int32_t next_set_id_ = 0;
  std::deque<std::int32_t> free_set_ids_;
  std::vector<Entry> held_removals_;
  std::map<std::uint32_t, std::vector<std::pair<int, Message>>> early_;  // by epoch
};

}  // namespace hvdlite::engine
