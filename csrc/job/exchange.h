// An allgather of a value of any size among all ranks, in control messages; of empty values it is a barrier. Pure.
// Thread: one at a time. Owns: the values that have come. Blocks: no. Throws: Error(Internal) on parts that cannot be.
//
// Bruck et al., "Efficient algorithms for all-to-all communications in multiport message-passing systems", 1997: in round k a rank
// sends all it has, its own value and those of the ranks above it, to the rank 2^k below. So ceil(log2 n) rounds suffice, and each
// value is sent n-1 times in all. The exchanges of a job have numbers, in the order in which all ranks begin them, for a part of the
// next exchange may come before the last part of this one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace hvdlite::job {

using Bytes = std::vector<std::byte>;

// What one rank sends to another in one round.
struct RoundMessage {
  std::uint32_t exchange = 0;
  std::uint32_t round = 0;
  std::vector<Bytes> values;  // of the sender, and of the ranks above it
};

class Exchange {
 public:
  struct RoutedMessage {
    int to = 0;
    RoundMessage part;
  };
  using Sends = std::vector<RoutedMessage>;

  Exchange(int rank, int size) : rank_(rank), size_(size) {}

  // The next exchange. The one before must have ended.
  Sends begin(Bytes mine);
  Sends hear(int source, RoundMessage part);
  // All values have come. What this rank sent may still be on its way.
  bool ended() const { return values_.size() == static_cast<std::size_t>(size_); }
  // By rank; valid once it has ended.
  std::vector<Bytes> values() const;

 private:
  Sends go_on();
  int above(int distance) const { return (rank_ + distance) % size_; }
  int below(int distance) const { return (rank_ + size_ - distance) % size_; }
  // Values that go from rank to rank in this round.
  std::size_t count_in(std::uint32_t round) const;

  int rank_;
  int size_;
  std::uint32_t number_ = 0;   // of the exchange under way
  std::uint32_t round_ = 0;    // the one whose part is awaited
  std::vector<Bytes> values_;  // of this rank, and of those above it
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<Bytes>>
      early_;  // parts not used yet, by exchange and round
};

}  // namespace hvdlite::job
