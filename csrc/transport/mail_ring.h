// A ring of message pieces in shared memory (byte_ring.h).
//
//   head: written, starved | read, closed
//   data: ... | header, bytes, padding to 8 | header, bytes, padding to 8 | ...
//
// In the head each side has a cache line that only it writes, because the other side polls that line. In the data a piece's
// bytes may wrap around the end, but a header never does.
//
// The writer stores a piece before it counts the piece as written (release). So a reader sees whole pieces only, even after the
// writer was killed.
//
// A writer that finds no room sets `starved` and looks once more. Then its rank sleeps at the rank's bell. The reader rings
// this bell when it has made room for a starved writer. Each side has a fence between its store and its load. So either the
// writer's second look finds the room, or the reader finds `starved` set.
// Thread: a writer belongs to one thread, and so does a reader. Owns: nothing. Blocks: no. Throws: the reader throws
// Error(Internal) if the ring holds values that no correct writer stores.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/cache_line.h"
#include "base/error.h"
#include "transport/byte_ring.h"

namespace hvdlite::transport {

struct MailRingHead {
  alignas(base::kCacheLine) std::atomic<std::uint64_t> written;  // bytes, since the ring was made
  std::atomic<std::uint32_t> starved;                            // 1: the writer waits for room
  alignas(base::kCacheLine) std::atomic<std::uint64_t> read;
  std::atomic<std::uint32_t> closed;  // 1: the reader takes nothing more
};
static_assert(sizeof(MailRingHead) == 2 * base::kCacheLine);

struct MailRing : ByteRing<MailRingHead> {
  using ByteRing::ByteRing;

  struct PieceHeader {
    std::uint32_t bytes = 0;
    std::uint32_t last = 0;  // 1: the message ends with this piece
  };
  static constexpr std::size_t space_of(std::size_t bytes) {
    return sizeof(PieceHeader) +
           (bytes + sizeof(PieceHeader) - 1) / sizeof(PieceHeader) * sizeof(PieceHeader);
  }
  // Half of the ring, so that the reader takes a piece while the writer stores the next one.
  std::size_t largest_piece() const { return capacity / 2 - sizeof(PieceHeader); }
};

class MailRingWriter {
 public:
  explicit MailRingWriter(const MailRing& ring)
      : ring_(ring),
        written_(ring.head->written.load(std::memory_order_relaxed)),
        read_(ring.head->read.load(std::memory_order_acquire)) {}

  // Stores as many pieces of the message as there is room for, beginning at *done, and moves *done. Returns true if the message
  // is complete. If it returns false, the writer is starved, and its owner calls put() again after the bell has rung.
  bool put(std::span<const std::byte> message, std::size_t* done) {
    while (*done < message.size()) {
      const std::size_t bytes = std::min(message.size() - *done, ring_.largest_piece());
      if (!has_room(MailRing::space_of(bytes)) && !finds_room(MailRing::space_of(bytes)))
        return false;
      const MailRing::PieceHeader mark = {static_cast<std::uint32_t>(bytes),
                                          *done + bytes == message.size() ? 1U : 0U};
      ring_.copy_in(written_, std::as_bytes(std::span(&mark, 1)));
      ring_.copy_in(written_ + sizeof(mark), message.subspan(*done, bytes));
      *done += bytes;
      written_ += MailRing::space_of(bytes);
      ring_.head->written.store(written_, std::memory_order_release);
    }
    return true;
  }
  bool is_closed() const { return ring_.head->closed.load(std::memory_order_acquire) != 0; }

 private:
  bool has_room(std::size_t space) const { return ring_.capacity - (written_ - read_) >= space; }
  // Reads the reader's count again. If the count shows no room, sets `starved` and reads the count once more.
  bool finds_room(std::size_t space) {
    std::atomic<std::uint32_t>& starved = ring_.head->starved;
    for (const std::uint32_t says : {0U, 1U}) {
      starved.store(says, std::memory_order_relaxed);
      std::atomic_thread_fence(std::memory_order_seq_cst);
      read_ = ring_.head->read.load(std::memory_order_acquire);
      if (!has_room(space)) continue;
      starved.store(0, std::memory_order_relaxed);
      return true;
    }
    return false;
  }

  MailRing ring_;
  std::uint64_t written_;
  std::uint64_t read_;  // the reader's count when this writer last looked
};

class MailRingReader {
 public:
  explicit MailRingReader(const MailRing& ring)
      : ring_(ring), read_(ring.head->read.load(std::memory_order_relaxed)) {}

  bool has_any() const { return ring_.head->written.load(std::memory_order_acquire) != read_; }
  // Appends the next piece to the message; the ring must have one. Returns true if it was the last piece.
  bool take(std::vector<std::byte>* message) {
    const std::uint64_t there = ring_.head->written.load(std::memory_order_acquire) - read_;
    MailRing::PieceHeader mark;
    ring_.copy_out(read_, std::as_writable_bytes(std::span(&mark, 1)));
    if (there > ring_.capacity || mark.bytes == 0 || MailRing::space_of(mark.bytes) > there) {
      throw base::Error(base::ErrorCode::kInternal,
                        "a piece of the message has " + std::to_string(mark.bytes) +
                            " bytes, and the ring in shared memory has " + std::to_string(there));
    }
    const std::size_t before = message->size();
    message->resize(before + mark.bytes);
    ring_.copy_out(read_ + sizeof(mark), std::span(*message).subspan(before));
    read_ += MailRing::space_of(mark.bytes);
    ring_.head->read.store(read_, std::memory_order_release);
    return mark.last != 0;
  }
  // Does the writer wait for room? Valid after take().
  bool starves_writer() const {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    return ring_.head->starved.load(std::memory_order_relaxed) != 0;
  }
  // Tells the writer that this reader takes nothing more.
  void close() { ring_.head->closed.store(1, std::memory_order_release); }

 private:
  MailRing ring_;
  std::uint64_t read_;
};

}  // namespace hvdlite::transport
