// The entries and their names leave the queue at different times:
//
//    push()      the name goes into names_, and the entry goes into entries_
//    take()      all entries leave entries_ together; their names stay
//    forget()    the name leaves names_; after that, a new operation may have this name
//
// An example of NamesInFlight, with 8 cells instead of the 64 or more of a real table. The search for a name begins at its
// home: 2 for the names a, b and c, and 3 for d. The names are inserted in this order:
//
//    place          2  3  4  5  6
//    all four       a  b  c  d  -    a search for d begins at its home 3, and passes b and c
//    b is erased    a  c  d  -  -    c and d move one place back; otherwise the search for d would end at the free cell 3
#include "engine/intake/tensor_queue.h"

#include <algorithm>
#include <iterator>

#include "engine/model/text.h"

namespace hvdlite::engine {

std::size_t NamesInFlight::find(const Request& request) const {
  std::size_t place = home(request.name_hash);
  for (; cells_[place].request != nullptr; place = after(place)) {
    const HashCell& cell = cells_[place];
    if (cell.hash == request.name_hash && cell.request->set == request.set &&
        cell.request->name == request.name) {
      break;
    }
  }
  return place;
}

bool NamesInFlight::insert(const Request& request) {
  reserve(1);
  HashCell& cell = cells_[find(request)];
  if (cell.request != nullptr) return false;
  cell = {request.name_hash, &request};
  ++used_;
  return true;
}

void NamesInFlight::erase(const Request& request) {
  std::size_t gap = find(request);
  if (cells_[gap].request == nullptr) return;
  --used_;
  // Deletion with backward shift (Knuth, TAOCP 3, 6.4, Algorithm R): up to the next free cell, each request whose search would
  // pass over the gap moves into the gap.
  for (std::size_t place = after(gap); cells_[place].request != nullptr; place = after(place)) {
    const std::size_t mask = cells_.size() - 1;
    const std::size_t from_home = (place - home(cells_[place].hash)) & mask;
    if (from_home < ((place - gap) & mask)) continue;
    cells_[gap] = cells_[place];
    gap = place;
  }
  cells_[gap] = {};
}

void NamesInFlight::reserve(std::size_t more) {
  std::size_t cells = cells_.size();
  while (2 * (used_ + more) > cells) cells *= 2;
  if (cells == cells_.size()) return;
  // The home of a hash depends on the number of cells. So each request is inserted again: find() gives a free cell.
  std::vector<HashCell> before(cells);
  before.swap(cells_);
  for (const HashCell& cell : before) {
    if (cell.request != nullptr) cells_[find(*cell.request)] = cell;
  }
}

bool TensorQueue::push(std::span<Entry> entries) {
  const std::lock_guard lock(mutex_);
  if (closed_) throw_shut_down();
  // Making room may throw, so it comes first. The factor 2 keeps the cost of many small submissions linear: reserve(needed)
  // alone could move all entries at each push.
  const std::size_t needed = entries_.size() + entries.size();
  if (needed > entries_.capacity()) entries_.reserve(std::max(needed, 2 * entries_.capacity()));
  names_.reserve(entries.size());
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const Request& request = *entries[i].request;
    if (names_.insert(request)) continue;
    const std::span<Entry> before = entries.first(i);
    const bool is_here = std::ranges::any_of(before, [&](const Entry& entry) {
      return entry.request->set == request.set && entry.request->name == request.name;
    });
    // No entry of this submission is queued yet, and none will be. If the names of the entries before this one stayed in the
    // table, no later operation could have these names.
    for (const Entry& entry : before) names_.erase(*entry.request);
    throw base::Error(
        base::ErrorCode::kInvalidArgument,
        describe(request) +
            (is_here ? ": this submission has two operations of this name; give the tensors "
                       "different names"
                     : ": an operation of this name is still in flight on this rank; wait for it "
                       "(synchronize) or give the tensors different names"));
  }
  const bool was_empty = entries_.empty();
  if (was_empty) first_ = time_.now();
  // All entries of a submission have the same watcher (Engine::launch).
  if (!entries.empty() && entries.back().completion->watcher != nullptr) {
    last_watched_ = was_empty ? first_ : time_.now();
  }
  for (const Entry& entry : entries) bytes_ += entry.request->bytes();
  entries_.insert(entries_.end(), std::make_move_iterator(entries.begin()),
                  std::make_move_iterator(entries.end()));
  return was_empty;
}

void TensorQueue::take(bool flush, std::size_t enough_bytes, const Patience& patience,
                       std::vector<Entry>* into, base::Clock::time_point* since) {
  const std::lock_guard lock(mutex_);
  if (entries_.empty()) return;
  if (!flush && bytes_ < enough_bytes && time_.now() < end_of(patience)) return;
  *since = first_;
  bytes_ = 0;
  last_watched_.reset();
  entries_.swap(*into);
}

std::vector<Entry> TensorQueue::take_all() {
  std::vector<Entry> all;
  base::Clock::time_point since;
  take(true, 0, {}, &all, &since);
  return all;
}

void TensorQueue::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
}

std::optional<base::Clock::time_point> TensorQueue::due(const Patience& patience) const {
  const std::lock_guard lock(mutex_);
  if (entries_.empty()) return std::nullopt;
  return end_of(patience);
}

base::Clock::time_point TensorQueue::end_of(const Patience& patience) const {
  const base::Clock::time_point end = first_ + patience.since_first;
  return last_watched_ ? std::min(end, *last_watched_ + patience.since_last) : end;
}

void TensorQueue::forget(std::span<const Entry> entries) {
  const std::lock_guard lock(mutex_);
  for (const Entry& entry : entries) {
    if (entry.request) names_.erase(*entry.request);
  }
}

}  // namespace hvdlite::engine
