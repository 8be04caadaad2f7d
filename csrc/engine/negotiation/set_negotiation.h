// One rank's part in the agreement of one process set. It holds this rank's entries that are not agreed. On the set's first
// member it also holds the coordinator (coordination.cc). Members agree through a port if the set has one and the operation can
// be agreed there (set_port.cc), and otherwise by messages to the coordinator (set_negotiation.cc). A rank that is no member
// only knows the set.
// Thread: the holder of the progress token. Owns: this rank's entries until they are agreed, and on the first member the
// Coordinator. Blocks: only in the effects. Throws: Error(Internal) if a member sends, or writes into shared memory, something
// that no correct member would; also whatever the effects throw.
#pragma once

#include <deque>
#include <memory>
#include <optional>
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
  // all: the owner of this object and of the rank's other sets. port: through which the members agree; null: they agree only by
  // messages to the coordinator.
  SetNegotiation(Negotiation& all, ProcessSet set, std::unique_ptr<Agreement> port);

  const ProcessSet& set() const { return set_; }

  // --- what this rank asks ---
  // Why the set refuses this request; ok if it does not.
  base::Status refusal(const Request& request) const;
  // Takes the entry.
  void admit(Entry& entry);
  // True: this rank has asked for the set's removal, and submits nothing more to the set. False: the removal has failed.
  void removing(bool being_removed) { being_removed_ = being_removed; }
  bool is_being_removed() const { return being_removed_; }
  // Announces waiting entries, and executes what is agreed at the port. Returns true if anything happened.
  bool announce();
  // The coordinator sends its decisions. Returns true if it has sent any.
  bool coordinate() { return attentive_ && send_decided(); }

  // --- what others say ---
  void hear(int source, Announcement message);
  void hear(int source, ResponseList message);
  void hear(int source, LedgerSteps message);
  void hear(Verdict message);

  // --- endings ---
  // Executes what is agreed at the port.
  void catch_up();
  // Called before this rank leaves or joins. When it returns true, nothing that this rank has announced at the port becomes
  // complete any more. False: call it again.
  bool close();
  // Called when this rank fails: tries to close the port, even if this rank has not read the whole log.
  void abandon();
  // Rank `rank` takes part in no later operation.
  void left(int rank, const base::Status& why);
  // This rank leaves. Entries that were not announced to the coordinator end with `why`; if this rank is the coordinator or the
  // coordinator has left, all entries do. Returns true if the coordinator can still decide some entries.
  bool leave(const base::Status& why);
  // Called when this rank has left, and executes nothing more.
  void stop_reading() {
    if (port_) port_->stop_reading();
  }
  // Fails this rank's entries that are not agreed.
  void fail_pending(const base::Status& why);
  std::vector<Entry> take_pending();

  // --- questions ---
  bool has_pending() const { return !pending_.empty() || local_units_.has_entries(); }
  bool has_joined() const;
  bool agrees_in_memory() const { return port_ != nullptr && port_->is_in_memory(); }
  // Was a step of the port not possible yet, so that this rank must try it again soon?
  bool tries_again() const { return try_again_; }
  // Calls visit(const Entry&) for each entry that is not agreed.
  template <typename Visit>
  void for_each_pending(Visit visit) const {
    for (const auto& [name, pending] : pending_) visit(pending.entry);
    local_units_.for_each(visit);
  }
  template <typename Visit>
  void for_each_announced_at_port(Visit visit) const {
    local_units_.for_each_announced(visit);
  }
  void add_to(base::Hasher& hasher) const;

 private:
  // An entry of this rank that waits for the coordinator's decision.
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

  // --- the port (set_port.cc) ---
  bool agree();
  bool announce_join();
  void prepare_waiting();
  bool is_one_operation(std::span<const Entry> unit) const;
  bool announce_waiting();
  template <typename Try>
  bool after_reading(Try try_step);
  bool read();
  bool read(std::vector<Entry>& taken);
  void carry_out(const Agreement::LogEntry& entry, std::vector<AgreedOperation>& agreed,
                 std::vector<Entry>& taken);
  void take_agreed(const Agreement::LogEntry& entry, std::vector<AgreedOperation>& agreed,
                   std::vector<Entry>& taken);
  AgreedOperation agreed_at_port(const RequestPtr& request, int contributors) const;
  void fuse_and_execute(std::vector<AgreedOperation> agreed, std::vector<Entry> entries);
  void wake_members();

  // --- for the coordinator (coordination.cc) ---
  // Something has come that may give the coordinator work.
  void attend() { attentive_ = coordinator_ != nullptr; }
  bool has_nothing_left() const;
  bool begin();
  bool send_decided();
  bool send_decisions();
  bool keep_port();
  void carry_out_verdicts();
  void divert_no_more(std::vector<std::uint64_t> decided);

  Negotiation& all_;
  const ProcessSet set_;
  const std::unique_ptr<Agreement> port_;
  LocalUnits local_units_;
  std::uint64_t seen_ = 0;  // number of response lists that this member has processed
  ResponseCache cache_;
  std::unordered_map<std::string, Pending> pending_;
  std::vector<std::string> to_announce_;  // names in pending_
  base::Status broken_;  // not ok after the coordinator has left: nothing can be agreed any more
  bool being_removed_ = false;
  bool try_again_ = false;  // see tries_again()
  bool joins_ = false;      // a thread of this rank has called join, which is not announced yet
  // Response lists that arrived already; each waits until this member reads its kList entry in the log.
  std::deque<ResponseList> lists_;
  std::uint64_t closings_ = 0;  // the number of closings that this member has read in the log
  bool tells_closing_ = false;  // it must still tell the coordinator of the last one

  // Null except on the set's first member.
  std::unique_ptr<Coordinator> coordinator_;
  bool attentive_ = false;  // may the coordinator have work? false: it only waits for other ranks
  Agreement::Upkeep upkeep_;
  std::vector<std::uint64_t> closings_of_;  // how many closings each member has reported
  // Verdicts wait here until all members that have not left have reported the last closing. By then everything that these
  // members announced at the port has come in messages.
  std::vector<Verdict> verdicts_;
};

}  // namespace hvdlite::engine
