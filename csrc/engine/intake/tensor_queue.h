// Operations that are submitted but that the engine has not taken yet, and the names of all operations in flight (submitted,
// and not ended). Callers push operations, and the holder of the progress token (the thread that drives the engine, engine.h)
// takes them.
// Thread: any; one lock, never held across a transport call. Owns: the queued entries. Blocks: no. Throws:
// Error(InvalidArgument) for a name that is in flight already, Error(NotInitialized) after close(), std::bad_alloc.
#pragma once

#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/time_source.h"
#include "engine/model/entry.h"

namespace hvdlite::engine {

// The names in flight: a hash table with linear probing. The key is Request::name_hash; if two hashes are equal, the names are
// compared in full. The table points to the requests, so a request must live until its name is erased.
class NamesInFlight {
 public:
  // Makes room for `more` further names, so that inserting them cannot throw.
  void reserve(std::size_t more);
  // Returns false if the request's process set already has an operation of this name in flight.
  bool insert(const Request& request);
  void erase(const Request& request);

 private:
  struct HashCell {
    std::uint64_t hash = 0;
    const Request* request = nullptr;  // null: free
  };
  // A cell's place is its index in cells_. The search for a name begins at the home of its hash.
  std::size_t home(std::uint64_t hash) const { return hash & (cells_.size() - 1); }
  std::size_t after(std::size_t place) const { return (place + 1) & (cells_.size() - 1); }
  // The place of the cell with the request's name, or of the free cell where the name belongs.
  std::size_t find(const Request& request) const;

  // The number of cells is a power of two. At most half of the cells are used.
  std::vector<HashCell> cells_ = std::vector<HashCell>(64);
  std::size_t used_ = 0;
};

// How long queued entries wait at most, so that later entries can be announced and fused together with them: `since_first`,
// counted from the push of the first entry. If a queued entry has a callback, a framework probably waits until the operation
// has ended. In that case all queued entries also wait at most `since_last`, counted from the push of the last entry with a
// callback.
struct Patience {
  base::microseconds since_first{0};
  base::microseconds since_last{0};
};

class TensorQueue {
 public:
  explicit TensorQueue(base::TimeSource time) : time_(time) {}
  // Moves all entries into the queue, or throws and leaves all to the caller. Returns true if the queue was empty; in
  // that case the caller has to wake the engine.
  bool push(std::span<Entry> entries);
  // If the queued entries are due, moves them into *into, and sets *since to the time at which the first of them was pushed.
  // *into must be empty, and its memory becomes the queue's. Entries are due when flush is set, when they have enough bytes, or
  // when their patience is over.
  void take(bool flush, std::size_t enough_bytes, const Patience& patience,
            std::vector<Entry>* into, base::Clock::time_point* since);
  std::vector<Entry> take_all();
  void close();
  // When the queued entries' patience is over; nothing if the queue is empty.
  std::optional<base::Clock::time_point> due(const Patience& patience) const;
  // Frees the entries' names for new operations. Ignores entries without a request (SharedState::finish).
  void forget(std::span<const Entry> entries);

 private:
  base::Clock::time_point end_of(const Patience& patience) const;

  const base::TimeSource time_;
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;
  std::size_t bytes_ = 0;
  // When the first of the queued entries was pushed.
  base::Clock::time_point first_;
  // When the last queued entry with a callback was pushed; nothing if none has a callback.
  std::optional<base::Clock::time_point> last_watched_;
  NamesInFlight names_;
  bool closed_ = false;
};

}  // namespace hvdlite::engine
