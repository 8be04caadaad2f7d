// Negotiation without the coordinator for members that share no ledger in memory: each member has a copy of the ledger
// (ledger.h), and all copies make the same steps in the same order.
//
// A member sends each of its steps to all other members. The message has a stamp. Steps are made in the order of (stamp, index
// of the member). A member chooses as its next stamp the smallest number that is greater than its last stamp, and not smaller
// than any stamp that it has received. If it sends n messages one directly after the other, it chooses n consecutive stamps:
// the smallest ones that are greater than its last stamp, and of which the last one is not smaller than any stamp that it has
// received. (So if members always send equally many messages, they use equal stamps, no matter which of them sends first.)
// After a message with stamp s, a member sends no message with stamp s or a lower one. A copy makes a step when no message that
// belongs before this step can arrive any more. If the step has stamp s, the copy waits for a message of every other member
// with stamp s or a higher one. Of a member with a higher index than the step's sender, a message with stamp s - 1 is enough.
//
//   member 0: announce x (stamp 7) ----> member 1      Each copy has stamp 7 of both members. So it makes the step of member 0,
//   member 1: announce x (stamp 7) ----> member 0      and then the step of member 1, which completes x.
//
// Members that announce the same units thus agree after one message in each direction, sent at the same time. A coordinator
// would need twice that time. If a member has nothing to announce, steps of the others may wait for a message of this member.
// The member then sends a message without steps (an acknowledgement), but only if one of these steps has an effect. A step has
// an effect if
//   - it announces a unit that all members have announced (such a step waits only if their stamps differ); or
//   - it announces a diverted key; or
//   - it is no announcement.
// A member also sends an acknowledgement to report that it has read a closing, or, while the ledger is closed, that it has read
// another exception. (The next list explains exceptions, and why members report them.)
//
// There are three other differences from the ledger in shared memory:
//   - A step is made later than it is asked for. So when the copies make an announcement, the log can have an entry that the
//     announcing member had not read when it sent the announcement: the key was diverted or decided, or the ledger was closed.
//     All log entries of other kinds than kComplete are called exceptions. They are numbered, and each message says how many
//     exceptions its sender has read. An announcement is void if an earlier exception concerns its key, and its sender had not
//     read this exception. (A closing concerns all keys.) The sender takes the unit back when it reads the exception.
//   - A member that leaves or joins waits until all members have read a closing that comes after its last announcement. If it
//     is the coordinator, it also waits until all have read its lists. Then all have executed the operations in which it took
//     part. So members report a closing at once when they have read it, and also each exception that they read while the ledger
//     is closed.
//   - A small payload travels with its announcement (inline payload): each member gets all of it, or only the bytes that it
//     needs. When the unit becomes complete, each member has what it needs of all payloads, and most operations need no more
//     messages.
//
// Source: the order is Lamport's (Time, clocks, and the ordering of events in a distributed system, CACM 21, 1978). Copies that
// make the same steps are the state machine approach (Schneider, ACM Computing Surveys 22, 1990). The rule that a member
// acknowledges only a step that has an effect was added by hvdlite.
//
// The number of messages grows with the square of the number of members. Therefore large sets ask the coordinator
// (HVDLITE_LEDGER_COPIES).
//
// Thread: the holder of the progress token. Owns: this member's copy, and messages whose steps are not made yet. Blocks: never.
// Throws: Error(Internal) if a member sends something that no correct member would; also whatever `tell` throws.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "engine/negotiation/agreement.h"

namespace hvdlite::engine {

class ReplicatedLedger final : public Agreement {
 public:
  static constexpr int kMaxMembers = 32;
  // Sends a message to the member with this index.
  using Tell = std::function<void(int member, const LedgerSteps&)>;

  ReplicatedLedger(SetId set, int members, int index, Tell tell);

  bool is_in_memory() const override { return false; }
  bool may_begin() override { return true; }
  void begin(std::uint64_t, std::span<const std::uint64_t>) override {}
  bool exists() const override { return true; }
  std::uint64_t first_sequence() const override { return 0; }

  bool has_news() const override { return !log_.empty(); }
  LogEntry front() const override { return log_.front(); }
  void pop() override;
  std::vector<std::vector<std::byte>> take_payloads() override { return std::move(taken_); }

