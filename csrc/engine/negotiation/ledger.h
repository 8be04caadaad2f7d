// Negotiation without messages: if all members of a process set (at most kMaxMembers) are on one host and share a region of the
// host's window, they agree in that region on the operations that all asked for, and on the order of these operations.
//
// The ledger has a table and a log. A member announces a unit (an operation, or a whole group) by its key (a hash of its name)
// and content (a hash of everything that must agree). The first announcement makes a cell in the table. Each announcement sets
// the bit of its member in the cell. The last one takes the cell out and appends "complete" to the log. Each member reads the
// log when it can, and executes the entries in order. So an agreement costs each member one short critical section. The
// agreement does not wait for a member that sleeps after its announcement.
//
// Operations on which the members do not agree in this way go to the coordinator in messages. The ledger keeps these two ways
// of agreement apart:
//
//   announce ----> waits ----(last bit)----> complete       execute it
//                    |
//                    +--(other content, or the coordinator got the same key in a message)--> diverted
//                    +--(the ledger was closed: join, leave, failure, deadlock, full table)-> closed
//
//   diverted: members that have announced the unit read this in the log and send their requests to the coordinator. A member
//   that announces it later is told at once to send its request. The diverted cell stays until the coordinator has decided the
//   unit.
//   closed: members send the requests of all units to the coordinator, and the table is emptied. The coordinator opens the
//   ledger again.
//
// The log also has entries "list n". Such an entry gives the coordinator's n-th response list its place among the agreements.
//
// Every unit is agreed exactly once, here or by the coordinator, and all members see one order, because
//  1. all changes are made under one lock, so that "the last bit is set" and "diverted" exclude each other;
//  2. a member announces only when it has read the whole log (up_to_date). So it has read all entries that concern its earlier
//     announcements of the same key, and a later entry with this key concerns the new announcement;
//  3. the coordinator diverts the key of every request that it accepts, in its next step. Then all members that ask for this
//     unit send their requests, too. The unit cannot complete here meanwhile, because the sender of the request announces the
//     key here only after the decision;
//  4. when the coordinator puts a list into the log, it takes the cells of all decided keys out of the table in the same
//     critical section. It does not divert these keys any more. So no diverted cell outlives the decision;
//  5. a member that leaves reads the whole log and closes the ledger before it leaves: nothing that it announced is agreed
//     after that. A member that fails tries to close the ledger, too, for some milliseconds. It need not read the log, because
//     it executes nothing more.
// A unit that a member has announced waits until the member reads an entry that ends this wait: complete, diverted, closed, or
// a list that decides the unit. Before that, the member cannot take the unit back. tests/unit/test_ledger.py walks through
// every interleaving of small cases.
//
// Each step (try_... of Agreement) is one critical section. If a member dies, or fails, while it holds the lock, all steps of
// the others are refused. The other members do not wait: they try again later, and meanwhile learn of the death or failure.
// What the holder had appended since it took the lock is never visible.
//
// Thread: the holder of a rank's progress token calls that rank's object. Owns: this rank's place in the log, and a reference
// to the region's SharedChannel, by which this rank counts as a user of the region. Blocks: never; try_abandon may take some
// milliseconds.
// Throws: Error(Internal) if what it reads in the shared memory is impossible.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "collectives/shared_channel.h"
#include "engine/negotiation/agreement.h"

namespace hvdlite::engine {

class Ledger final : public Agreement {
 public:
  static constexpr int kMaxMembers = 64;
  // Both are powers of two.
  struct Capacity {
    std::uint32_t cells = 32768;
    std::uint32_t entries = 16384;
  };
  static std::size_t bytes(Capacity capacity);

  // memory: that part of the channel's region which is for a ledger. It has bytes(capacity) bytes, is aligned to a cache line,
  // is shared by all members, and has only zeros until the first ledger begins in it. serial: greater than 0 and than the
  // serial of any earlier ledger in this memory. channel: may be null if nobody calls may_begin().
  Ledger(std::byte* memory, Capacity capacity, int members, int index, std::uint32_t serial,
         std::shared_ptr<collectives::SharedChannel> channel);

  bool is_in_memory() const override { return true; }
  bool may_begin() override { return channel_->is_free(); }
  void begin(std::uint64_t sequence, std::span<const std::uint64_t> keys) override;
  bool exists() const override;
  std::uint64_t first_sequence() const override;

  bool has_news() const override { return news() > read_; }
  LogEntry front() const override;
  void pop() override;
  void stop_reading() override;

  Step try_announce(std::span<Unit> units) override;
  Step try_close() override { return lock_and_close(/*need_up_to_date=*/true, kTries); }
  Step try_abandon() override { return lock_and_close(/*need_up_to_date=*/false, kTriesToAbandon); }
  bool is_open() const override;
  Step try_list(std::uint64_t number, std::span<const std::uint64_t> decided) override;
  Step try_keep(Upkeep& upkeep) override;
  void hear(int member, LedgerSteps steps) override;

  // --- the lock: try_lock() returns false if another member held it at each of these tries ---
  bool try_lock(int tries);
  void unlock();  // publishes what was appended; appended() stays true until the next lock
  // Has this member appended anything since it took the lock?
  bool appended() const { return tail_ != tail_at_lock_; }

  // --- with the lock ---
  // up_to_date: has this member read the whole log? has_room: is there room for this many more entries?
  bool up_to_date() const;
  bool has_room(std::uint32_t entries) const;
  // Needs up_to_date() and room for one entry. The arguments are as in Agreement::Unit. Returns false if the unit has to go by
  // message.
  bool announce(std::uint64_t key, std::uint64_t content, bool absent, bool prepared);

  // For the coordinator; close() also for a member that leaves, joins or fails. divert(), append_list() and close() need room
  // for one entry in the log, whatever the number of keys; reopen() needs none. If the table would have too many cells in use,
  // divert() closes the ledger, and reopen() leaves it closed.
  void divert(std::uint64_t key);
  void append_list(std::uint64_t number, std::span<const std::uint64_t> decided);
  void close();
  void reopen(std::span<const std::uint64_t> keys);
  // The number of cells in use, for tests.
  std::uint32_t used() const;

 private:
  struct Header;
  struct Cell;
  static constexpr int kTries = 200;
  // A member that fails tries for some milliseconds to get the lock: in that time a holder that has lost its processor can
  // continue and release the lock.
  static constexpr int kTriesToAbandon = 20 * kTries;

  // Calls `change` with the lock held. `change` returns false if the log has no room.
  template <typename Change>
  Step hold(Change change, bool need_up_to_date, int tries = kTries);
  Step lock_and_close(bool need_up_to_date, int tries);
  std::uint64_t news() const;
  Cell* find(std::uint64_t key) const;  // its cell, or the empty cell where it belongs
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
  // How many entries the log has had: tail_ now, tail_at_lock_ when this member took the lock. read_: how many of them this
  // member has read.
  std::uint64_t read_ = 0;
  std::uint64_t tail_ = 0;  // valid while this member holds the lock
  std::uint64_t tail_at_lock_ = 0;
  std::shared_ptr<collectives::SharedChannel> channel_;
};

}  // namespace hvdlite::engine
