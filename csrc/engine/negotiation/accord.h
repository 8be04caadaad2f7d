// A member's side of negotiation in shared memory: what of this rank is in the ledger, and what is about to be.
// Thread: the holder of the progress token. Owns: the rank's place in the ledger, and the entries that go through it until
// they are taken back. Blocks: no. Throws: no.
//
// The ledger deals in units: an operation by itself, or a group of operations, which is announced when this rank has
// submitted all of it. Operations whose extents differ between ranks (allgather, alltoall) and those that change sets or end
// a join need the coordinator and are not in it.
#pragma once

#include <algorithm>
#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/thread.h"
#include "engine/model/entry.h"
#include "engine/model/messages.h"
#include "engine/negotiation/ledger.h"
#include "engine/observe/usage.h"

namespace hvdlite::engine {

struct Unit {
  std::uint64_t key = 0;
  std::uint64_t content = 0;
  bool absent = false;
  std::vector<Entry> entries;  // in the order of the group
};

class Accord {
 public:
  Accord(std::byte* memory, int members, int index, std::uint32_t serial)
      : closings_of(static_cast<std::size_t>(members), 0),
        ledger_(memory, Ledger::Capacity{}, members, index, serial) {}

  // The keys that a request may have in the ledger: of itself, and of its group.
  static void add_keys(const Request& request, std::vector<std::uint64_t>& keys);

  Ledger& ledger() { return ledger_; }

  // Takes an entry of this rank, which is announced when its unit is complete. False, and not taken, if it has to go by
  // message: it is none of the ledger's, or others of its group have gone that way.
  bool admit(Entry& entry);
  bool has_waiting() const { return !waiting_.empty(); }
  bool has_entries() const { return !(waiting_.empty() && announced_.empty() && groups_.empty()); }
  // Calls visit(const Entry&) for each entry held here.
  template <typename Visit>
  void for_each(Visit visit) const {
    for_each_announced(visit);
    for (const Unit& unit : waiting_) std::ranges::for_each(unit.entries, visit);
    for (const auto& [key, entries] : groups_) std::ranges::for_each(entries, visit);
  }
  bool has_announced() const { return !announced_.empty(); }
  template <typename Visit>
  void for_each_announced(Visit visit) const {
    for (const auto& [key, entries] : announced_) std::ranges::for_each(entries, visit);
  }

  // Announces what waits, with the ledger locked and its log read; what has to go by message instead is added to `by_message`.
  // False if not all could be announced now. rides: the payload of the one unit that waits lies at payload_number(). usage is
  // told what has been announced.
  bool announce(std::vector<Entry>& by_message, bool rides, Usage& usage);

  // Small payloads ride with the announcement: a member puts its contribution where the others look for it when the log says
  // that the unit is complete and all sent theirs along; the result needs no further exchange. The places are numbered, two
  // of them are used in turn, and all members take the same: a number is the count of such units in the log. Between a
  // member's announcement with payload n and its completion no other such unit can be completed, since each needs all members
  // and a payload rides only when its member has nothing else in the ledger. Payload n is overwritten by number n+2, which
  // waits until all members have read the log entry of number n, and with it the payload.
  //
  // The one entry that waits, with nothing else of this rank in the ledger; null otherwise.
  const Entry* only_one() const;
  std::uint64_t payload_number() const { return payloads_; }
  bool payload_is_free() const { return ledger_.all_have_read(payload_read_[payloads_ & 1]); }
  // The log entry that was popped last was that of such a unit.
  void payload_was_read() { payload_read_[payloads_++ & 1] = ledger_.read(); }

  // What this rank has announced under a key, which is then no longer in the ledger; empty if nothing.
  std::vector<Entry> take(std::uint64_t key);
  // Everything: in the ledger, waiting, and parts of groups.
  std::vector<Entry> take_all();
  // The coordinator has decided this request. Gives the unit it belongs to, if that is held here: what the coordinator has not
  // decided of it goes by message. by_name: this rank's may differ from the decided one in everything but the name.
  std::vector<Entry> withdraw(const Request& decided, bool by_name);

  // Response lists whose place in the log has not been reached.
  std::deque<ResponseList> lists;
  // The coordinator's: keys it has begun to count and not decided, and whether the ledger has to be closed.
  std::vector<std::uint64_t> to_divert;
  // These keys are decided. What would still be diverted of them nobody would ever take out of the table again.
  void divert_no_more(std::vector<std::uint64_t> decided);
  bool to_close = false;
  // Times that the log has said here that the ledger was closed, and whether the coordinator has still to hear of the last one.
  std::uint64_t closings = 0;
  bool tells_closing = false;
  // The coordinator's: how many of them each member has told, and verdicts that wait until all have told the last one. What the
  // ledger held has then come in messages.
  std::vector<std::uint64_t> closings_of;
  std::vector<Verdict> verdicts;
  bool try_again = false;  // the lock or the log was not to be had
  bool joins = false;      // join was called here, and has not been announced

 private:
  // The part of a group that is here; the rest goes by message as it comes.
  std::vector<Entry> give_up_group(std::uint64_t key);

  Ledger ledger_;
  std::unordered_map<std::uint64_t, std::vector<Entry>> groups_;  // not complete, by key
  std::uint64_t payloads_ = 0;
  std::uint64_t payload_read_[2] =
      {};  // entries of the log up to the one that ended the last use of the place
  std::unordered_map<std::uint64_t, std::int32_t>
      sent_groups_;  // by message, and how many of each are still to come
  std::vector<Unit> waiting_;
  std::unordered_map<std::uint64_t, std::vector<Entry>> announced_;  // by key
};

}  // namespace hvdlite::engine
