// Negotiation without messages: the members of a process set that all live on one host agree, in shared memory, on what they
// all asked for and in which order it is done.
//
// The ledger has a table and a log. A member announces a unit (a tensor, or a whole group) by its key (a hash of its name) and
// content (a hash of everything that must agree). The first announcement makes a cell in the table, the others add their bit
// to it; the last one takes the cell out and appends "complete" to the log. All members read the log, each at its own pace,
// and do what it says in its order. So an agreement costs each member one short hold of a lock, and nobody needs to be awake
// for it but those who ask.
//
// What does not fit that picture goes to the coordinator in messages, and the ledger keeps the two ways apart:
//
//   announce ----> waits ----(last bit)----> complete       do it
//                    |
//                    +--(other content, or the coordinator got the same key in a message)--> diverted
//                    +--(the coordinator closed the ledger: join, leave, verdict)----------> closed
//
//   diverted: whoever announced the unit reads that in the log and sends its request in full; whoever announces it later is
//   told at once to do so. The cell stays, marked, until the coordinator has decided the unit.
//   list n: here, between the agreements of the ledger, comes the coordinator's n-th response list.
//
// Every unit is agreed exactly once, in one place in one order, because
//  1. all changes are made under one lock, so that "the last bit is set" and "diverted" exclude each other;
//  2. a member announces only when it has read the whole log (up_to_date), so that no entry it reads later concerns an earlier
//     announcement of the same key;
//  3. the coordinator diverts the key of every request it accepts, before anything else is announced under that key: while it
//     counts a key, nobody's announcement of it can complete here;
//  4. a decision of the coordinator takes the keys' cells out of the table in the same hold of the lock that puts the list
//     into the log, and what it had still to divert of them is forgotten: a key that nobody counts has no cell;
//  5. a member that leaves closes the ledger first, having read all of it: nothing it announced is agreed after that. One that
//     fails closes it too; it need not have read it, for it follows the log no more.
// Nobody withdraws in any other way: a member that announced does what the log says. tests/unit/test_ledger.py walks through every
// interleaving of small cases.
//
// A member that dies, or fails, while it holds the lock stops the others' announcements, not the others: they try again later,
// and meanwhile find out. What it had appended in this hold is never seen.
//
// Thread: each member's object by the holder of that rank's progress token. Owns: nothing but its place in the log.
// Blocks: never. Throws: Error(Internal) if what it reads in the shared memory cannot be.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "collectives/shared_channel.h"
#include "engine/negotiation/agreement.h"

namespace hvdlite::engine {

class Ledger {
 public:
  static constexpr int kMaxMembers = 64;
  // Powers of two.
  struct Capacity {
    std::uint32_t cells = 32768;
    std::uint32_t entries = 16384;
  };
  static std::size_t bytes(Capacity capacity);

  // memory: bytes(capacity) of it, zero at first, shared by all members. serial: not 0, larger than that of any earlier
  // ledger in this memory.
  Ledger(std::byte* memory, Capacity capacity, int members, int index, std::uint32_t serial);

  // The coordinator, once nobody uses an earlier ledger in this memory: begins after its response list number `sequence`.
  // The keys are those it is counting already.
  void create(std::uint64_t sequence, std::span<const std::uint64_t> keys);
  bool exists() const;
  // Response lists up to this one are not in the log; they come before everything in it.
  std::uint64_t first_sequence() const;

  // --- the log ---
  using Kind = Agreement::Kind;
  using LogEntry = Agreement::LogEntry;
  bool has_news() const { return news() > read_; }
  LogEntry front() const;
  void pop();

  // --- the lock: bounded tries, false if somebody else holds it ---
  static constexpr int kTries = 200;
  bool try_lock(int tries = kTries);
  void unlock();  // makes what was appended visible; true for appended() until the next lock
  // Was anything appended in this hold of the lock?
  bool appended() const { return tail_ != tail_at_lock_; }

  // --- with the lock ---
  // Was the whole log read? And is there room in it for so many more entries?
  bool up_to_date() const;
  bool has_room(std::uint32_t entries) const;
  enum class Answer : std::uint8_t { kWaits, kComplete, kByMessage };
  // Needs up_to_date() and room for one entry. prepared: as Agreement::Unit.
  Answer announce(std::uint64_t key, std::uint64_t content, bool absent, bool prepared);

  // The coordinator (close: also who leaves). Each needs room for one entry, whatever the number of keys. A table that grows too
  // full with diverted keys closes the ledger, and too many keys keep it closed.
  void divert(std::uint64_t key);
  void append_list(std::uint64_t number, std::span<const std::uint64_t> decided);
  void close();
  void reopen(std::span<const std::uint64_t> keys);
  // Also without the lock, as of a moment ago.
  bool is_open() const;
  // Cells of the table that are taken.
  std::uint32_t used() const;

 private:
  struct Header;
  struct Cell;

  std::uint64_t news() const;
  std::uint64_t slowest_reader(std::uint64_t most) const;
  Cell* find(std::uint64_t key) const;  // its cell, or the empty one where it belongs
  void erase(Cell* cell);
  void append(LogEntry entry);
  void mark_diverted(std::uint64_t key);
  bool fits(std::size_t keys) const;
  void wipe();

  Header* header_;
  LogEntry* entries_;
  Cell* cells_;
  Capacity capacity_;
  int index_;
  std::uint64_t everyone_;  // a bit for each member
  std::uint32_t serial_;
  std::uint64_t read_ = 0;
  std::uint64_t tail_ = 0;  // while the lock is held
  std::uint64_t tail_at_lock_ = 0;
};

// An Agreement in the window that the ranks of a host share: steps of a Ledger, each in one hold of its lock. Owns a share of the
// channel, whose end tells the next user of the region. try_abandon may take some milliseconds.
class SharedAgreement final : public Agreement {
 public:
  // memory: of the channel's region, for a ledger. serial: as Ledger's.
  SharedAgreement(std::byte* memory, std::shared_ptr<collectives::SharedChannel> channel,
                  std::uint32_t serial);

  bool may_begin() override { return channel_->is_free(); }
  void begin(std::uint64_t sequence, std::span<const std::uint64_t> keys) override {
    ledger_.create(sequence, keys);
  }
  bool exists() const override { return ledger_.exists(); }
  std::uint64_t first_sequence() const override { return ledger_.first_sequence(); }

  bool has_news() const override { return ledger_.has_news(); }
  LogEntry front() const override { return ledger_.front(); }
  void pop() override { ledger_.pop(); }

  Step try_announce(std::span<Unit> units) override;
  Step try_close() override { return close(/*up_to_date=*/true, Ledger::kTries); }
  Step try_abandon() override { return close(/*up_to_date=*/false, kTriesToAbandon); }
  bool is_open() const override { return ledger_.is_open(); }
  Step try_list(std::uint64_t number, std::span<const std::uint64_t> decided) override;
  Step try_keep(Upkeep& upkeep) override;

 private:
  // Some milliseconds for the lock of a ledger that is closed for good: time enough for who holds it to get a processor.
  static constexpr int kTriesToAbandon = 20 * Ledger::kTries;

  Step close(bool up_to_date, int tries);
  // What `change` does to the ledger, with its lock. It gives false where the log has no room.
  template <typename Change>
  Step hold(Change change, bool up_to_date, int tries = Ledger::kTries);

  std::shared_ptr<collectives::SharedChannel> channel_;
  Ledger ledger_;
};

}  // namespace hvdlite::engine
