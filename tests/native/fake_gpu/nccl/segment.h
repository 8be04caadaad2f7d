// What the ranks of a fake communicator share: a memfd that every rank, thread or process, opens by the unique id. It is gone
// with the last of them, however they end.
// Thread: any; counters are atomic. Owns: the mapping. Blocks: no. Throws: nothing; null where it cannot be opened.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "device/nccl_abi.h"

namespace fake {

namespace nccl = hvdlite::device::nccl;

inline constexpr int kMaxRanks = 16;
inline constexpr std::size_t kRoom = std::size_t{256}
                                     << 20;  // for one contribution; only what is used takes memory

enum class Kind : int { kAllReduce, kBroadcast, kReduce, kAllGather, kReduceScatter, kSend, kRecv };

// The arguments in which all ranks must agree.
struct Header {
  Kind kind = Kind::kAllReduce;
  std::uint64_t count = 0;
  int type = 0;
  int op = 0;
  int root = 0;
  bool operator==(const Header&) const = default;
};

// A contribution to the collective operation of this number; one for even numbers, one for odd ones.
struct Published {
  std::atomic<std::uint64_t> number;
  Header header;
};

struct Member {
  std::atomic<int> joined;
  std::atomic<int> size;  // of the communicator, as this rank says
  unsigned char uuid[16];
  char host[64];
  Published published[2];
};

// From one rank to another: one message at a time.
struct Mailbox {
  std::atomic<std::uint64_t> sent;
  std::atomic<std::uint64_t> received;
  Header header;
};

struct Shared {
  std::uint64_t cookie;
  std::atomic<int> failed;  // a result code; the text was written before
  std::atomic<int> failing;
  char failure[400];
  Member members[kMaxRanks];
  Mailbox mail[kMaxRanks][kMaxRanks];
};

class Segment {
 public:
  static nccl::Result make_id(nccl::UniqueId* id);
  static std::shared_ptr<Segment> open(const nccl::UniqueId& id);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  Shared& shared() { return *reinterpret_cast<Shared*>(base_); }
  char* contribution(int rank, std::uint64_t number) {
    return room(static_cast<std::size_t>(rank) * 2 + number % 2);
  }
  char* mail(int from, int to) {
    return room(kMaxRanks * 2 + static_cast<std::size_t>(from) * kMaxRanks +
                static_cast<std::size_t>(to));
  }
  // The memory of a contribution that nobody needs any more goes back to the machine.
  void give_back(char* room, std::size_t bytes);
  // The first failure is everybody's.
  void fail(int code, const char* text);
  static void forget_id(const nccl::UniqueId& id);  // all have joined
  static void forget_all();

 private:
  Segment(char* base, int file) : base_(base), file_(file) {}
  char* room(std::size_t index);
  char* base_;
  int file_;
};

}  // namespace fake
