// How the members of one process set agree, as one of them does it: what of this rank is not agreed; and on the set's first member
// the coordinator's part (coordination.cc). What can be is agreed through a port in memory (local_units.cc), the rest in messages
// (set_negotiation.cc).
// Thread: the holder of the progress token. Owns: this rank's entries until they are agreed, and on the first member the
// Coordinator. Blocks: no. Throws: Error(Internal) on what no correct member sends, and what the effects throw.
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/model/request.h"
#include "engine/negotiation/coordinator.h"
#include "engine/negotiation/effects.h"
#include "engine/negotiation/local_units.h"
#include "engine/negotiation/response_cache.h"

namespace hvdlite::engine {

class Negotiation;

class SetNegotiation {
 public:
  // all: the rank's sets, among which this is one. port: through which the members agree; null: by messages only.
  SetNegotiation(Negotiation& all, ProcessSet set, std::unique_ptr<Agreement> port);

  const ProcessSet& set() const { return set_; }

  // --- what this rank asks ---
  // Why it must not be asked for, if so.
  base::Status refusal(const Request& request) const;
  // Takes the entry.
  void admit(Entry& entry);
  // This rank has asked that the set be removed, and submits no more to it.
  void removing(bool being_removed) { being_removed_ = being_removed; }
  bool is_being_removed() const { return being_removed_; }
  // Announces what is to be announced, and does what is agreed in memory. True if anything happened.
  bool announce();
  // The coordinator's: sends what is decided. True if anything was.
  bool coordinate() { return attentive_ && send_decided(); }

  // --- what others say ---
  void hear(int source, Announcement message);
  void hear(int source, ResponseList message);
  void hear(Verdict message);

  // --- endings ---
  // Does what has been agreed in memory.
  void catch_up();
  // This rank leaves: nothing that it has announced in memory may be agreed any more. False: to be tried again.
  bool close();
  // This rank fails: the same, though it has not read what was agreed.
  void abandon();
  // A rank takes part in nothing more.
  void left(int rank, const base::Status& why);
  // This rank leaves. What no other has heard of cannot be decided any more, and ends with this; all else, too, where nothing is
  // decided for it. True if the coordinator may still decide something of it.
  bool leave(const base::Status& why);
  // Of what this rank has asked for here and is not agreed.
  void fail_pending(const base::Status& why);
  std::vector<Entry> take_pending();

  // --- questions ---
  bool has_pending() const { return !pending_.empty() || local_units_.has_entries(); }
  bool has_joined() const;
  bool agrees_in_memory() const { return port_ != nullptr; }
  // Something could not be done because another rank was at it.
  bool tries_again() const { return try_again_; }
  // Calls visit(const Entry&) for all that is not agreed.
  template <typename Visit>
  void for_each_pending(Visit visit) const {
    for (const auto& [name, pending] : pending_) visit(pending.entry);
    local_units_.for_each(visit);
  }
  template <typename Visit>
  void for_each_announced_in_memory(Visit visit) const {
    local_units_.for_each_announced(visit);
  }
  void add_to(base::Hasher& hasher) const;

 private:
  // An entry of this rank that goes by message.
  struct Pending {
    Entry entry;
    bool announced = false;
    bool by_slot = false;
  };

  // --- messages (set_negotiation.cc) ---
  void await_decision(Entry entry);
  bool await_decisions(std::vector<Entry> entries);
  void announce_pending();
  void follow(const ResponseList& list);
  void follow_fused(const ResponsePtr& first, FusedOp fused);
  ResponsePtr remember(const Decision& decision);
  Entry take_entry(const std::string& name);
  void check_mine(const Response& response) const;
  void check_absence(const Response& first, std::span<const Entry> entries);
  void came_last(int member, std::size_t operations);
  void execute(FusedOp fused, std::vector<Entry> entries);

  // --- the port (local_units.cc) ---
  bool agree();
  bool begin();
  bool announce_join();
  bool announce_waiting();
  template <typename Try>
  bool after_reading(Try try_step);
  bool read();
  bool read(std::vector<Entry>& taken);
  void carry_out(const Agreement::LogEntry& entry, std::vector<AgreedOperation>& agreed,
                 std::vector<Entry>& taken);
  void take_agreed(const Agreement::LogEntry& entry, std::vector<AgreedOperation>& agreed,
                   std::vector<Entry>& taken);
  AgreedOperation agreed_in_memory(const RequestPtr& request, int contributors) const;
  void fuse_and_execute(std::vector<AgreedOperation> agreed, std::vector<Entry> entries);
  void wake_members();

  // --- the coordinator's (coordination.cc) ---
  // Something has come that the coordinator may have to act on.
  void attend() { attentive_ = coordinator_ != nullptr; }
  bool has_nothing_left() const;
  bool send_decided();
  bool send_decisions();
  void begin_port();
  bool keep_port();
  void carry_out_verdicts();
  void divert_no_more(std::vector<std::uint64_t> decided);

  Negotiation& all_;
  const ProcessSet set_;
  const std::unique_ptr<Agreement> port_;
  LocalUnits local_units_;
  std::uint64_t seen_ = 0;  // response lists processed
  ResponseCache cache_;
  std::unordered_map<std::string, Pending> pending_;
  std::vector<std::string> to_announce_;  // names in pending_
  base::Status broken_;  // the coordinator has left: nothing can be agreed any more
  bool being_removed_ = false;
  bool try_again_ = false;
  bool joins_ = false;              // join was called here, and has not been announced
  std::deque<ResponseList> lists_;  // whose place in the log has not been reached
  // Times that the log has said here that the port was closed, and whether the coordinator has still to hear of the last one.
  std::uint64_t closings_ = 0;
  bool tells_closing_ = false;

  // On the set's first member.
  std::unique_ptr<Coordinator> coordinator_;
  bool attentive_ =
      false;  // it may have something to do; in steps that are all agreed in memory it has not
  // Keys that it has begun to count, and not decided; and must the port be closed?
  Agreement::Upkeep upkeep_;
  // How many closings each member has told, and verdicts that wait until all have told the last one. What was announced in memory
  // has then come in messages.
  std::vector<std::uint64_t> closings_of_;
  std::vector<Verdict> verdicts_;
};

}  // namespace hvdlite::engine
