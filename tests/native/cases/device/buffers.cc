// Recycled memory: who gets what, in which order of the GPU's work, and what is kept.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "device_test.h"

using namespace device_test;
using device::Buffer;
using device::BufferPool;
using device::GpuPtr;
using device::OwnStream;

namespace {

constexpr std::size_t kPage = std::size_t{2} << 20;

std::shared_ptr<BufferPool> pool_of(const GpuPtr& gpu, std::size_t keep_bytes,
                                    BufferPool::Kind kind = BufferPool::Kind::kDevice) {
  return std::make_shared<BufferPool>(gpu, kind, keep_bytes);
}

// Has the thread that frees come to so many calls?
bool freed(long wanted) {
  for (int i = 0; i < 60000 && calls("cuMemFree") < wanted; ++i) usleep(1000);
  return calls("cuMemFree") == wanted;
}

// The end of a buffer's use in a stream.
void give_back(Buffer buffer, const GpuPtr& gpu, const OwnStream& stream) {
  buffer.free_after(gpu->record(stream.get()));
}

}  // namespace

TEST(memory_is_handed_on_in_the_order_of_streams) {
  const GpuPtr gpu = open_gpu();
  const auto pool = pool_of(gpu, kPage);
  const OwnStream first(gpu);
  const OwnStream second(gpu);
  Word word(gpu);
  Buffer one = pool->get(1000, first.get());
  const void* const data = one.data();
  gpu->fill(one.data(), 1, sizeof(int), first.get());
  Held held(gpu, first.get());
  gpu->copy(word.host.data(), one.data(), sizeof(int), first.get());
  give_back(std::move(one), gpu, first);
  const device::EventPtr end = gpu->record(first.get());

  Buffer two = pool->get(900, second.get());
  EXPECT(!end->finished());  // the host did not wait,
  EXPECT(two.data() == data);
  gpu->fill(two.data(), 2, sizeof(int), second.get());
  const device::EventPtr filled = gpu->record(second.get());
  held.let_go();
  filled->synchronize();
  EXPECT(end->finished());  // but the stream did
  EXPECT(*static_cast<int*>(word.host.data()) == 0x01010101);
  give_back(std::move(two), gpu, second);
}

TEST(the_smallest_that_fits_is_taken_and_none_twice_as_large) {
  const GpuPtr gpu = open_gpu();
  const auto pool = pool_of(gpu, 100 * kPage);
  const OwnStream stream(gpu);
  void* data[3];
  {
    Buffer held[3];
    const std::size_t pages[3] = {4, 3, 8};
    for (int i = 0; i < 3; ++i) {
      held[i] = pool->get(pages[i] * kPage, stream.get());
      EXPECT(held[i].capacity() == pages[i] * kPage);
      EXPECT(reinterpret_cast<std::uintptr_t>(held[i].data()) % 256 == 0);
      data[i] = held[i].data();
    }
  }
  const Buffer three = pool->get(2 * kPage + 1, stream.get());
  EXPECT(three.data() == data[1]);
  const Buffer four = pool->get(2 * kPage + 1, stream.get());
  EXPECT(four.data() == data[0]);
  const Buffer fresh = pool->get(3 * kPage, stream.get());  // 8 would be too many
  EXPECT(fresh.data() != data[2]);
  EXPECT(calls("cuMemAlloc") == 4);
}

TEST(of_equal_ones_the_idle_one_is_taken) {
  const GpuPtr gpu = open_gpu();
  const auto pool = pool_of(gpu, 100 * kPage);
  const OwnStream stream(gpu);
  Buffer in_use = pool->get(kPage, stream.get());
  Buffer idle = pool->get(kPage, stream.get());
  const void* const idle_data = idle.data();
  const Held held(gpu, stream.get());
  give_back(std::move(in_use), gpu, stream);
  idle = Buffer();
  EXPECT(pool->get(kPage, stream.get()).data() == idle_data);
}

TEST(no_more_is_kept_than_allowed) {
  const GpuPtr gpu = open_gpu();
  const auto pool = pool_of(gpu, 3 * kPage);
  const OwnStream stream(gpu);
  {
    Buffer old = pool->get(kPage, stream.get());
    Buffer young = pool->get(2 * kPage, stream.get());
    old = Buffer();
    young = Buffer();
    EXPECT(calls("cuMemFree") == 0);
    Buffer third = pool->get(5 * kPage / 2, stream.get());
  }
  // The oldest ones went until the third was within the limit.
  EXPECT(freed(2));
  {
    Buffer large = pool->get(10 * kPage, stream.get());
  }
  EXPECT(freed(4));
  EXPECT_HAS(leaks(), "references to contexts");
}

