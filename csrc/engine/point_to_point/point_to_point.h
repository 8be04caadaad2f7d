// Matches this rank's sends and receives with those of other ranks. The rules are MPI's: a message is matched by process set,
// rank and tag, in the order of posting.
// Thread: one at a time. Owns: this rank's sends and receives until they end or their payload begins to move, and messages that
// have arrived before their receive was posted. Blocks: only in the effects. Throws: Error(Internal) on messages that no
// correct rank sends, std::bad_alloc, and what the effects throw.
//
// A pure state machine: entries and messages go in; what must be done comes out through Effects, in order. The machine
// negotiates nothing, and of all collectives only the removal of a process set waits for sends and receives. digest() tells the
// machine's states apart. Cycle drives the machine, and gives it the other ranks' messages.
//
//   what callers ask ---------> admit() ----------------+
//   what another rank says ---> hear() -----------------+--> Effects: send, finish, start_send, start_receive, take, take_own
//   how ranks end ------------> left, leave, end_all ---+
//   which sets there are -----> add_set, remove_set ----+
//
// A small message travels whole: its Offer holds the payload, and the send ends when the Offer is sent. A sender may do this
// while its whole messages to one rank stay within a limit (Settings::unreceived_bytes). A message counts against the limit
// until a Receipt has come for its bytes. The receiving rank sends a Receipt when its receives have taken half of the limit
// since the last Receipt. For a large message, and for a small one over the limit, the Offer only announces the payload. The
// payload follows when there is a receive for the message:
//
//   sender                     receiver
//      Offer       ------------->   a receive that fits is there, or comes later
//            <-------------------   Clearance
//      Coming      ------------->   start_receive
//      start_send  ============>
//
// The send may fail before the Clearance arrives. In that case the sender has sent a Withdrawal, and does not answer the
// Clearance. Neither rank gives memory to the transport before the Coming, and after the Coming the payload is certain to
// move. So no posted transfer has to be cancelled. (These are the eager and rendezvous protocols of MPI's libraries, with a
// Withdrawal added.) A tensor on a GPU never travels whole, unless it is empty.
//
// If the message and the receive that matches it differ in dtype, layout or size, the receiver answers with a Rejection
// instead of a Clearance. If the sender answers the Rejection with a Coming, the send had not ended, and send and receive
// fail. If a Withdrawal comes, the send had failed for another reason, and the receive waits again, because a later send may
// match the receive. If the message came whole, the receive fails at once. The refused send has ended already, so the next
// send or receive that the sender submits fails instead.
#pragma once

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

  // What the machine wants done. Each call is carried out before it returns.
  class Effects {
   public:
    virtual ~Effects() = default;
    virtual void send(int rank, const Message& message) = 0;
    virtual void finish(std::span<const Entry> entries, const base::Status& status) = 0;
    // Begins to move the payload from or to the entry's memory; the entry ends when the payload has moved. The sender starts
    // its payloads to one rank in the same order in which that rank starts to receive them. So this order says which payload
    // belongs to which receive.
    virtual void start_send(Entry entry, int to) = 0;
    virtual void start_receive(Entry entry, int from) = 0;
    // take: gives a receive the payload of a message that travelled whole; the payload is valid during the call only. take_own:
    // gives a receive the payload of this rank's own send. Both functions end their entries; take_own may do so after it has
    // returned.
    virtual void take(Entry receive, const void* payload) = 0;
    virtual void take_own(Entry receive, Entry send) = 0;
    // For the records. posted: the machine has taken the entry. reached: the entries have reached a stage.
    virtual void posted(const Entry& entry) = 0;
    virtual void reached(std::span<const Entry> entries, Stage stage) = 0;
  };

  struct Settings {
    int rank = 0;
    int ranks = 1;
    std::size_t whole_bytes = 0;  // the size of the largest message that travels whole
    // The most bytes (counted_bytes) that one rank sends to another in whole messages before a Receipt for them has come.
    std::size_t unreceived_bytes = 0;
  };
  // The bytes for which a whole message counts against unreceived_bytes: its payload, and a constant for its name and its place
  // in arrivals_.
  static std::size_t counted_bytes(std::size_t bytes) { return bytes + 256; }
  // The effects must outlive this object.
  PointToPoint(const Settings& settings, Effects& effects);

  // Call it when this rank adds the set, even if this rank is no member. Messages for the set may have arrived before.
  void add_set(const ProcessSet& set);
  // Call it when all operations of this rank on the set have ended.
  void remove_set(SetId set);

  // --- what this rank asks ---
  // Takes a send or a receive. An entry that can never be matched ends at once with an error. For each send that was refused
  // after it had ended, one later entry ends with an error, too. If admit() throws, and the entry still has its request, the
  // entry belongs to the calling function.
  void admit(Entry& entry);

  // --- what others say ---
  void hear(int source, Offer message);
  void hear(int source, Clearance message);
  void hear(int source, Coming message);
  void hear(int source, Withdrawal message);
  void hear(int source, const Rejection& message);
  void hear(int source, Receipt message);
  // Fails the unmatched sends and receives of this rank that the verdict names.
  void hear(int source, const Verdict& message);

  // --- how ranks end ---
  // Another rank has left. Fails the unmatched sends to it, and the receives for which no rank can send a message any more.
  void left(int rank, const base::Status& why);
  // This rank leaves: fails its unmatched sends and receives, and later ones. Matched ones still end normally.
  void leave(const base::Status& why);
  // After a failure, and at the end of a shutdown: ends all sends and receives that wait, and tells no other rank.
  void end_all(const base::Status& why);

  // --- questions ---
  // Does any send or receive of this rank wait for a message?
  bool waits() const { return !offered_.empty() || !answered_.empty() || !posted_.empty(); }
  bool waits(SetId set) const;
  // Does a receive of this rank wait for a sender's Coming or Withdrawal?
  bool waits_for_sender() const { return !answered_.empty(); }
  // Calls visit(const Entry&) for each send and receive that is not matched.
  template <typename Visit>
  void for_each_unmatched(Visit visit) const {
    for (const auto& [number, entry] : offered_) visit(entry);
    for (const auto& [place, entry] : posted_) visit(entry);
  }
  // Calls visit(const Entry&) for each receive that has answered an Offer, and waits for its sender's Coming or Withdrawal.
  template <typename Visit>
  void for_each_answered(Visit visit) const {
    for (const auto& [key, answered] : answered_) visit(answered.receive);
  }
  std::uint64_t digest() const;

 private:
  // A message that has arrived before its receive was posted.
  struct Arrival {
    int source = 0;
    Offer offer;
    std::vector<std::byte> payload;  // offer.payload refers to it
  };
  // A receive that has answered an Offer and waits for the sender's Coming or Withdrawal.
  struct Answered {
    Entry receive;
    std::uint64_t place = 0;  // as in posted_
    // Empty if the answer was a Clearance; otherwise the reason of the Rejection.
    std::string refusal;
  };
  using Entries = std::map<std::uint64_t, Entry>;

  // If send(), receive(), send_whole() or meet() throws, an entry that still has its request belongs to the calling function.
  void send(Entry& entry);
  // Gives the receive a message that has arrived already, or posts the receive at its place. Fails the receive if no rank can
  // send a message for it.
  void receive(Entry& entry, std::uint64_t place);
  // Sends the message, or handles it at once if it is for this rank.
  void deliver(int rank, Message message);
  // Sends the message whole and ends the entry, if its size, its memory and the limit allow it. Otherwise returns false.
  bool send_whole(const Entry& entry, int to, Offer& offer);
  // Counts a whole message that no longer waits for a receive, and sends a Receipt when half of the limit is counted.
  void count_received(int source, const Offer& offer);
  // Matches a receive with the message for it, or refuses the message if dtype, layout or size differs.
  void meet(Entry& receive, std::uint64_t place, int source, const Offer& offer);
  // Calls match(receive). If that throws, and the receive still has its request, posts it, so that end_all() ends it.
  template <typename Match>
  void match_or_post(Entry receive, std::uint64_t place, Match match);
  // Empty if dtype, memory layout and size are equal.
  std::string why_unequal(const Entry& receive, int source, const Offer& offer) const;
  // Ends the entry with this error, and puts the entry's description in front of it.
  void fail(const Entry& entry, const base::Status& why);
  // Fails the unmatched sends and receives for whose requests condition(request) is true.
  template <typename Condition>
  void fail_unmatched(const base::Status& why, Condition condition);
  bool nobody_sends(const Request& receive) const;
  bool has_left(int rank) const { return left_[static_cast<std::size_t>(rank)]; }

  const Settings settings_;
  Effects& effects_;
  std::map<SetId, std::shared_ptr<const std::vector<int>>> sets_;  // their members
  std::uint32_t newest_epoch_ = 0;  // of the sets that this rank has added
  std::uint64_t last_number_ = 0;   // of this rank's newest Offer
  std::uint64_t last_place_ = 0;    // of this rank's newest receive
  Entries offered_;                 // sends that wait for an answer, by number
  Entries posted_;  // receives that wait for a message, by their place in the order of posting
  std::deque<Arrival> arrivals_;  // in their order; also for sets that this rank has not added yet
  std::map<std::pair<int, std::uint64_t>, Answered> answered_;  // by sender and number
  std::vector<std::uint64_t> heard_;  // the number of each rank's newest Offer
  // Bytes of whole messages, by rank. unreceived_: sent to that rank, which has not reported them as received. untold_:
  // received from that rank, and not yet reported to it.
  std::vector<std::size_t> unreceived_, untold_;
  std::vector<bool> left_;             // by rank
  std::optional<base::Status> ended_;  // this rank has left, for this reason
  // One error for each send of this rank that its receiver refused after the send had ended. Each of the next sends and
  // receives of this rank ends with one of these errors.
  std::deque<base::Status> owed_;
};

}  // namespace hvdlite::engine
