// How a payload crosses. A call of advance() goes through as many stages as it can, moves at most kAtOnce bytes of the payload,
// and waits for no other rank. The engine's passes call it for the first payload of each direction, again and again
// (engine/execution/transfers.cc).
//
//    stage      sender                                           receiver
//    kNew       stores the header, if the ring has room          takes the header, if it is there
//    kOffered   goes on when the header is counted as read       reads the sender's memory, at most kAtOnce bytes a call;
//                                                                then counts the header as read
//    kStreamed  copies the payload into the ring                 copies it out of the ring
//
// From kOffered both sides go on to kStreamed. If the receiver could read the payload, `done_` is the whole size when kStreamed
// begins, and nothing is copied. If the kernel refused, `done_` is 0, and the payload is streamed. So one path serves both
// cases.
//
// An example: 3 MiB through an empty ring, and each call of process_vm_readv reads all bytes that it is asked for.
//
//    sender      advance()    stores the header                              kSome
//    receiver    advance()    takes the header, reads the first MiB          kSome
//    sender      advance()    the header is not counted as read yet          kNone
//    receiver    advance()    reads the second MiB                           kSome
//    receiver    advance()    reads the third, counts the header as read     kDone
//    sender      advance()    sees that count                                kDone
//
// If the kernel refuses instead, the receiver's first call stores `refused`, counts the header as read and returns kSome. Then
// the sender streams the 3 MiB.
//
// After a refusal both sides agree because of the order of stores: the receiver stores `refused` before it counts the header as
// read (release), and the sender looks at `refused` after it has seen that count (acquire, in room()). Until the sender has
// seen the count, its memory must stay as it is.
//
// Only the receiver checks a count in the ring (there()). The sender need not check `read`: whatever its value is, the sender
// stores at most a quarter of the ring at once, and copy_in() stays inside of the ring.
#include "transport/payload_stream.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>

#include "base/error.h"
#include "base/thread.h"

