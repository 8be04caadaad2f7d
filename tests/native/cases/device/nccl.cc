// NCCL's loading, communicators that do not block, and how they end. Ranks are two GPUs of this process.
#include <chrono>
#include <thread>
#include <vector>

#include "device_test.h"
#include "no_memory.h"

using namespace device_test;
using device::Current;
using device::EventPtr;
using device::GpuPtr;
using device::Nccl;
using device::NcclComm;
using device::NcclPtr;
using device::OwnStream;
using namespace std::chrono_literals;
namespace nccl = hvdlite::device::nccl;

namespace {

constexpr auto kLong = 60s;

NcclPtr open_nccl() { return std::make_shared<const Nccl>(device::Candidates{nccl_library()}); }

// One rank with 4 bytes on its GPU.
struct Member {
  Member(const NcclPtr& nccl, const nccl::UniqueId& id, int size, int rank)
      : gpu(open_gpu(rank)),
        stream(std::make_unique<OwnStream>(gpu)),
        pool(std::make_shared<device::BufferPool>(gpu, device::BufferPool::Kind::kDevice, 0)),
        memory(pool->get(sizeof(int), stream->get())),
        comm(std::make_unique<NcclComm>(nccl, gpu, id, size, rank)) {
    gpu->fill(memory.data(), static_cast<unsigned char>(rank + 1), sizeof(int), stream->get());
  }
  void allreduce() {
    const Current current(*gpu);
    comm->nccl().check(comm->nccl().call().AllReduce(memory.data(), memory.data(), 1, nccl::kInt32,
                                                     nccl::kSum, comm->get(), stream->get()),
                       "ncclAllReduce", comm->get());
  }

  GpuPtr gpu;
  std::unique_ptr<OwnStream> stream;
  std::shared_ptr<device::BufferPool> pool;
  device::Buffer memory;
  std::unique_ptr<NcclComm> comm;
};

void settle(std::vector<Member*> members) {
  for (int i = 0; i < 60'000; ++i) {
    bool busy = false;
    for (Member* member : members) busy = member->comm->busy() || busy;
    if (!busy) return;
    std::this_thread::sleep_for(1ms);
  }
  failed(__FILE__, __LINE__, "busy for ever");
}

}  // namespace

TEST(an_old_nccl_is_refused) {
  set("nccl", "21304");
  const std::string text = error_of(ErrorCode::kUnsupported, [] { open_nccl(); });
  EXPECT_HAS(text, "NCCL 2.13.4 (");
  EXPECT_HAS(text, "hvdlite needs 2.14.0 or newer");
  EXPECT_HAS(text, "HVDLITE_NCCL_LIBRARY");
  EXPECT(device::nccl_version_text(2804) == "2.8.4");
  EXPECT(device::nccl_version_text(22703) == "2.27.3");
}

TEST(an_nccl_that_fails_to_tell_its_version_is_not_called_old) {
  fail("ncclGetVersion", 1, nccl::kInternalError);
  const std::string text = error_of(ErrorCode::kSystem, [] { open_nccl(); });
  EXPECT_HAS(text, "ncclGetVersion of ");
  EXPECT_HAS(text, "HVDLITE_NCCL_LIBRARY");
}

TEST(another_library_is_no_nccl) {
  EXPECT_HAS(error_of(ErrorCode::kUnsupported, [] { Nccl({"libm.so.6"}); }),
             "NCCL (libm.so.6) has no ncclGetVersion");
  EXPECT_HAS(error_of(ErrorCode::kUnsupported, [] { Nccl({"+libnccl.so.2"}); }),
             "libnccl.so.2: not in this process so far");
}

TEST(a_communicator_is_made_and_used_without_blocking) {
  {
    const NcclPtr nccl = open_nccl();
    EXPECT(nccl->version() == 22703);
    const nccl::UniqueId id = nccl->unique_id();
    Member first(nccl, id, 2, 0);
    EXPECT(first.comm->busy());  // the other one is missing
    Member second(nccl, id, 2, 1);
    settle({&first, &second});
    first.allreduce();
    second.allreduce();
    settle({&first, &second});
    for (Member* member : {&first, &second}) {
      Word word(member->gpu);
      EXPECT(word.after(member->stream->get(), member->memory.data()) == 0x03030303);
    }
    first.comm->finish();
    EXPECT(first.comm->get() == nullptr);
    second.comm->finish();
    EXPECT(nccl->wait_for_endings(kLong));
    EXPECT(calls("ncclCommDestroy") == 2);
    EXPECT(calls("ncclCommAbort") == 0);
  }
  EXPECT_NO_LEAKS();
}

TEST(finishing_waits_for_the_work_in_the_background) {
  const NcclPtr nccl = open_nccl();
  Member alone(nccl, nccl->unique_id(), 1, 0);
  settle({&alone});
  Held held(alone.gpu, alone.stream->get());
  // Before the work: what comes after it may end a moment later than finish() waits for.
  const EventPtr begin = alone.gpu->record(alone.stream->get());
  alone.allreduce();
  settle({&alone});
  const EventPtr end = alone.gpu->record(alone.stream->get());
  alone.comm->finish();
  EXPECT(!end->finished());
  EXPECT(!nccl->wait_for_endings(1ms));
  held.let_go();
  EXPECT(nccl->wait_for_endings(kLong));
  EXPECT(begin->finished());
  end->synchronize();
  EXPECT(end->finished());
  EXPECT(calls("ncclCommAbort") == 0);
}

