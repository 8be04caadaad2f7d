// One rank's part in the agreement on what all ranks do and in which order: for all its process sets, and for changes of sets.
// Thread: one at a time. Owns: the process sets, and this rank's entries until they are agreed. Blocks: only in the effects.
// Throws: Error(Internal) if a rank sends, or writes into shared memory, something that no correct rank would; also whatever
// the effects throw.
//
// A state machine without transport and threads. Entries and messages go in; actions come out through Effects, in order.
// Members agree through a port (an Agreement). If a set has no port, for example because it has too many members, they agree
// through the coordinator alone. Tests tell states apart by digest().
//
// A Negotiation cannot be copied: it shares its entries with callers (through their completions) and its ports with other
// members. A test that wants to return to a state makes a new Negotiation for each rank and repeats the steps that led to the
// state (negotiation_explored.cc).
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
#include <variant>
#include <vector>

#include "engine/negotiation/set_negotiation.h"
#include "engine/observe/usage.h"

namespace hvdlite::engine {

class Negotiation {
 public:
  struct Settings {
    int rank = 0;
    std::size_t fusion_threshold = 0;   // bytes
    std::size_t cache_capacity = 0;     // slots
    bool join_refuses_others = false;   // as the argument of Coordinator
    bool agreement_is_barrier = false;  // a barrier that is agreed at the port needs no collective
    // Sets of at most this many members (never more than ReplicatedLedger::kMaxMembers) agree in copies of a ledger, if their
    // members share no ledger in memory.
    std::size_t ledger_copies = 0;
  };

  // Begins with the set of all ranks. `effects` and `counters` must outlive the Negotiation.
  Negotiation(const Settings& settings, int ranks, Regions regions, Counters& counters,
              Effects& effects);

  // --- what this rank asks ---
  // Takes the entry. An entry that the set refuses ends at once.
  void admit(Entry& entry);
  // Announces entries, makes the decisions of the sets that this rank coordinates, and executes what is agreed. Returns true if
  // anything happened.
  bool advance();

  // --- what others say ---
  // An Announcement, a ResponseList or LedgerSteps. Keeps it if this rank does not know the set yet; drops it if the set was
  // removed.
  template <typename Content>
  void hear(int source, Content message) {
    const std::uint32_t epoch = message.set.epoch;
    if (SetNegotiation* set = find(message.set)) {
      set->hear(source, std::move(message));
    } else if (epoch > last_epoch_) {
      early_[epoch].emplace_back(source, std::move(message));
    }
  }
  void hear(int source, Verdict message);

  // --- how ranks end ---
  // Another rank is about to leave. Executes what is agreed at the ports, and sends the decisions in which that rank takes
  // part.
  void catch_up();
  // Rank `rank` takes part in no later operation. Operations that need it fail with `why`.
  void left(int rank, const base::Status& why);
  // Called before this rank leaves. When it returns true, nothing that this rank has announced at a port can be agreed there
  // any more. False: call it again.
  bool close();
  // This rank leaves. Some coordinators can still decide operations that this rank asked for: returns the ranks of these
  // coordinators. The entries of all other operations that are not agreed end with `why`.
  std::set<int> leave(const base::Status& why);
  // This rank has left, and executes nothing more. So the ports keep no log entry for it.
  void stop_reading();
  // This rank has left, and the coordinator on rank `coordinator` decides nothing more for it. The entries that still wait for
  // this coordinator end with `why`.
  void fail_undecided(int coordinator, const base::Status& why);
  // This rank fails; end_all() follows. Tries to close the ports, so that nothing that this rank has announced there is agreed
  // later.
  void abandon();
  // Ends all entries that are not agreed.
  void end_all(const base::Status& why);

  // --- questions ---
  // Does this rank have entries that are not agreed?
  bool has_pending() const;
  // Is SetNegotiation::tries_again() true for at least one set?
  bool tries_again() const;
  // Do all ranks of the job agree in shared memory?
  bool agrees_in_memory() const { return agrees_in_memory_; }
  bool has_joined(SetId set) const;
  // Does this rank wait for the set's removal? Then it submits nothing more to the set.
  bool is_removing(SetId set) const;
  const SetNegotiation* find(std::int32_t set) const;
  // Calls visit(const SetNegotiation&).
  template <typename Visit>
  void for_each_set(Visit visit) const {
    for (const auto& [id, set] : sets_) visit(*set);
  }
  // Removals that this rank holds back until its operations on the set have ended.
  const std::vector<Entry>& held_removals() const { return held_removals_; }
  // A hash of the state, with this rank's copies of ledgers. If the same later calls can have different effects in two states,
  // the states have different hashes. The members and the regions of the sets are left out: a caller that compares two jobs
  // which changed their sets differently must add them to the hash.
  std::uint64_t digest() const;

 private:
  friend class SetNegotiation;

  SetNegotiation* find(SetId id) const;
  // Visits every set. A visit may add and remove other sets.
  template <typename Visit>
  void visit_sets(Visit visit) {
    for (auto at = sets_.begin(); at != sets_.end();) {
      const std::int32_t id = at->first;
      visit(*at->second);
      at = sets_.upper_bound(id);
    }
  }

  bool coordinate();

  // --- for its sets ---
  bool has_left(int rank) const { return left_[static_cast<std::size_t>(rank)]; }
  // Sends, unless that rank has left. A message to this rank itself is handled at once.
  void deliver(int rank, Announcement message);
  // Sends to all other members of the set that have not left.
  void tell_members(const ProcessSet& set, const Message& message);
  // As Effects::finish. If an entry is a removal that failed, its set accepts requests again.
  void finish(std::span<const Entry> entries, const base::Status& status);

  base::Status refusal(const SetNegotiation* set, const Request& request) const;

  // --- changes of sets (set_changes.cc) ---
  // Carries out an agreed change of process sets, or the end of a join.
  void carry_out(const Response& response, Entry& entry);
  void handle_early(std::uint32_t epoch);
  SetId create_set(std::vector<int> members);
  std::unique_ptr<Agreement> replicate(const ProcessSet& set);
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
  bool asked_for_staging_ = false;  // by this rank, for the set of all ranks
  bool said_goodbye_ = false;
  std::vector<bool> left_;  // by rank
  std::uint32_t last_epoch_ = 0;
  std::int32_t next_set_id_ = 0;
  std::deque<std::int32_t> free_set_ids_;
  std::vector<Entry> held_removals_;
  // Messages about sets that this rank does not know yet.
  using EarlyMessage = std::variant<Announcement, ResponseList, LedgerSteps>;
  std::map<std::uint32_t, std::vector<std::pair<int, EarlyMessage>>> early_;  // by epoch
};

}  // namespace hvdlite::engine
