// The ledger is one piece of memory that every member maps. It holds no pointers, because each process may map it at another
// address. It has three areas, one after the other (sizes of the usual Capacity):
//
//    area, size         content                      is written by                     is read by
//    Header, 4.2 KiB    serial, first_sequence       the coordinator, in begin()       all, without the lock
//                       locked                       all to lock, holder to unlock     all
//                       open, tail                   the holder of the lock            all, also without the lock
//                       used                         the holder                        the holder
//                       positions                    each member its own               the holder
//    log, 256 KiB       a ring of 16384 entries      the holder, from `tail` on        all, before `tail`, without the lock
//    table, 1 MiB       32768 cells, by key          the holder                        the holder
//
// begin() writes header and table without the lock: until the other members see the new serial, they read only the serial.
//
// An example with three members. `announced` has a bit for each of them; member 0 is the bit at the right.
//
//    step                                         the table                            the log gets
//    member 0 announces x                         x: announced 001, contributors 1
//    member 2 announces x                         x: announced 101, contributors 2
//    member 1 announces x, without a value        x is taken out                       complete x, by 1, contributors 2
//    member 2 announces y with content A          y: announced 100, contributors 1
//    member 0 announces y with content B          y: announced 100, diverted           diverted y, by 0
//    the coordinator decides y in list 1          y is taken out                       list 1, by 0
//
// When member 0 announces y, the result tells it to send its request (Unit::by_message). Member 2 sends its own when it reads
// "diverted y". If member 1 announces y before list 1, it finds the diverted cell and sends its request, without a log entry.
//
// Members read the log without the lock. They see only whole entries, and none is overwritten too early:
//   - unlock() stores `tail` (release) after the entries are written; a reader loads it (acquire) and stops there.
//   - A reader copies an entry (front), and then stores its position (pop, release). The holder loads all positions (acquire)
//     before it appends (has_room). Entry 16384 takes the place of entry 0, but only when all members have read entry 0.
//
// Before a change a step checks whether the log has room, because half a change could not be taken back. An announcement of n
// units needs at most n entries, any other change at most one. Without room the change is not made, and the caller tries again
// (except after try_abandon).
#include "engine/negotiation/ledger.h"

#include <sched.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <utility>

#include "base/cache_line.h"
#include "base/error.h"
#include "base/thread.h"

