// Submitted, not yet picked up by the engine: the one place where callers and the token holder meet.
// Thread: any; one lock, never held across a transport call. Owns: the queued entries. Blocks: no.
// Throws: Error(InvalidArgument) for a name already in flight.
#pragma once

#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/time_source.h"
#include "engine/model/entry.h"

namespace hvdlite::engine {

// The names in flight: a hash table with linear probing, keyed by the hash that a request carries. Names are compared in
// full; entries are only looked at while their requests live, which those of operations in flight do.
class NamesInFlight {
 public:
  // False if the name (on that process set) is there already.
  bool insert(const Request& request);
  void erase(const Request& request);

 private:
  struct HashCell {
    std::uint64_t hash = 0;
    const Request* request = nullptr;  // null: free
  };
  std::size_t home(std::uint64_t hash) const { return hash & (places_.size() - 1); }
  std::size_t after(std::size_t place) const { return (place + 1) & (places_.size() - 1); }
  // Where the request's name is, or the free place where it would be.
  std::size_t find(const Request& request) const;
  void grow();

  std::vector<HashCell> places_ =
      std::vector<HashCell>(64);  // a power of two, at most half of them used
  std::size_t used_ = 0;
};

// How long queued entries wait for company: so long since the first of them or, where a framework is told of their end and
// probably waits for it, until for so long none has come.
struct Patience {
  base::microseconds since_first{0};
  base::microseconds since_last{0};
};

class TensorQueue {
 public:
  explicit TensorQueue(base::TimeSource time) : time_(time) {}
  // Takes the entries, all or nothing. True if the queue was empty, so that somebody has to be told.
  bool push(std::span<Entry> entries);
  // Moves the queued entries into an empty vector, whose memory is used for later ones, once they are due: asked for at once
  // (flush), enough bytes, or patience is over. *since: when the first of them was submitted.
  void take(bool flush, std::size_t enough_bytes, const Patience& patience,
            std::vector<Entry>* into, base::Clock::time_point* since);
  std::vector<Entry> take_all();
  // When take() without flush will give something; nothing if empty.
  std::optional<base::Clock::time_point> due(const Patience& patience) const;
  // Their names may be used again.
  void forget(std::span<const Entry> entries);

 private:
  base::Clock::time_point end_of(const Patience& patience) const;

  const base::TimeSource time_;
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;
  std::size_t bytes_ = 0;
  base::Clock::time_point first_;
  std::optional<base::Clock::time_point> last_watched_;
  NamesInFlight names_;
};

}  // namespace hvdlite::engine