TEST(what_the_gpu_still_uses_is_not_freed) {
  const GpuPtr gpu = open_gpu();
  const auto pool = pool_of(gpu, 0);
  const OwnStream stream(gpu);
  Buffer memory = pool->get(kPage, stream.get());
  Held held(gpu, stream.get());
  const device::EventPtr end = gpu->record(stream.get());
  memory.free_after(end);
  memory = Buffer();
  EXPECT(!end->finished());
  EXPECT(calls("cuMemFree") == 0);
  held.let_go();
  end->synchronize();
  {
    const Buffer other = pool->get(100, stream.get());
  }
  EXPECT(freed(2));
}

TEST(page_locked_memory_waits_for_its_copies) {
  const GpuPtr gpu = open_gpu();
  const auto pool = pool_of(gpu, kPage, BufferPool::Kind::kPinned);
  const OwnStream stream(gpu);
  Buffer one = pool->get(100, nullptr);
  const void* const data = one.data();
  std::memset(one.data(), 1, 100);
  Held held(gpu, stream.get());
  const device::EventPtr end = gpu->record(stream.get());
  one.free_after(end);
  one = Buffer();
  EXPECT(pool->get(100, nullptr).data() != data);
  held.let_go();
  end->synchronize();
  const Buffer again = pool->get(100, nullptr);
  const Buffer other = pool->get(100, nullptr);
  EXPECT(again.data() == data || other.data() == data);
  EXPECT(calls("cuMemHostAlloc") == 2);
}

TEST(where_memory_is_short_what_is_kept_goes_first) {
  set("memory_mb", "8");
  const GpuPtr gpu = open_gpu();
  const auto pool = pool_of(gpu, 100 * kPage);
  {
    const Buffer kept = pool->get(3 * kPage, nullptr);
  }
  const Buffer large = pool->get(4 * kPage, nullptr);
  EXPECT(calls("cuMemFree") == 1);
  const std::string text = error_of(ErrorCode::kSystem, [&] { pool->get(kPage, nullptr); });
  EXPECT_HAS(text, "no 2048 KiB of memory on GPU 0 (");
  EXPECT_HAS(text, "cuMemAlloc failed: CUDA_ERROR_OUT_OF_MEMORY (out of memory)");
  EXPECT_HAS(text, "HVDLITE_FUSION_THRESHOLD");
}

TEST(a_closed_pool_keeps_nothing_and_its_buffers_live) {
  const GpuPtr gpu = open_gpu();
  auto pool = pool_of(gpu, 100 * kPage);
  const OwnStream stream(gpu);
  Buffer out = pool->get(kPage, stream.get());
  Buffer in_use = pool->get(kPage, stream.get());
  {
    const Buffer kept = pool->get(kPage, stream.get());
  }
  busy(*gpu, stream.get(), 0.05);
  give_back(std::move(in_use), gpu, stream);
  pool->close();
  EXPECT(freed(2));  // it waited for the one in use
  pool.reset();
  gpu->fill(out.data(), 1, 100, stream.get());
  out.free_after(gpu->record(stream.get()));
  out = Buffer();
  EXPECT(freed(3));
}

TEST(nobody_waits_while_memory_is_freed) {
  const GpuPtr gpu = open_gpu();
  const auto pool = pool_of(gpu, 0);
  const auto pinned = pool_of(gpu, 0, BufferPool::Kind::kPinned);
  const OwnStream other(gpu);
  Held held(gpu, other.get());
  const device::EventPtr end = gpu->record(other.get());
  for (int i = 0; i < 5; ++i) {
    const Buffer memory = pool->get(kPage, nullptr);
    const Buffer host = pinned->get(kPage, nullptr);
  }
  EXPECT(!end->finished());  // although freeing waits for all streams
  held.let_go();
  EXPECT(freed(5));
  EXPECT(end->finished());
}

TEST(memory_that_is_being_freed_is_waited_for_where_there_is_no_other) {
  set("memory_mb", "8");
  const GpuPtr gpu = open_gpu();
  const auto pool = pool_of(gpu, 0);
  const OwnStream other(gpu);
  busy(*gpu, other.get(), 0.1);
  const device::EventPtr end = gpu->record(other.get());
  {
    const Buffer memory = pool->get(3 * kPage, nullptr);
  }
  const Buffer large = pool->get(4 * kPage, nullptr);
  EXPECT(end->finished());
  EXPECT(calls("cuMemFree") == 1);
}

TEST(where_memory_is_short_a_much_larger_one_is_taken) {
  set("memory_mb", "8");
  const GpuPtr gpu = open_gpu();
  const auto pool = pool_of(gpu, 100 * kPage);
  const void* data = nullptr;
  {
    const Buffer kept = pool->get(4 * kPage, nullptr);
    data = kept.data();
  }
  EXPECT(pool->get(100, nullptr).data() == data);
  EXPECT(calls("cuMemFree") == 0);
}

