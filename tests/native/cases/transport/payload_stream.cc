// Payloads between two ranks of a host, in every order of both sides' steps: read from memory to memory, or through a ring so small that
// each goes over its end several times.
#include "transport/payload_stream.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "harness.h"

namespace hvdlite::transport::payload_stream_test {
namespace {

using Bytes = std::vector<std::byte>;

constexpr std::size_t kCapacity = 64;
constexpr std::size_t kOffered = 40'000;  // so large that the receiver may read the sender's memory

Bytes make(std::size_t number, std::size_t size) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(31 * number + i + 1);
  return bytes;
}

struct Ring {
  alignas(64) std::array<std::byte, PayloadRing::bytes_for(kCapacity)> memory{};
  PayloadRing ring() { return {memory.data(), kCapacity}; }
};

// One side: what it has begun with, and how far it is.
struct Side {
  std::size_t done = 0;
  bool moved = false;
  void count(Progress progress) {
    moved = progress != Progress::kNone;
    if (progress == Progress::kDone) ++done;
  }
};

struct Pair {
  Pair(std::vector<std::size_t> sizes, bool offers, pid_t process)
      : out(ring.ring(), offers), in(ring.ring(), process) {
    for (const std::size_t size : sizes) {
      sent.push_back(make(sent.size(), size));
      received.emplace_back(size);
    }
  }
  void send() {
    if (writer.done < sent.size()) writer.count(out.advance(sent[writer.done]));
  }
  void receive() {
    if (reader.done == sent.size()) return;
    const std::size_t which = reader.done;
    reader.count(in.advance(received[which]));
    EXPECT(reader.done == which || received[which] == make(which, sent[which].size()));
  }
  // Both in turn, until neither moves anything.
  void finish() {
    do {
      writer.moved = reader.moved = false;
      send();
      receive();
    } while (writer.moved || reader.moved);
    EXPECT(writer.done == sent.size() && reader.done == sent.size());
  }

  Ring ring;
  PayloadWriter out;
  PayloadReader in;
  std::vector<Bytes> sent, received;
  Side writer, reader;
};

void explore(const std::vector<std::size_t>& sizes, bool offers, pid_t process) {
  constexpr unsigned kSteps = 10;
  for (unsigned order = 0; order < 1U << kSteps; ++order) {
    Pair pair(sizes, offers, process);
    for (unsigned step = 0; step < kSteps; ++step) {
      (order >> step & 1U) != 0 ? pair.send() : pair.receive();
      // What is sent is the sender's to change.
      for (std::size_t which = 0; which < pair.writer.done; ++which)
        pair.sent[which].assign(pair.sent[which].size(), {});
    }
    pair.finish();
  }
}

TEST(through_the_ring_in_every_order) { explore({100, 0, 1, 33, 70}, false, 0); }

TEST(from_memory_to_memory_in_every_order) {
  explore({kOffered, 10, kOffered + 1, kOffered}, true, getpid());
}

TEST(what_the_kernel_refuses_goes_through_the_ring) {
  explore({kOffered, 10, kOffered + 1}, true, 0);
  explore({kOffered, 10, kOffered + 1}, true, 1);
}

TEST(who_reads_its_memory_leaves_the_ring_empty) {
  Pair pair({kOffered}, true, getpid());
  pair.send();
  EXPECT(pair.writer.done == 0);
  pair.receive();
  EXPECT(pair.reader.done == 1);
  pair.send();
  EXPECT(pair.writer.done == 1);
  EXPECT(pair.ring.ring().head->written == sizeof(PayloadHeader));
}

// Its address means something else there.
TEST(another_process_is_not_read) {
  Pair pair({kOffered}, true, getpid());
  pair.send();
  PayloadHeader header;
  std::memcpy(&header, pair.ring.ring().data, sizeof(header));
  ++header.proof;
  std::memcpy(pair.ring.ring().data, &header, sizeof(header));
  pair.receive();
  EXPECT(pair.reader.done == 0 && pair.ring.ring().head->refused == 1);
  EXPECT(pair.in.refused_with() == ESRCH);
  pair.finish();
}

void expect_refused(Pair& pair) {
  bool refused = false;
  try {
    pair.receive();
  } catch (const base::Error& error) {
    refused = error.code() == base::ErrorCode::kInternal;
  }
  EXPECT(refused);
}

TEST(another_size_than_was_agreed_is_refused) {
  Pair pair({10}, false, 0);
  pair.received[0].resize(11);
  pair.send();
  expect_refused(pair);
}

TEST(more_than_fits_into_the_ring_is_refused) {
  Pair pair({1000}, false, 0);
  pair.send();
  pair.receive();
  pair.ring.ring().head->written = 1000;
  expect_refused(pair);
}

}  // namespace
}  // namespace hvdlite::transport::payload_stream_test