  Step try_announce(std::span<Unit> units) override;
  Step try_close() override;
  Step try_abandon() override { return Step::kDone; }
  bool is_open() const override { return open_; }
  Step try_list(std::uint64_t number, std::span<const std::uint64_t> decided) override;
  Step try_keep(Upkeep& upkeep) override;

  void hear(int member, LedgerSteps steps) override;
  bool acknowledge() override;
  void left(int member) override;
  void leave() override;

  void add_to(base::Hasher& hasher) const override;

 private:
  using Place = std::pair<std::uint64_t, int>;  // in the order of all steps: stamp, member
  struct MemberState {
    std::uint64_t stamp = 0;       // of its last message
    std::uint64_t told = 0;        // the number of exceptions that it had read then
    std::uint64_t exceptions = 0;  // the same, for its last message whose steps are made
    bool is_gone = false;
  };
  struct HeardSteps {
    LedgerSteps message;
    std::uint64_t arrival = 0;  // its number among all messages that this member has heard or sent
  };
  // A cell of the table: what members have announced under a key, or only that the key is diverted.
  struct AnnouncedUnit {
    std::uint64_t content = 0;
    std::uint32_t announced = 0;  // a bit for each member
    std::uint16_t contributors = 0;
    bool diverted = false;
    bool prepared = true;  // by all that have announced it
    std::uint64_t last_arrival = 0;
    std::uint8_t last = 0;  // the member whose announcement arrived last here
    // For each member: the payload that it has sent to this member, if it has prepared the unit. Empty if no member has.
    std::vector<std::vector<std::byte>> payloads;
  };

  MemberState& me() { return members_[static_cast<std::size_t>(index_)]; }
  // Sends this member's steps to all other members that have not left, and gives them to its own copy. following: how many
  // messages this member sends directly after this one.
  void send(LedgerSteps message, const InlinePayload& payload = {}, std::uint64_t following = 0);
  void take(int member, LedgerSteps message);
  bool has_passed(int member, Place place) const;
  void advance();
  void carry_out(int member, HeardSteps heard);
  void announce(int member, LedgerSteps& message, LedgerSteps::Step& step, std::uint64_t arrival);
  void divert(std::uint64_t key, int by);
  void close(int by);
  void except(Kind kind, std::uint64_t key, int by);
  void forget_exceptions();
  bool is_void(std::uint64_t key, std::uint64_t exceptions) const;
  bool have_all_read(std::uint64_t exceptions) const;
  bool holds_up_others() const;

  const SetId set_;
  const int index_;
  const Tell tell_;
  std::vector<MemberState> members_;
  std::uint64_t highest_ = 0;            // the highest stamp that this member has heard or sent
  std::uint64_t arrivals_ = 0;           // the number of messages that it has heard or sent
  std::map<Place, HeardSteps> waiting_;  // messages whose steps are not made yet

  // --- the copy ---
  bool open_ = true;
  std::unordered_map<std::uint64_t, AnnouncedUnit> cells_;    // by key
  std::deque<LogEntry> log_;                                  // what this member has not read
  std::deque<std::vector<std::vector<std::byte>>> payloads_;  // of the prepared units in log_
  std::vector<std::vector<std::byte>> taken_;                 // of the one that was popped last
  std::uint64_t exceptions_ = 0;                              // in the log so far
  std::uint64_t closed_at_ = 0;                               // number of the last closing; 0: none
  // By key: the number of the key's last diversion or decision (an exception), as long as an announcement can come whose sender
  // had not read that exception.
  std::unordered_map<std::uint64_t, std::uint64_t> excepted_;

  // --- this member ---
  std::uint64_t read_ = 0;          // exceptions that it has read
  std::uint64_t closing_read_ = 0;  // number of the last closing that it has read
  bool is_silent_ = false;          // it has read a closing, and has announced nothing since
  bool reopening_ = false;          // it has asked for a reopening that is not made yet
  bool closing_ = false;            // it has asked for a closing, and has read none since
  std::uint64_t own_list_ = 0;      // number, as an exception, of its own last list
  bool has_left_ = false;
  // Has this member's copy, or what it has read, changed since the last acknowledge()?
  bool changed_ = false;
};

}  // namespace hvdlite::engine
