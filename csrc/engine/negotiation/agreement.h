// The port of a process set: the interface through which the members agree without the coordinator. Behind it are a table of
// the units that some members have announced, and a log of what has been agreed. ledger.h describes the protocol and shows that
// every unit is agreed exactly once. If all members share memory, they share one table and one log (Ledger). Otherwise each
// member has its own copy of both, and all copies make the same steps in the same order (ReplicatedLedger). "With copies" means
// the second case.
// Thread: the holder of a rank's progress token calls that rank's object. Owns: as the implementation says. Blocks: never.
// Throws: Error(Internal) if a member sends, or writes into the shared memory, something that no correct member would; also
// whatever sending a message throws.
//
// Each try_... is one step: the other members see all of it or nothing. (With copies, try_announce makes one step for all units
// that are not prepared, and one step for each prepared unit.) If a step is refused, the caller tries it again later. With
// copies a step counts as done when its message has been sent, although the copies make it later, in their common order. But
// try_close() with copies counts as done only when all members have read the closing (the log entry kClosed).
//
// If a member dies in the middle of a step in shared memory, the other members see nothing of this step, and all their later
// steps are refused. If it dies in the middle of a step with copies, perhaps only some members get the message, and the copies
// wait for further messages of the dead member. In both cases the members can still read the log.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include "base/hash.h"
#include "engine/model/messages.h"

namespace hvdlite::engine {

// What the other members need of a prepared operation's input. With copies this input travels with the announcement.
struct InlinePayload {
  std::span<const std::byte> input{};
  // How many bytes of the input each member needs. The bytes of member 0 lie first in the input, then those of member 1, and so
  // on. Empty: each member needs the whole input.
  std::vector<std::size_t> parts{};
  // The memory of `input`, if the unit has several tensors; null if `input` refers to the caller's tensor.
  std::shared_ptr<const std::vector<std::byte>> packed{};

  std::span<const std::byte> part(int member) const {
    if (parts.empty()) return input;
    const auto place = parts.begin() + member;
    return input.subspan(std::accumulate(parts.begin(), place, std::size_t{0}), *place);
  }
};

class Agreement {
 public:
  virtual ~Agreement() = default;

  // Do the members share the table and the log in memory, so that a step needs no message?
  virtual bool is_in_memory() const = 0;

  // --- its beginning ---
  // In shared memory: have all earlier users of this memory left it? With copies: always true.
  virtual bool may_begin() = 0;
  // Called by the coordinator when may_begin() is true. The log begins after the coordinator's response list number `sequence`.
  // `keys`: the keys of the operations that the coordinator counts already (some member has asked the coordinator for them, and
  // they are not decided). These keys are diverted (Kind) from the beginning.
  virtual void begin(std::uint64_t sequence, std::span<const std::uint64_t> keys) = 0;
  // Can the members make steps and read the log? In shared memory: as soon as begin() was called. With copies: always.
  virtual bool exists() const = 0;
  // Response lists up to this number have no entry in the log. Members follow these lists before they read the log.
  virtual std::uint64_t first_sequence() const = 0;

  // --- the log: this member's place in it ---
  // Complete: all members have announced the unit. Diverted: members send this unit's requests to the coordinator. Closed:
  // members send the requests of all units to the coordinator. List: the place of a response list in the order.
  enum class Kind : std::uint8_t { kComplete, kDiverted, kClosed, kList };
  struct LogEntry {
    std::uint64_t key = 0;  // the unit's key; of a response list its number
    Kind kind = Kind::kComplete;
    // A member's index. Of a complete unit: the last member to announce it (with copies: the member whose announcement arrived
    // last at this copy). Of any other entry: the member whose step appended it.
    std::uint8_t by = 0;
    std::uint16_t contributors = 0;  // of a complete unit: members with a value
    std::uint16_t prepared = 0;      // of a complete unit: 1 if all members have prepared it
    std::uint16_t last = 0;          // 1: the last entry that one step appended
  };
  // Is there an entry that this member has not read? If so, front() returns the first one, and pop() counts it as read.
  virtual bool has_news() const = 0;
  virtual LogEntry front() const = 0;
  virtual void pop() = 0;

  // --- steps ---
  enum class Step : std::uint8_t {
    kRefused,   // not now; for example, another member holds the lock, or the log has no room
    kUnread,    // this member must read the log first
    kDone,      // done; no other member has to be woken
    kAppended,  // done; the shared log has grown, so the caller has to wake the other members
  };
  // What a member asks for as a whole: an operation, or a group of operations.
  struct Unit {
    std::uint64_t key = 0;      // hash of the set and the name of the operation or group
    std::uint64_t content = 0;  // hash of everything that members must agree on
    // This member has no value. False for a group: there `content` includes which operations are absent.
    bool absent = false;
    // This member has prepared the unit; the port only reports whether all members have.
    bool prepared = false;
    InlinePayload payload{};  // of a prepared unit
    bool by_message = false;  // output: the caller has to send it to the coordinator
  };
  // If this member has not read the whole log, the result is kUnread or kRefused.
  virtual Step try_announce(std::span<Unit> units) = 0;
  // Called before this member leaves or joins. Needs, as try_announce does, that this member has read the whole log. After
  // kDone or kAppended, no unit that this member has announced becomes complete any more.
  virtual Step try_close() = 0;
  // Called by a member that fails. In shared memory: as try_close, but the member need not have read the log, and tries for
  // longer. With copies: does nothing, because the others learn of the failure from the member's Failure message.
  virtual Step try_abandon() = 0;
  virtual bool is_open() const = 0;  // the answer may be out of date

  // Called by the coordinator before it sends a response list with this number: appends an entry for the list to the log, and
  // removes the keys that the list decides from the table.
  virtual Step try_list(std::uint64_t number, std::span<const std::uint64_t> decided) = 0;
  // What the coordinator has to change at the port.
  struct Upkeep {
    bool close = false;
    // Keys that the coordinator counts. Members that have announced such a key, or announce it later, send their requests to
    // the coordinator.
    std::vector<std::uint64_t> divert;
    bool reopen = false;
    // If the port reopens: all keys that the coordinator counts.
    std::vector<std::uint64_t> counted;
  };
  // Called by the coordinator: makes these changes, and removes from `upkeep` those that this step has made.
  virtual Step try_keep(Upkeep& upkeep) = 0;

  // Called when this member has left, and reads the log no more. After the call no entry is kept for this member.
  virtual void stop_reading() {}

  // --- only for copies ---
  // For the prepared unit that pop() has just taken: what this member needs of each member's input, by the member's index.
  // Empty if the members share memory.
  virtual std::vector<std::vector<std::byte>> take_payloads() { return {}; }
  // Another member's steps have arrived.
  virtual void hear(int member, LedgerSteps steps) = 0;
  // Sends the other members a message without steps, if perhaps one of them waits for this member. The message says that this
  // member adds no step before their waiting steps, and how much of the log this member has read. Returns true if the message
  // was sent.
  virtual bool acknowledge() { return false; }
  // Another member (by its index) makes no more steps, and all its steps have arrived.
  virtual void left(int /*member*/) {}
  // This member makes no more steps. Of the other members' steps it still needs only the coordinator's lists.
  virtual void leave() {}
  // Adds the state of this member's copy to a digest (Negotiation::digest).
  virtual void add_to(base::Hasher& /*hasher*/) const {}
};

}  // namespace hvdlite::engine