namespace hvdlite::engine {
namespace {

// A key of 0 marks an empty cell. So a unit whose hash is 0 gets the key 1.
constexpr std::uint64_t as_key(std::uint64_t hash) { return hash != 0 ? hash : 1; }

// A faulty process may have written anything into the ledger. So loops over it are bounded, and indices from it are checked.
[[noreturn]] void damaged(const char* how) {
  throw base::Error(base::ErrorCode::kInternal,
                    std::string("the shared memory in which ranks agree is damaged: ") + how);
}

// After this many tries the caller yields its processor between tries, in case the holder of the lock needs it.
constexpr int kTriesBeforeYield = 64;

}  // namespace

// `tail` is not in the cache line of `locked`: members load `tail` in every pass, and each change of `locked` takes its line
// away from them. Each position has a line of its own, too, because its member stores the position after each entry.
struct Ledger::Header {
  // Of the last ledger that began in this memory.
  alignas(base::kCacheLine) std::atomic<std::uint32_t> serial;
  std::uint64_t first_sequence;
  alignas(base::kCacheLine) std::atomic<std::uint32_t> locked;
  // These two change only under the lock, or in begin().
  std::atomic<std::uint32_t> open;
  std::uint32_t used;                                         // cells in use
  alignas(base::kCacheLine) std::atomic<std::uint64_t> tail;  // entries that members may read
  struct alignas(base::kCacheLine) Position {
    std::atomic<std::uint64_t> read;  // entries that this member has read
  } positions[kMaxMembers];
};

struct Ledger::Cell {
  std::uint64_t key;
  std::uint64_t content;
  std::uint64_t announced;  // a bit for each member
  // Of the members that have announced the unit: how many have a value, and how many have prepared the unit.
  std::uint16_t contributors;
  std::uint16_t preparers;
  std::uint32_t diverted;
};

std::size_t Ledger::bytes(Capacity capacity) {
  return sizeof(Header) + base::round_up_to_cache_lines(capacity.entries * sizeof(LogEntry)) +
         base::round_up_to_cache_lines(capacity.cells * sizeof(Cell));
}

Ledger::Ledger(std::byte* memory, Capacity capacity, int members, int index, std::uint32_t serial,
               std::shared_ptr<collectives::SharedChannel> channel)
    : header_(reinterpret_cast<Header*>(memory)),
      entries_(reinterpret_cast<LogEntry*>(memory + sizeof(Header))),
      cells_(reinterpret_cast<Cell*>(
          memory + sizeof(Header) +
          base::round_up_to_cache_lines(capacity.entries * sizeof(LogEntry)))),
      capacity_(capacity),
      index_(index),
      everyone_(members == kMaxMembers ? ~std::uint64_t{0} : (std::uint64_t{1} << members) - 1),
      serial_(serial),
      channel_(std::move(channel)) {
  HVD_CHECK(members >= 1 && members <= kMaxMembers && serial != 0);
}

void Ledger::begin(std::uint64_t sequence, std::span<const std::uint64_t> keys) {
  wipe();
  header_->locked.store(0, std::memory_order_relaxed);
  header_->open.store(0, std::memory_order_relaxed);
  header_->tail.store(0, std::memory_order_relaxed);
  for (Header::Position& position : header_->positions) {
    position.read.store(0, std::memory_order_relaxed);
  }
  header_->first_sequence = sequence;
  reopen(keys);
  // The last store, with release: a member that sees this serial (exists) also sees all stores before it.
  header_->serial.store(serial_, std::memory_order_release);
}

bool Ledger::exists() const { return header_->serial.load(std::memory_order_acquire) == serial_; }

std::uint64_t Ledger::first_sequence() const { return header_->first_sequence; }

// --- the log --------------------------------------------------------------------------------------------------------

std::uint64_t Ledger::news() const { return header_->tail.load(std::memory_order_acquire); }

Ledger::LogEntry Ledger::front() const {
  // Entries that this member has not read are not overwritten (has_room), so there are never more of them than the ring holds.
  if (news() - read_ > capacity_.entries) damaged("its log is longer than it can be");
  const LogEntry entry = entries_[read_ & (capacity_.entries - 1)];
  if (entry.kind > Kind::kList) damaged("its log holds an entry of an unknown kind");
  if (entry.by >= kMaxMembers || ((everyone_ >> entry.by) & 1) == 0) {
    damaged("its log holds an entry of an unknown member");
  }
  return entry;
}

void Ledger::pop() {
  ++read_;
  header_->positions[index_].read.store(read_, std::memory_order_release);
}

void Ledger::stop_reading() {
  if (!exists()) return;  // an earlier ledger may still use the memory
  // has_room() takes the smallest position, so this one, the largest possible, never limits the room.
  header_->positions[index_].read.store(~std::uint64_t{0}, std::memory_order_release);
}

void Ledger::append(LogEntry entry) {
  entry.by = static_cast<std::uint8_t>(index_);
  // All fields are written: the entry that was in this place before must not leave its `last` here.
  entries_[tail_ & (capacity_.entries - 1)] = entry;
  ++tail_;
}

// --- the lock -------------------------------------------------------------------------------------------------------

bool Ledger::try_lock(int tries) {
  for (int i = 0;; ++i) {
    // Test-and-test-and-set: the load comes first, because an exchange always takes the cache line away from the holder.
    if (header_->locked.load(std::memory_order_relaxed) == 0 &&
        header_->locked.exchange(1, std::memory_order_acquire) == 0) {
      tail_ = tail_at_lock_ = header_->tail.load(std::memory_order_relaxed);
      return true;
    }
    if (i >= tries) return false;
    if (i < kTriesBeforeYield) {
      base::spin_pause();
    } else {
      sched_yield();
    }
  }
}

void Ledger::unlock() {
  if (appended()) {
    // Entries that are appended in one critical section become visible together, so that all members fuse the same ones.
    entries_[(tail_ - 1) & (capacity_.entries - 1)].last = 1;
    header_->tail.store(tail_, std::memory_order_release);
  }
  header_->locked.store(0, std::memory_order_release);
}

bool Ledger::up_to_date() const { return read_ == tail_at_lock_; }

bool Ledger::has_room(std::uint32_t entries) const {
  const int members = std::popcount(everyone_);
  // How many entries the slowest member has read. A member that has called stop_reading() does not count.
  std::uint64_t slowest = tail_;
  for (int member = 0; member < members; ++member) {
    slowest = std::min(slowest, header_->positions[member].read.load(std::memory_order_acquire));
  }
  return tail_ + entries - slowest <= capacity_.entries;
}

// --- announcements --------------------------------------------------------------------------------------------------

bool Ledger::announce(std::uint64_t hash, std::uint64_t content, bool absent, bool prepared) {
  const std::uint64_t key = as_key(hash);
  if (!is_open()) return false;
  const std::uint64_t me = std::uint64_t{1} << index_;
  Cell* cell = find(key);
  if (cell->key == 0) {
    // Only half of the cells are for announcements, because the coordinator needs cells for the keys that it counts (fits).
    if (header_->used >= capacity_.cells / 2) return false;
    ++header_->used;
    *cell = {key, content, 0, 0, 0, 0};
  } else if (cell->diverted != 0) {
    return false;
  } else if (cell->content != content) {
    // The coordinator compares the requests: it allows a difference (in an allgather's rows, say), or fails the operation.
    cell->diverted = 1;
    append({.key = key, .kind = Kind::kDiverted});
    return false;
  }
  HVD_CHECK((cell->announced & me) == 0);
  cell->announced |= me;
  if (!absent) ++cell->contributors;
  if (prepared) ++cell->preparers;
  if (cell->announced != everyone_) return true;
  const bool by_all = cell->preparers == std::popcount(everyone_);
  append({.key = key,
          .kind = Kind::kComplete,
          .contributors = cell->contributors,
          .prepared = by_all ? std::uint16_t{1} : std::uint16_t{0}});
  // A member that has read this entry may announce the next operation of this name, and must not find this cell.
  erase(cell);
  return true;
}

void Ledger::divert(std::uint64_t hash) {
  const std::uint64_t key = as_key(hash);
  if (!is_open()) return;
  const Cell* cell = find(key);
  const bool is_announced = cell->key != 0 && cell->diverted == 0;
  if (!fits(1)) {
    close();  // in a closed ledger all units go by message, so no key needs a diverted cell
  } else {
    mark_diverted(key);
    // If no member has announced the key, the log needs no entry: members that announce it later find the diverted cell.
    if (is_announced) append({.key = key, .kind = Kind::kDiverted});
  }
}

void Ledger::mark_diverted(std::uint64_t hash) {
  const std::uint64_t key = as_key(hash);
  Cell* cell = find(key);
  if (cell->key == 0) {
    ++header_->used;
    *cell = {key, 0, 0, 0, 0, 0};
  }
  cell->diverted = 1;
}

// A decided key can have a cell that is not diverted. For example, the operation failed before keep_port could divert its key.
// Members that announced the unit in this cell take the unit back when they follow the list (LocalUnits::withdraw).
void Ledger::append_list(std::uint64_t number, std::span<const std::uint64_t> decided) {
  for (const std::uint64_t hash : decided) {
    Cell* cell = find(as_key(hash));
    if (cell->key != 0) erase(cell);
  }
  append({.key = number, .kind = Kind::kList});
}

void Ledger::close() {
  if (!is_open()) return;
  header_->open.store(0, std::memory_order_relaxed);
  wipe();
  append({.kind = Kind::kClosed});
}

// The log gets no entry: when the ledger opens, members have no units to take back, and each announcement looks at `open`.
void Ledger::reopen(std::span<const std::uint64_t> keys) {
  if (is_open() || !fits(keys.size())) return;
  header_->open.store(1, std::memory_order_relaxed);
  for (const std::uint64_t key : keys) mark_diverted(key);
}

// A diverted key gets a new cell only while less than seven eighths of the cells are in use, and an announced key only while
// less than one half is (announce). So the table always has empty cells, at which a search for a key without a cell ends.
bool Ledger::fits(std::size_t keys) const {
  return header_->used + keys <= capacity_.cells - capacity_.cells / 8;
}

bool Ledger::is_open() const { return header_->open.load(std::memory_order_relaxed) != 0; }

std::uint32_t Ledger::used() const { return header_->used; }

// --- the table: open addressing, linear probing ---------------------------------------------------------------------

Ledger::Cell* Ledger::find(std::uint64_t key) const {
  const std::uint64_t mask = capacity_.cells - 1;
  std::uint64_t place = key & mask;
  for (std::uint32_t left = capacity_.cells; left > 0; --left) {
    if (cells_[place].key == 0 || cells_[place].key == key) return &cells_[place];
    place = (place + 1) & mask;
  }
  damaged("its table has no free cell");
}

// Deletion with backward shift (Knuth, TAOCP 3, 6.4, Algorithm R). If a search for a key behind the gap would end at the gap,
// that key moves into the gap and leaves a new gap. An example with 8 cells: the keys 10, 18 and 11 belong in cells 2, 2 and 3,
// and lie in cells 2, 3 and 4. When 10 is erased, 18 moves to cell 2, and 11 moves to cell 3.
void Ledger::erase(Cell* cell) {
  const std::uint64_t mask = capacity_.cells - 1;
  auto gap = static_cast<std::uint64_t>(cell - cells_);
  const auto start = gap;
  for (std::uint64_t place = (gap + 1) & mask; cells_[place].key != 0; place = (place + 1) & mask) {
    if (place == start) damaged("its table has no free cell");
    const std::uint64_t home = cells_[place].key & mask;
    if (((place - home) & mask) < ((place - gap) & mask)) continue;
    cells_[gap] = cells_[place];
    gap = place;
  }
  cells_[gap].key = 0;
  --header_->used;
}

void Ledger::wipe() {
  std::memset(static_cast<void*>(cells_), 0, capacity_.cells * sizeof(Cell));
  header_->used = 0;
}

// --- steps: each is one critical section ----------------------------------------------------------------------------

// If `change` throws, the lock stays locked: perhaps the table is wrong, so no member may make a step in it any more. This rank
// fails (Cycle::guard), and tells the others.
template <typename Change>
Agreement::Step Ledger::hold(Change change, bool need_up_to_date, int tries) {
  if (!try_lock(tries)) return Step::kRefused;
  if (need_up_to_date && !up_to_date()) {
    unlock();
    return Step::kUnread;
  }
  const bool done = change();
  unlock();
  if (!done) return Step::kRefused;
  return appended() ? Step::kAppended : Step::kDone;
}

Agreement::Step Ledger::try_announce(std::span<Unit> units) {
  const auto change = [&] {
    if (!has_room(static_cast<std::uint32_t>(units.size()))) return false;
    for (Unit& unit : units) {
      unit.by_message = !announce(unit.key, unit.content, unit.absent, unit.prepared);
    }
    return true;
  };
  return hold(change, /*need_up_to_date=*/true);
}

Agreement::Step Ledger::lock_and_close(bool need_up_to_date, int tries) {
  const auto change = [&] {
    if (has_room(1)) close();
    return !is_open();  // a ledger that is closed already needs no room
  };
  return hold(change, need_up_to_date, tries);
}

void Ledger::hear(int, LedgerSteps) {
  throw base::Error(base::ErrorCode::kInternal,
                    "it makes steps in a copy of a ledger that the ranks share in memory");
}

Agreement::Step Ledger::try_list(std::uint64_t number, std::span<const std::uint64_t> decided) {
  const auto append = [&] {
    if (!has_room(1)) return false;
    append_list(number, decided);
    return true;
  };
  return hold(append, /*need_up_to_date=*/false);
}

Agreement::Step Ledger::try_keep(Upkeep& upkeep) {
  const auto keep = [&] {
    if (upkeep.close && has_room(1)) {
      close();
      upkeep.close = false;
      upkeep.divert.clear();  // a closed ledger has no units to divert
    }
    while (!upkeep.divert.empty() && has_room(1)) {
      divert(upkeep.divert.back());
      upkeep.divert.pop_back();
    }
    if (upkeep.reopen) reopen(upkeep.counted);
    upkeep.reopen = false;
    return true;
  };
  return hold(keep, /*need_up_to_date=*/false);
}

}  // namespace hvdlite::engine
