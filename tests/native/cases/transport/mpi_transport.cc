// Control messages over an MPI that refuses a receive, or that carries what no rank sends. The MPI is the test's own: its receives
// get what the test delivers.
#include "transport/mpi_transport.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "harness.h"
#include "no_memory.h"

namespace hvdlite::transport::mpi_transport_test {
namespace {

using Bytes = std::vector<std::byte>;

constexpr int kAnySource = -1;
constexpr int kLost = 75;  // an error of the class "a process has failed"

struct Receive {
  void* to = nullptr;
  int source = kAnySource, bytes = 0;
  bool done = false;
};

// Request 0 is MPI_REQUEST_NULL.
struct FakeMpi {
  std::map<std::uint64_t, Receive> receives;
  std::uint64_t last = 0;
  int granted = 100;  // so many more receives are not refused
  int sent = 0;       // frames

  std::size_t open() const {
    return static_cast<std::size_t>(
        std::ranges::count_if(receives, [](const auto& each) { return !each.second.done; }));
  }
  // To the receive that was posted first, as MPI does.
  void deliver(int source, const Bytes& frame) {
    const auto first =
        std::ranges::find_if(receives, [](const auto& each) { return !each.second.done; });
    EXPECT(first != receives.end());
    std::memcpy(first->second.to, frame.data(), frame.size());
    first->second = {nullptr, source, static_cast<int>(frame.size()), true};
  }
};
FakeMpi mpi;

int receive(void* to, int, int, int, hvdlite_mpi_comm, hvdlite_mpi_request* out) {
  out->bits = 0;
  if (mpi.granted-- <= 0) return kLost;
  out->bits = ++mpi.last;
  mpi.receives[out->bits] = {to};
  return 0;
}

int test(hvdlite_mpi_request* request, hvdlite_mpi_comm, int* done, int* source, int* bytes) {
  Receive found = {nullptr, kAnySource, 0, true};
  if (request->bits != 0) found = mpi.receives.at(request->bits);
  *done = found.done ? 1 : 0;
  if (!found.done) return 0;
  *source = found.source;
  *bytes = found.bytes;
  mpi.receives.erase(std::exchange(request->bits, 0));
  return 0;
}

int withdraw(hvdlite_mpi_request* request) {
  if (request->bits != 0) mpi.receives.at(request->bits).done = true;
  return 0;
}

const hvdlite_mpi* table() {
  static hvdlite_mpi functions = {};
  functions.any_source = kAnySource;
  functions.finalized = [](int* flag) { return *flag = 0; };
  functions.tag_upper_bound = [](hvdlite_mpi_comm, int* bound) {
    *bound = 32767;
    return 0;
  };
  functions.isend = [](const void*, int, int, int, hvdlite_mpi_comm, hvdlite_mpi_request* out) {
    ++mpi.sent;
    return static_cast<int>(out->bits = 0);
  };
  functions.irecv = receive;
  functions.test = test;
  functions.cancel = withdraw;
  functions.is_loss = [](int error) { return error == kLost ? 1 : 0; };
  functions.error_text = [](int, char* text, int capacity) {
    std::strncpy(text, "lost", static_cast<std::size_t>(capacity));
  };
  return &functions;
}

// Rank 0 of three ranks on three hosts.
std::unique_ptr<MpiTransport> make() {
  std::vector<MpiTransport::RankLocation> peers(3);
  for (int rank = 0; rank < 3; ++rank) peers[static_cast<std::size_t>(rank)].leader = rank;
  return std::make_unique<MpiTransport>(table(), hvdlite_mpi_comm{1}, 0, std::move(peers), nullptr,
                                        nullptr, false, MpiTransport::Limits{},
                                        MpiTransport::kEngineTag);
}

Bytes message(std::size_t size) { return Bytes(size, std::byte{7}); }

// The code of the error; kOk: there is none.
template <typename Call>
base::ErrorCode code_of(Call call) {
  try {
    call();
  } catch (const base::Error& error) {
    return error.code();
  }
  return base::ErrorCode::kOk;
}

TEST(a_message_that_has_come_is_given_although_mpi_refuses_the_next_receive) {
  const auto transport = make();
  const std::size_t posted = mpi.open();
  mpi.granted = 0;
  int source = -1;
  Bytes got;
  const auto receives = [&] { return transport->receive_message(&source, &got, false); };
  for (std::size_t each = 0; each < posted; ++each) {
    mpi.deliver(2, in_frames(message(each + 1)));
    EXPECT(receives() && source == 2 && got == message(each + 1));
    EXPECT(code_of(receives) == base::ErrorCode::kPeerLost);
  }
  EXPECT(mpi.open() == 0);
  EXPECT(code_of(receives) == base::ErrorCode::kPeerLost);
  mpi.granted = 100;
  EXPECT(!receives());
  mpi.deliver(1, in_frames(message(5)));
  EXPECT(receives() && source == 1 && got == message(5));
}

TEST(damaged_frames_leave_the_receives_posted) {
  const auto transport = make();
  const std::size_t posted = mpi.open();
  int source = -1;
  Bytes got;
  const auto receives = [&] { return transport->receive_message(&source, &got, false); };
  for (std::size_t each = 0; each < 2 * posted; ++each) {
    mpi.deliver(1, Bytes(8));  // announces 0 bytes
    EXPECT(code_of(receives) == base::ErrorCode::kInternal);
  }
  EXPECT(!receives());
  EXPECT(mpi.open() == posted);
  mpi.deliver(2, in_frames(message(5)));
  EXPECT(receives() && source == 2 && got == message(5));
}

TEST(a_receive_without_memory_is_not_posted) {
  std::byte memory[8];
  native_test::refuse_each_allocation([&](std::size_t refused) {
    native_test::refuse_allocation(0);
    const auto transport = make();
    try {
      native_test::refuse_allocation(refused + 1);
      Ticket ticket = transport->post_recv(1, 0, memory, sizeof(memory));
      native_test::refuse_allocation(0);
      EXPECT(!transport->test(ticket));
    } catch (const std::bad_alloc&) {
      Ticket ticket = transport->post_recv(1, 0, memory, sizeof(memory));
      EXPECT(!transport->test(ticket));
      EXPECT(!transport->close());
      throw;
    }
  });
}

TEST(a_message_without_memory_is_not_sent_in_part) {
  const auto transport = make();
  native_test::refuse_each_allocation([&](std::size_t) {
    mpi.sent = 0;
    try {
      transport->send_message(1, message(50'000));
    } catch (const std::bad_alloc&) {
      EXPECT(mpi.sent == 0);
      throw;
    }
  });
  EXPECT(mpi.sent == 4);
}

// MPI would write to the memory of the receives that are posted already.
TEST(a_transport_that_cannot_be_made_leaves_no_receive) {
  mpi.granted = 3;
  EXPECT(code_of([] { make(); }) == base::ErrorCode::kPeerLost);
  EXPECT(mpi.receives.empty());
}

}  // namespace
}  // namespace hvdlite::transport::mpi_transport_test