TEST(aborting_ends_what_waits_for_a_lost_peer) {
  const NcclPtr nccl = open_nccl();
  const nccl::UniqueId id = nccl->unique_id();
  Member first(nccl, id, 2, 0);
  Member lost(nccl, id, 2, 1);
  settle({&first, &lost});
  first.allreduce();
  settle({&first});
  const EventPtr end = first.gpu->record(first.stream->get());
  std::this_thread::sleep_for(20ms);
  EXPECT(!end->finished());
  first.comm->abort();
  end->synchronize();
  EXPECT(nccl->wait_for_endings(kLong));
  first.comm->abort();  // nothing is left to abort
  EXPECT(calls("ncclCommAbort") == 1);
}

TEST(finishing_aborts_what_hangs) {
  const NcclPtr nccl = open_nccl();
  const nccl::UniqueId id = nccl->unique_id();
  Member first(nccl, id, 2, 0);
  Member lost(nccl, id, 2, 1);
  settle({&first, &lost});
  first.allreduce();
  settle({&first});
  first.comm->finish(50ms);
  EXPECT(nccl->wait_for_endings(kLong));
  EXPECT(calls("ncclCommAbort") == 1);
  EXPECT(calls("ncclCommDestroy") == 0);
}

TEST(a_communicator_that_is_dropped_is_aborted) {
  const NcclPtr nccl = open_nccl();
  {
    Member half_made(nccl, nccl->unique_id(), 2, 0);
  }
  EXPECT(nccl->wait_for_endings(kLong));
  EXPECT(calls("ncclCommAbort") == 1);
}

TEST(a_communicator_is_aborted_although_memory_is_short) {
  const NcclPtr nccl = open_nccl();
  Member half_made(nccl, nccl->unique_id(), 2, 0);
  native_test::refuse_allocation(1);
  half_made.comm.reset();
  native_test::refuse_allocation(0);
  EXPECT(nccl->wait_for_endings(kLong));
  EXPECT(calls("ncclCommAbort") == 1);
}

TEST(an_asynchronous_error_has_its_text) {
  const NcclPtr nccl = open_nccl();
  Member alone(nccl, nccl->unique_id(), 1, 0);
  settle({&alone});
  fail("ncclCommGetAsyncError", 1, nccl::kInternalError);
  EXPECT_HAS(error_of(ErrorCode::kSystem, [&] { alone.comm->busy(); }),
             "ncclCommGetAsyncError failed: internal error");
  nccl_error(0, nccl::kRemoteError, "connection to h1 was closed");
  const std::string text = error_of(ErrorCode::kSystem, [&] { alone.comm->busy(); });
  EXPECT_HAS(text, "NCCL failed: remote process exited or there was a network error");
  EXPECT_HAS(text, "(connection to h1 was closed)");
}

TEST(two_ranks_on_one_gpu_are_refused) {
  const NcclPtr nccl = open_nccl();
  const nccl::UniqueId id = nccl->unique_id();
  const GpuPtr gpu = open_gpu(0);
  NcclComm first(nccl, gpu, id, 2, 0);
  NcclComm second(nccl, gpu, id, 2, 1);
  const std::string text = error_of(ErrorCode::kSystem, [&] {
    while (first.busy()) std::this_thread::sleep_for(1ms);
  });
  EXPECT_HAS(text, "Duplicate GPU detected");
}

TEST(what_fails_at_once_is_named) {
  const NcclPtr nccl = open_nccl();
  const GpuPtr gpu = open_gpu(0);
  fail("ncclGetUniqueId", 1, nccl::kSystemError);
  EXPECT_HAS(error_of(ErrorCode::kSystem, [&] { nccl->unique_id(); }),
             "ncclGetUniqueId failed: unhandled system error");
  const nccl::UniqueId id = nccl->unique_id();
  fail("ncclCommInitRankConfig", 1, nccl::kUnhandledCudaError);
  EXPECT_HAS(error_of(ErrorCode::kSystem, [&] { NcclComm(nccl, gpu, id, 1, 0); }),
             "ncclCommInitRankConfig failed: unhandled cuda error");
  EXPECT_HAS(error_of(ErrorCode::kSystem, [&] { NcclComm(nccl, gpu, id, 2, 5); }),
             "ncclCommInitRankConfig failed: invalid argument");
}

TEST(what_is_not_ready_yet_can_be_finished) {
  const NcclPtr nccl = open_nccl();
  const nccl::UniqueId id = nccl->unique_id();
  Member first(nccl, id, 2, 0);
  EXPECT(first.comm->busy());
  first.comm->finish();
  Member second(nccl, id, 2, 1);
  second.comm->finish();
  EXPECT(nccl->wait_for_endings(kLong));
  EXPECT(calls("ncclCommDestroy") == 2);
  EXPECT(calls("ncclCommAbort") == 0);
}
