// An allgather by control messages: each rank gives one value, and gets the values of all ranks. A value may have any size.
// With empty values an exchange is a barrier. Exchange is a pure state machine, which Job drives.
// Thread: one at a time. Owns: the values that have come. Blocks: no. Throws: Error(Internal) on messages that no correct rank
// sends.
//
// The algorithm is Bruck et al., "Efficient algorithms for all-to-all communications in multiport message-passing systems",
// 1997. "Above" a rank is the next larger number, and after the last rank comes rank 0. In round k a rank sends its own value
// and those of the ranks above it that it has, to the rank 2^k below; in the last round it leaves out the values that the
// receiver has already. So ceil(log2 n) rounds suffice, and each value is sent n-1 times in all. The exchanges of a job are
// numbered in the order in which all ranks begin them, because messages of the next exchange may come before the last message
// of this exchange.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace hvdlite::job {

using Bytes = std::vector<std::byte>;

// The message of one rank to another in one round.
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

  // Begins the next exchange. The exchange before it must have ended.
  Sends begin(Bytes mine);
  Sends hear(int source, RoundMessage part);
  // Has this rank the values of all ranks? Its own messages may still be under way to other ranks.
  bool ended() const { return values_.size() == static_cast<std::size_t>(size_); }
  // The values by rank; valid after the exchange has ended.
  std::vector<Bytes> values() const;

 private:
  Sends go_on();
  int above(int distance) const { return (rank_ + distance) % size_; }
  int below(int distance) const { return (rank_ + size_ - distance) % size_; }
  // The number of values in each message of a round.
  std::size_t count_in(std::uint32_t round) const;

  int rank_;
  int size_;
  std::uint32_t number_ = 0;   // of the current exchange
  std::uint32_t round_ = 0;    // of the awaited message
  std::vector<Bytes> values_;  // of this rank, and of the ranks above it
  // Messages that came early, by exchange and round.
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<Bytes>> early_;
};

}  // namespace hvdlite::job
