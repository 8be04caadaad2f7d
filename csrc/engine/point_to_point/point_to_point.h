// What one rank sends to another, and what receives it: matched as MPI matches, by process set, rank and tag, in posting order.
// Thread: one at a time. Owns: this rank's sends and receives until they are matched, and what has come for receives that are
// still to be posted. Blocks: never. Throws: Error(Internal) on messages that no correct rank sends, and what the effects throw.
//
// A machine apart from transport and threads: entries and messages go in, and what is to be done comes out through Effects, in
// its order. Nothing is negotiated, and no collective waits here. Its digest tells states apart.
//
//   what callers ask ---------> admit() --------+
//   what another rank says ---> hear() ---------+--> Effects: send, finish, start_send, start_receive, reached
//   how ranks and sets end ---> left, leave ----+
//
// A small message travels whole, in its Offer, and has been sent when that has: as long as no more than so many bytes of such wait
// for their receives at that rank, which counts what receives have taken and says so now and then (Receipt). Of all others, large or
// too many, the Offer tells alone; when there is a receive for it:
//
//   who sends                  who receives
//      Offer       ------------->   a receive that fits is there, or comes later
//            <-------------------   Clearance
//      Coming      ------------->   start_receive
//      start_send  ============>
//
// Either may end before: who sends says so by a Withdrawal instead of Coming. So memory is given to the transport only where both
// ranks are sure, and nothing ever has to be taken back from it. What lies on a GPU never travels whole.
//
// A receive of another dtype or size answers with a Rejection instead of a Clearance. It fails when Coming says that the send was still
// there. If a Withdrawal comes, the receive waits for the next message: a send that has failed must not fail a later receive.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "engine/model/entry.h"
#include "engine/model/messages.h"
#include "engine/observe/flight_recorder.h"

namespace hvdlite::engine {

class PointToPoint {
 public:
  using Stage = FlightRecorder::Stage;

  // What it wants done. Each call is carried out before it returns.
  class Effects {
   public:
    virtual ~Effects() = default;
    virtual void send(int rank, const Message& message) = 0;
    virtual void finish(std::span<const Entry> entries, const base::Status& status) = 0;
    // The payload goes from or to the entry's memory. Who starts it ends the entry. Between two ranks payloads go in the order in
    // which both start them.
    virtual void start_send(Entry entry, int to) = 0;
    virtual void start_receive(Entry entry, int from) = 0;
    // The payload of a receive is here: that of a message which travelled whole, or of a send of this rank. Who takes it ends the
    // entries.
    virtual void take(Entry receive, const void* payload) = 0;
    virtual void take_own(Entry receive, Entry send) = 0;
    // For the books: the other rank can learn of it; it has come to a stage.
    virtual void posted(const Entry& entry) = 0;
    virtual void reached(std::span<const Entry> entries, Stage stage) = 0;
  };

  struct Settings {
    int rank = 0;
    int ranks = 1;
    std::size_t whole_bytes = 0;       // messages of at most so many travel whole
    std::size_t unreceived_bytes = 0;  // as long as no more than so many wait at one rank
  };
  // What a whole message takes of them: it has a name and a place, too.
  static std::size_t weight_of(std::size_t bytes) { return bytes + 256; }
  // effects outlive it.
  PointToPoint(const Settings& settings, Effects& effects);

  void add_set(const ProcessSet& set);
  // All that this rank has asked for there has ended.
  void remove_set(SetId set);

  // --- what this rank asks ---
  // Takes the entry, a send or a receive; one that cannot be met ends at once.
  void admit(Entry entry);

  // --- what others say ---
  void hear(int source, Offer message);
  void hear(int source, Clearance message);
  void hear(int source, Coming message);
  void hear(int source, Withdrawal message);
  void hear(int source, const Rejection& message);
  void hear(int source, Receipt message);
  // Some of this rank's own can never be matched.
  void hear(int source, const Verdict& message);

  // --- how ranks end ---
  void left(int rank, const base::Status& why);
  // This rank takes part in nothing more than what is matched.
  void leave(const base::Status& why);
  void end_all(const base::Status& why);

  // --- questions ---
  // Does anything of this rank wait for a message?
  bool waits() const { return !offered_.empty() || !cleared_.empty() || posted_ > 0; }
  bool waits(SetId set) const;
  // Is a payload about to come, or another rank's word that it will not?
  bool is_cleared() const { return !cleared_.empty(); }
  // Calls visit(const Entry&) for each that is not matched.
  template <typename Visit>
  void for_each_unmatched(Visit visit) const {
    for (const auto& [number, sending] : offered_) visit(sending.entry);
    for (const auto& [id, set] : sets_) std::ranges::for_each(set.posted, visit);
  }
  // For each that is matched, but whose payload has not begun to come.
  template <typename Visit>
  void for_each_cleared(Visit visit) const {
    for (const auto& [key, answered] : cleared_) visit(answered.receive);
  }
  std::uint64_t digest() const;

 private:
  // What has come before its receive.
  struct Arrival {
    int source = 0;
    Offer offer;
    std::vector<std::byte> payload;  // the offer's
  };
  struct InSet {
    std::shared_ptr<const std::vector<int>> members;  // null: this rank has not come to the set yet
    std::deque<Entry> posted;                         // receives
    std::deque<Arrival> arrivals;
  };
  // A send of which the other rank has been told.
  struct Sending {
    Entry entry;
    int to = 0;
  };
  // A receive that has answered an Offer and waits for Coming or a Withdrawal.
  struct Answered {
    Entry receive;
    std::string refusal;  // "": it waits for the payload
  };
  using Sendings = std::map<std::uint64_t, Sending>;  // by number

  void send(Entry entry);
  // Gives it what has come already, or posts it before the receive at that place.
  void receive(Entry entry, std::deque<Entry>::iterator place);
  void deliver(int rank, Message message);
  // Takes what travels whole, if it may.
  bool send_whole(const Entry& entry, int to, Offer& offer);
  // This one waits no more.
  void count_received(int source, const Offer& offer);
  // A receive and the message for it.
  void meet(Entry receive, int source, const Offer& offer);
  void take_own(Entry receive, std::uint64_t number);
  std::string why_unequal(const Entry& receive, int source, const Offer& offer) const;
  void fail(const Entry& entry, const base::Status& why);
  void withdraw(Sendings::iterator sending, const base::Status& why);
  template <typename Condition>
  void fail_receives(InSet& set, const base::Status& why, Condition condition);
  bool nobody_sends(const InSet& set, const Request& receive) const;
  // Null: that set is gone.
  InSet* find_for_message(SetId set);
  bool has_left(int rank) const { return left_[static_cast<std::size_t>(rank)]; }

  const Settings settings_;
  Effects& effects_;
  std::map<SetId, InSet> sets_;
  std::uint32_t newest_epoch_ = 0;
  std::uint64_t last_number_ = 0;
  std::size_t posted_ = 0;  // receives in all sets
  Sendings offered_;
  std::map<std::pair<int, std::uint64_t>, Answered> cleared_;  // by sender and number
  std::vector<std::uint64_t> heard_;  // the number of the newest message of each rank
  // Of whole messages, by rank: what it has not said to have received, and what it has not been told that this rank has.
  std::vector<std::size_t> unreceived_, untold_;
  std::vector<bool> left_;             // by rank
  std::optional<base::Status> ended_;  // this rank has left
  // A send that had ended here was refused by its receiver: this rank's next call is told.
  std::optional<base::Status> owed_;
};

}  // namespace hvdlite::engine