namespace hvdlite::transport {

namespace {

// From this size on, one copy by the kernel is faster than two copies by the ranks.
constexpr std::size_t kOfferedBytes = 32 * 1024;
// The most of a payload that one call copies. It is limited because other operations also have to advance.
constexpr std::size_t kAtOnce = std::size_t{1} << 20;
// A piece is at most this part of the ring. Each side publishes each piece, so the receiver copies the first one while the
// sender copies the second.
constexpr std::size_t kPiecesInRing = 4;

// The proof that a process number belongs to the sender. The time in nanoseconds is part of the value, so almost certainly no
// other process has this value at this address. Only a process that shares the value by fork() has it: a child of the sender
// that was forked later, or a parent from which the sender has inherited the value.
const std::uint64_t& own_proof() {
  static const std::uint64_t proof =
      static_cast<std::uint64_t>(getpid()) << 32 ^
      static_cast<std::uint64_t>(base::Clock::now().time_since_epoch().count());
  return proof;
}

std::uint64_t address_of(const void* memory) { return reinterpret_cast<std::uintptr_t>(memory); }

iovec at(std::uint64_t address, std::size_t bytes) {
  return {reinterpret_cast<void*>(address), bytes};
}

}  // namespace

// --- the sender -------------------------------------------------------------------------------------------------------

PayloadWriter::PayloadWriter(const PayloadRing& ring, bool offers)
    : ring_(ring), offers_(offers), written_(ring.head->written.load(std::memory_order_relaxed)) {}

std::size_t PayloadWriter::room() const {
  return ring_.capacity - (written_ - ring_.head->read.load(std::memory_order_acquire));
}

void PayloadWriter::put(std::span<const std::byte> bytes) {
  ring_.copy_in(written_, bytes);
  written_ += bytes.size();
  ring_.head->written.store(written_, std::memory_order_release);
}

// One put() stores the whole header, so the receiver never sees a part of a header.
bool PayloadWriter::put_header(std::span<const std::byte> payload) {
  if (room() < sizeof(PayloadHeader)) return false;
  const bool offered = offers_ && payload.size() >= kOfferedBytes &&
                       ring_.head->refused.load(std::memory_order_relaxed) == 0;
  PayloadHeader header;
  header.bytes = payload.size();
  if (offered) {
    header.address = address_of(payload.data());
    header.proof_address = address_of(&own_proof());
    header.proof = own_proof();
  }
  put(std::as_bytes(std::span(&header, 1)));
  stage_ = offered ? Stage::kOffered : Stage::kStreamed;
  return true;
}

// Moves nothing if the receiver has read the payload: `done_` is its size then. The same holds for a payload of 0 bytes.
bool PayloadWriter::stream(std::span<const std::byte> payload) {
  const std::size_t begin = done_, end = std::min(payload.size(), done_ + kAtOnce);
  while (done_ < end) {
    const std::size_t bytes = std::min({end - done_, room(), ring_.capacity / kPiecesInRing});
    if (bytes == 0) break;
    put(payload.subspan(done_, bytes));
    done_ += bytes;
  }
  return done_ > begin;
}

Progress PayloadWriter::advance(std::span<const std::byte> payload) {
  bool any = stage_ == Stage::kNew && put_header(payload);
  if (stage_ == Stage::kNew) return Progress::kNone;
  if (stage_ == Stage::kOffered) {
    if (room() < ring_.capacity) return any ? Progress::kSome : Progress::kNone;
    // The ring is empty: the receiver has counted the header as read, after it has read the payload or found that it cannot.
    if (ring_.head->refused.load(std::memory_order_relaxed) == 0) done_ = payload.size();
    stage_ = Stage::kStreamed;
  }
  any = stream(payload) || any;
  if (done_ < payload.size()) return any ? Progress::kSome : Progress::kNone;
  stage_ = Stage::kNew;
  done_ = 0;
  return Progress::kDone;
}

// --- the receiver -----------------------------------------------------------------------------------------------------

PayloadReader::PayloadReader(const PayloadRing& ring, pid_t writer)
    : ring_(ring), writer_(writer), read_(ring.head->read.load(std::memory_order_relaxed)) {}

// The number of bytes that the sender has stored and this side has not read. The sender's count is in shared memory, so it is
// checked: a count beyond the capacity would let this side read bytes that were never written.
std::size_t PayloadReader::there() const {
  const std::uint64_t bytes = ring_.head->written.load(std::memory_order_acquire) - read_;
  if (bytes > ring_.capacity) {
    throw base::Error(base::ErrorCode::kInternal,
                      "a payload in shared memory is damaged: its ring of " +
                          std::to_string(ring_.capacity) + " bytes counts " +
                          std::to_string(bytes) + " bytes");
  }
  return bytes;
}

void PayloadReader::take(std::span<std::byte> bytes) {
  ring_.copy_out(read_, bytes);
  read_ += bytes.size();
}

void PayloadReader::publish() { ring_.head->read.store(read_, std::memory_order_release); }

// The header of an offered payload is not counted as read here. That count is the receiver's signal that it no longer needs the
// sender's memory, and it comes after the last read (advance()).
void PayloadReader::take_header(std::size_t bytes) {
  take(std::as_writable_bytes(std::span(&header_, 1)));
  if (header_.bytes != bytes) {
    throw base::Error(base::ErrorCode::kInternal, "a payload of " + std::to_string(header_.bytes) +
                                                      " bytes came for one of " +
                                                      std::to_string(bytes));
  }
  stage_ = header_.address != 0 ? Stage::kOffered : Stage::kStreamed;
  if (stage_ == Stage::kStreamed) publish();
}

// Reads the proof and the next bytes with one system call. Returns false if the kernel refuses, or if the process number
// belongs to another process. In the second case bytes of the other process may lie in `payload` until the payload is streamed
// over them.
//
// The kernel may read less than it is asked for. Then the next call goes on where this one has ended. If the kernel reads no
// byte of the payload, that counts as a refusal. So each call that returns true has moved the payload on.
bool PayloadReader::read_memory(std::span<std::byte> payload) {
  const std::size_t bytes = std::min(payload.size() - done_, kAtOnce);
  std::uint64_t proof = 0;
  const std::array<iovec, 2> to = {iovec{&proof, sizeof(proof)},
                                   iovec{payload.data() + done_, bytes}};
  const std::array<iovec, 2> from = {at(header_.proof_address, sizeof(proof)),
                                     at(header_.address + done_, bytes)};
  errno = ESRCH;  // the cause if the sender's number is not known: then nothing is called
  const ssize_t got =
      writer_ > 0 ? process_vm_readv(writer_, to.data(), to.size(), from.data(), from.size(), 0)
                  : -1;
  if (got <= static_cast<ssize_t>(sizeof(proof)) || proof != header_.proof) {
    refused_with_ = got < 0 ? errno : ESRCH;
    return false;
  }
  done_ += static_cast<std::size_t>(got) - sizeof(proof);
  return true;
}

bool PayloadReader::stream(std::span<std::byte> payload) {
  const std::size_t begin = done_, end = std::min(payload.size(), done_ + kAtOnce);
  while (done_ < end) {
    const std::size_t bytes = std::min({end - done_, there(), ring_.capacity / kPiecesInRing});
    if (bytes == 0) break;
    take(payload.subspan(done_, bytes));
    publish();
    done_ += bytes;
  }
  return done_ > begin;
}

Progress PayloadReader::advance(std::span<std::byte> payload) {
  bool any = stage_ == Stage::kNew && there() >= sizeof(PayloadHeader);
  if (any) take_header(payload.size());
  if (stage_ == Stage::kNew) return Progress::kNone;
  if (stage_ == Stage::kOffered) {
    any = read_memory(payload);
    // The header is not counted as read yet, so the sender's memory stays as it is, and the next call can read on.
    if (any && done_ < payload.size()) return Progress::kSome;
    // Bytes that earlier calls have read come again through the ring, because the sender knows only that its offer was refused.
    if (!any) {
      ring_.head->refused.store(1, std::memory_order_relaxed);
      done_ = 0;
    }
    publish();
    stage_ = Stage::kStreamed;
    any = true;
  }
  any = stream(payload) || any;
  if (done_ < payload.size()) return any ? Progress::kSome : Progress::kNone;
  stage_ = Stage::kNew;
  done_ = 0;
  return Progress::kDone;
}

}  // namespace hvdlite::transport
