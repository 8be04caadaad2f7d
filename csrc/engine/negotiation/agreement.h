// The port through which the members of a process set agree without messages: a table of what they have announced, and a log of
// what all have (ledger.h has the protocol, and the argument that every unit is agreed exactly once).
// Thread: each member's object by the holder of that rank's progress token. Owns: as who implements it says. Blocks: never.
// Throws: Error(Internal) if what others have left there cannot be.
//
// Each try_... is one step: the others see all of it or nothing. It may be refused, and is then tried again. A member that ends
// in the middle of a step leaves nothing of it; the others' steps are refused from then on, but the log can still be read.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace hvdlite::engine {

class Agreement {
 public:
  virtual ~Agreement() = default;

  // --- its beginning ---
  // Has everybody left who used this memory before?
  virtual bool may_begin() = 0;
  // The coordinator, when it may: begins after its response list number `sequence`. The keys are those it is counting already.
  virtual void begin(std::uint64_t sequence, std::span<const std::uint64_t> keys) = 0;
  virtual bool exists() const = 0;
  // Response lists up to this one are not in the log; they come before everything in it.
  virtual std::uint64_t first_sequence() const = 0;

  // --- the log: this member's place in it ---
  enum class Kind : std::uint8_t { kComplete, kDiverted, kClosed, kList };
  struct LogEntry {
    std::uint64_t key = 0;  // of the unit; of a list its number
    Kind kind = Kind::kComplete;
    std::uint8_t by = 0;  // the member that appended it: of a complete unit the last to ask
    std::uint16_t contributors = 0;  // of a complete unit
    std::uint16_t prepared = 0;      // 1: of a complete unit: all members have prepared it
    std::uint16_t last = 0;          // 1: the last of those appended in one step
  };
  virtual bool has_news() const = 0;
  virtual LogEntry front() const = 0;
  virtual void pop() = 0;

  // --- steps ---
  enum class Step : std::uint8_t {
    kRefused,   // not now: another member is at it, or the log has no room
    kUnread,    // not before this member has read the log
    kDone,      // and the log is as it was
    kAppended,  // and the log has grown: the others are to be told
  };
  // What a member asks for: a tensor, or a group of them.
  struct Unit {
    std::uint64_t key = 0;      // of its name
    std::uint64_t content = 0;  // of everything that must agree
    bool absent = false;        // no value on this member
    bool prepared =
        false;  // this member has prepared it; what that means is no business of the agreement
    bool by_message = false;  // the answer: it has to be sent to the coordinator
  };
  // After it has read the log.
  virtual Step try_announce(std::span<Unit> units) = 0;
  // Who leaves, after it has read the log: nothing that anybody has announced will be agreed.
  virtual Step try_close() = 0;
  // As try_close, of a member that fails: it will not read the log any more, and tries for longer.
  virtual Step try_abandon() = 0;
  virtual bool is_open() const = 0;  // as of a moment ago

  // The coordinator's.
  // Its next response list has its place here, and these keys are decided.
  virtual Step try_list(std::uint64_t number, std::span<const std::uint64_t> decided) = 0;
  struct Upkeep {
    bool close = false;
    std::vector<std::uint64_t> divert;  // keys that it counts, which must not be agreed meanwhile
    bool reopen = false;
    std::vector<std::uint64_t> counted;  // as it reopens: all keys that it counts
  };
  // Takes out of it what has been done.
  virtual Step try_keep(Upkeep& upkeep) = 0;
};

}  // namespace hvdlite::engine