TEST(lent_memory_is_free_after_the_operations_on_it) {
  const GpuPtr gpu = open_gpu();
  const auto pool = pool_of(gpu, 100 * kPage);
  const OwnStream operation(gpu);
  const OwnStream next(gpu);
  Word word(gpu);
  Buffer lent = pool->get(kPage, nullptr);
  lent.lend();
  const void* const data = lent.data();
  Held first(gpu, operation.get());
  gpu->fill(lent.data(), 1, sizeof(int), operation.get());
  const auto* const inside = static_cast<const std::byte*>(data) + 100;
  pool->used(inside, gpu->record(operation.get()));
  lent.free_after(gpu->record(nullptr));
  lent = Buffer();
  Buffer again = pool->get(kPage, next.get());
  EXPECT(again.data() == data);
  gpu->fill(again.data(), 2, sizeof(int), next.get());
  first.let_go();
  EXPECT(word.after(next.get(), again.data()) == 0x02020202);
  gpu->record(operation.get())->synchronize();
  EXPECT(word.after(next.get(), again.data()) == 0x02020202);
  again = Buffer();
  // Nobody is told of memory that is lent no more, or of other memory.
  pool->used(data, gpu->record(operation.get()));
  pool->used(&word, gpu->record(operation.get()));
  const Held second(gpu, operation.get());
  pool->used(data, gpu->record(operation.get()));
  const device::EventPtr end = gpu->record(operation.get());
  const Buffer free = pool->get(kPage, next.get());
  gpu->record(next.get())->synchronize();
  EXPECT(!end->finished());
}

TEST(a_gpu_that_hangs_does_not_keep_a_pool_from_closing) {
  const GpuPtr gpu = open_gpu();
  auto pool = pool_of(gpu, 100 * kPage);
  const OwnStream stream(gpu);
  Buffer memory = pool->get(kPage, stream.get());
  const Held held(gpu, stream.get());
  give_back(std::move(memory), gpu, stream);
  pool->close();
  EXPECT(calls("cuMemFree") == 0);
  _exit(0);  // with work in the stream
}

TEST(abandoned_memory_is_never_freed) {
  const GpuPtr gpu = open_gpu();
  auto pool = pool_of(gpu, 0);
  Buffer memory = pool->get(kPage, nullptr);
  memory.abandon();
  EXPECT(!memory);
  pool.reset();
  EXPECT(calls("cuMemFree") == 0);
}

TEST(moved_buffers_go_back_once) {
  const GpuPtr gpu = open_gpu();
  const auto pool = pool_of(gpu, 0);
  Buffer one = pool->get(100, nullptr);
  Buffer two = std::move(one);
  EXPECT(!one && two);
  one = std::move(two);
  Buffer three = pool->get(100, nullptr);
  three = std::move(one);
  one = Buffer();
  two = Buffer();
  three = Buffer();
  EXPECT(freed(2));
}

TEST(a_forked_child_leaves_cuda_alone) {
  auto gpu = open_gpu();
  auto pool = pool_of(gpu, 0);
  auto stream = std::make_unique<OwnStream>(gpu);
  Buffer memory = pool->get(100, stream->get());
  memory.free_after(gpu->record(stream->get()));
  device::EventPtr event = gpu->record(stream->get());
  const long pushed = calls("cuCtxPushCurrent");
  const pid_t child = fork();
  if (child == 0) {
    memory = Buffer();
    event.reset();
    stream.reset();
    pool.reset();
    gpu.reset();
    const bool alone = calls("cuCtxPushCurrent") == pushed && calls("cuMemFree") == 0 &&
                       calls("cuDevicePrimaryCtxRelease") == 0 && calls("cuStreamDestroy") == 0;
    _exit(alone ? 0 : 1);
  }
  int status = 0;
  EXPECT(waitpid(child, &status, 0) == child);
  EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(a_fork_in_the_middle_of_the_pools_work_hangs_nobody) {
  const GpuPtr gpu = open_gpu();
  const auto pool = pool_of(gpu, kPage);
  const OwnStream stream(gpu);
  std::atomic<bool> end{false};
  std::thread worker([&] {
    while (!end) {
      Buffer memory = pool->get(100, stream.get());
      memory.free_after(gpu->record(stream.get()));
    }
  });
  int hung = 0;
  for (int i = 0; i < 30 && hung == 0; ++i) {
    Buffer memory = pool->get(100, stream.get());
    memory.free_after(gpu->record(stream.get()));
    const pid_t child = fork();
    if (child == 0) {
      alarm(2);  // ends it if it hangs
      memory = Buffer();
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    hung += WIFEXITED(status) ? 0 : 1;
  }
  end = true;
  worker.join();
  EXPECT(hung == 0);
}
