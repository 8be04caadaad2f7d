// The payloads of large messages from one rank of a host to another, one after the other. If a payload has 32 KiB or more and
// the kernel lets the receiver read the sender's memory, the receiver copies it from there into the tensor. If not, the sender
// copies it into a ring while the receiver copies out of the ring.
//
//   sender                                        receiver
//      header: the payload's address  ---------->    reads the payload there (process_vm_readv)
//             <-------- header counted as read ---   done: the sender's memory is free again
//             <------------------------ refused ---  the kernel refused: the payload has to come through the ring
//      payload, while there is room   ==========>    copies it out of the ring
//
// The kernel may refuse: Yama's ptrace_scope, seccomp, another user's process, another pid namespace. A process number may also
// belong to a third process. So the header names an address of the sender and the value there (the proof); the receiver reads
// that value first. After one refusal all later payloads in this direction go through the ring.
// Thread: a writer belongs to one thread, and so does a reader. Owns: nothing. Blocks: no, except for copying. Throws: the
// reader throws Error(Internal) if the ring holds values that no correct rank stores.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/cache_line.h"
#include "transport/byte_ring.h"

namespace hvdlite::transport {

struct PayloadHead {
  alignas(base::kCacheLine) std::atomic<std::uint64_t> written;  // bytes, since the ring was made
  alignas(base::kCacheLine) std::atomic<std::uint64_t> read;
  std::atomic<std::uint32_t> refused;  // 1: the reader cannot read the writer's memory
};

using PayloadRing = ByteRing<PayloadHead>;

// The header in front of a payload.
struct PayloadHeader {
  std::uint64_t bytes = 0;
  std::uint64_t address = 0;        // in the sender's memory; 0: the payload follows in the ring
  std::uint64_t proof_address = 0;  // an address of the sender
  std::uint64_t proof = 0;          // the value there
};

// What one step has moved: nothing, a part, or the last part of the payload.
enum class Progress { kNone, kSome, kDone };

class PayloadWriter {
 public:
  // offers: if true, the receiver tries to read large payloads from this process's memory; if false, every payload goes through
  // the ring.
  PayloadWriter(const PayloadRing& ring, bool offers);
  // Moves the payload on. The caller passes the same payload until this returns kDone. Then the payload's memory is free again.
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
  // writer: the process of the sender.
  PayloadReader(const PayloadRing& ring, pid_t writer);
  // Copies the next payload, which must have this size. The caller passes the same memory until this returns kDone.
  Progress advance(std::span<std::byte> payload);
  // Why this process cannot read the sender's memory, as an errno; 0: it can, or has not tried.
  int refused_with() const { return refused_with_; }

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
  int refused_with_ = 0;
};

}  // namespace hvdlite::transport
