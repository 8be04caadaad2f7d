// Large messages from one rank of a host to another, one after the other: straight from memory to memory, where the kernel lets the
// receiver read the sender's; else through a ring, into which one side copies while the other copies out of it.
//
//   who sends                                     who receives
//      header: where the payload is  ----------->    reads it there (process_vm_readv)
//             <----------- read, or refused -----    the header is read: the sender's memory is free; or it has to
//      payload, as there is room     ===========>    come through the ring
//
// The kernel may refuse (Yama's ptrace_scope, seccomp, other users' processes, another pid namespace), and a number may name somebody
// else's process: the header says what is found at an address of the sender's, which is read first. What was refused once is
// not tried again.
// Thread: a writer and a reader each belong to one. Owns: nothing. Blocks: no, but for copying. Throws: the reader Error(Internal) for
// what no correct rank sends.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/cache_line.h"

namespace hvdlite::transport {

struct PayloadHead {
  alignas(base::kCacheLine) std::atomic<std::uint64_t> written;  // bytes, since the ring was made
  alignas(base::kCacheLine) std::atomic<std::uint64_t> read;
  std::atomic<std::uint32_t> refused;  // 1: the reader cannot read the writer's memory
};

// A ring's memory: the head, and `capacity` bytes, a power of two. All zero it is an empty one.
struct PayloadRing {
  PayloadHead* head = nullptr;
  std::byte* data = nullptr;
  std::size_t capacity = 0;

  static constexpr std::size_t bytes_for(std::size_t capacity) {
    return sizeof(PayloadHead) + capacity;
  }
  static PayloadRing at(std::byte* memory, std::size_t capacity) {
    return {reinterpret_cast<PayloadHead*>(memory), memory + sizeof(PayloadHead), capacity};
  }
};

// What comes in front of a payload.
struct PayloadHeader {
  std::uint64_t bytes = 0;
  std::uint64_t address = 0;        // in the sender's memory; 0: it follows
  std::uint64_t proof_address = 0;  // where the sender has
  std::uint64_t proof = 0;          // this
};

enum class Progress { kNone, kSome, kDone };

class PayloadWriter {
 public:
  // offers: the receiver may try to read this process's memory.
  PayloadWriter(const PayloadRing& ring, bool offers);
  // Moves the payload on, the same one until it is done: then its memory is free.
  Progress advance(std::span<const std::byte> payload);

 private:
  enum class Stage { kNew, kOffered, kStreamed };
  std::size_t room() const;
  void put(std::span<const std::byte> bytes);
  bool put_header(std::span<const std::byte> payload);
  bool stream(std::span<const std::byte> payload);

  PayloadRing ring_;
  bool offers_;
  std::uint64_t written_;
  Stage stage_ = Stage::kNew;
  std::size_t done_ = 0;
};

class PayloadReader {
 public:
  // writer: its process.
  PayloadReader(const PayloadRing& ring, pid_t writer);
  Progress advance(std::span<std::byte> payload);

 private:
  enum class Stage { kNew, kOffered, kStreamed };
  std::size_t there() const;
  void take(std::span<std::byte> bytes);
  void publish();
  void take_header(std::size_t bytes);
  bool read_memory(std::span<std::byte> payload);
  bool stream(std::span<std::byte> payload);

  PayloadRing ring_;
  pid_t writer_;
  std::uint64_t read_;
  PayloadHeader header_;
  Stage stage_ = Stage::kNew;
  std::size_t done_ = 0;
};

}  // namespace hvdlite::transport
