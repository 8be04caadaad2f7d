// The port through which the members of a process set agree without the coordinator. Behind it are a table of the units that
// members have announced, and a log of the units that all members have announced. ledger.h describes the protocol and shows that
// every unit is agreed exactly once. Members that share memory share the table and the log (SharedAgreement). Other members have
// a copy each, in which all make the same steps in the same order (ReplicatedLedger).
// Thread: the holder of a rank's progress token calls that rank's object. Owns: as the implementation says. Blocks: never.
// Throws: Error(Internal) if the shared memory holds what no correct member writes, or a member sends what no correct one sends.
//
// Each try_... is one step: the other members see all of it or nothing. A step may be refused; the caller tries it again later. A
// step in a copy is done when the log has its entry, so a step that is "done" may still be on its way to the other members. A
// member that ends in the middle of a step leaves nothing of the step behind. After that the other members' steps are refused,
// but they can still read the log.
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

// What the other members need of a prepared operation's input. Copies of the agreement carry it with the announcement.
struct InlinePayload {
  std::span<const std::byte> input{};
  // The bytes for each member, one after the other in the input. Empty: all members need all of it.
  std::vector<std::size_t> parts{};
  // The memory of `input`, if the operation has several tensors; null if `input` is the caller's tensor.
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

  // Do the members share it in memory, so that a step needs no message?
  virtual bool is_in_memory() const = 0;

  // --- its beginning ---
  // Have all earlier users of this memory left it?
  virtual bool may_begin() = 0;
  // Called by the coordinator when may_begin() is true. The log begins after the coordinator's response list number `sequence`.
  // `keys` are the keys that the coordinator counts already.
  virtual void begin(std::uint64_t sequence, std::span<const std::uint64_t> keys) = 0;
  virtual bool exists() const = 0;
  // The log does not contain response lists up to this number. They come before all entries of the log.
  virtual std::uint64_t first_sequence() const = 0;

  // --- the log: this member's place in it ---
  enum class Kind : std::uint8_t { kComplete, kDiverted, kClosed, kList };
  struct LogEntry {
    std::uint64_t key = 0;  // the unit's key; of a response list its number
    Kind kind = Kind::kComplete;
    // The member that appended the entry; of a complete unit the last member to ask.
    std::uint8_t by = 0;
    std::uint16_t contributors = 0;  // of a complete unit: members with a value
    std::uint16_t prepared = 0;      // of a complete unit: 1 if all members have prepared it
    std::uint16_t last = 0;          // 1: the last entry that one step appended
  };
  virtual bool has_news() const = 0;
  virtual LogEntry front() const = 0;
  virtual void pop() = 0;

  // --- steps ---
  enum class Step : std::uint8_t {
    kRefused,   // not now: another member holds the lock, or the log has no room
    kUnread,    // this member must read the log first
    kDone,      // done; the log is unchanged
    kAppended,  // done; the log has grown, so the caller has to notify the other members
  };
  // One thing that a member asks for: a tensor, or a group of tensors.
  struct Unit {
    std::uint64_t key = 0;      // hash of the name
    std::uint64_t content = 0;  // hash of everything that members must agree on
    bool absent = false;        // no value on this member
    // This member has prepared it; the agreement only reports whether all members have.
    bool prepared = false;
    InlinePayload payload{};  // of a prepared unit
    bool by_message = false;  // output: the caller has to send it to the coordinator
  };
  // Needs that this member has read the whole log.
  virtual Step try_announce(std::span<Unit> units) = 0;
  // Called by a member that leaves, after it has read the whole log: no announced unit becomes complete any more.
  virtual Step try_close() = 0;
  // As try_close, but called by a member that fails. It has not read the log, and tries for longer.
  virtual Step try_abandon() = 0;
  virtual bool is_open() const = 0;  // a moment ago; it may have changed since

  // Called by the coordinator: puts its next response list into the log, and removes these decided keys from the table.
  virtual Step try_list(std::uint64_t number, std::span<const std::uint64_t> decided) = 0;
  struct Upkeep {
    bool close = false;
    // Keys that the coordinator counts; no unit with such a key may complete here.
    std::vector<std::uint64_t> divert;
    bool reopen = false;
    // When the port reopens: all keys that the coordinator counts.
    std::vector<std::uint64_t> counted;
  };
  // Removes from `upkeep` the changes that this step has made.
  virtual Step try_keep(Upkeep& upkeep) = 0;

  // --- only for copies ---
  // What this member needs of each member's input (by the member's index) of the prepared unit that pop() has just taken. Empty if
  // the members share memory.
  virtual std::vector<std::vector<std::byte>> take_payloads() { return {}; }
  // Another member's steps have arrived.
  virtual void hear(int member, LedgerSteps steps) = 0;
  // Tells the other members that this member has nothing to add, if they can go on only then. Returns true if it did so.
  virtual bool acknowledge() { return false; }
  // That member makes no more steps. All its steps have arrived.
  virtual void left(int /*member*/) {}
  // This member makes no more steps, and the others send it nothing but the coordinator's lists.
  virtual void leave() {}
  // Adds what tells states of this member's copy apart (Negotiation::digest).
  virtual void add_to(base::Hasher& /*hasher*/) const {}
};

}  // namespace hvdlite::engine
