// Contexts, events, streams, captures, and a failure at every call.
#include <unistd.h>

#include <thread>
#include <vector>

#include "device_test.h"

using namespace device_test;
using device::Current;
using device::EventPtr;
using device::Gpu;
using device::GpuPtr;
using device::OwnStream;

namespace {

std::shared_ptr<device::BufferPool> memory_of(const GpuPtr& gpu) {
  return std::make_shared<device::BufferPool>(gpu, device::BufferPool::Kind::kDevice, 0);
}

// A little of everything.
void use_all() {
  const GpuPtr gpu = open_gpu();
  const auto pool = memory_of(gpu);
  const OwnStream one(gpu);
  const OwnStream two(gpu);
  device::Buffer memory = pool->get(1000, one.get());
  gpu->fill(memory.data(), 7, 1000, one.get());
  const EventPtr filled = gpu->record(one.get());
  filled->order(two.get());
  Word word(gpu);
  EXPECT(word.after(two.get(), memory.data()) == 0x07070707);
  EXPECT(filled->finished());
  EXPECT(device::gpu_of_address(gpu->driver(), memory.data()) == 0);
}

}  // namespace

TEST(a_gpu_describes_itself) {
  const GpuPtr gpu = open_gpu(1);
  EXPECT(gpu->ordinal() == 1);
  EXPECT(!gpu->name().empty());
  EXPECT(gpu->compute_capability() == 90);
  EXPECT(gpu->multiprocessors() > 0);
  const GpuPtr other = open_gpu(0);
  EXPECT(std::string(reinterpret_cast<const char*>(gpu->uuid().bytes), 16) !=
         std::string(reinterpret_cast<const char*>(other->uuid().bytes), 16));
}

TEST(a_gpu_that_is_not_there_is_the_callers_error) {
  for (const int ordinal : {-1, 2}) {
    const std::string text = error_of(ErrorCode::kInvalidArgument, [&] { open_gpu(ordinal); });
    EXPECT_HAS(text, "this process sees 2");
  }
}

TEST(nothing_is_left_behind) {
  for (int round = 0; round < 200; ++round) {  // memory is freed by threads that end meanwhile
    use_all();
    EXPECT_NO_LEAKS();
  }
}

// Each call once fails, alone, with an error that a GPU recovers from.
TEST(an_error_of_every_call_is_reported_and_leaves_nothing_behind) {
  use_all();
  const char* const functions[] = {"cuDeviceGetCount",
                                   "cuDeviceGet",
                                   "cuDeviceGetName",
                                   "cuDeviceGetUuid",
                                   "cuDeviceGetAttribute",
                                   "cuDevicePrimaryCtxRetain",
                                   "cuCtxPushCurrent",
                                   "cuCtxGetStreamPriorityRange",
                                   "cuStreamCreateWithPriority",
                                   "cuMemAlloc",
                                   "cuMemHostAlloc",
                                   "cuMemcpyAsync",
                                   "cuMemsetD8Async",
                                   "cuPointerGetAttribute",
                                   "cuStreamIsCapturing",
                                   "cuStreamWaitEvent",
                                   "cuEventCreate",
                                   "cuEventRecord",
                                   "cuEventQuery",
                                   "cuEventSynchronize",
                                   "cuThreadExchangeStreamCaptureMode"};
  for (const char* function : functions) {
    const long before = calls(function);
    use_all();
    const long each = calls(function) - before;
    if (each == 0) failed(__FILE__, __LINE__, std::string(function) + " is not called");
    for (long nth = 1; nth <= each; ++nth) {
      fail(function, nth, 304);  // CUDA_ERROR_OPERATING_SYSTEM
      try {
        use_all();
      } catch (const Error& error) {
        if (std::string(error.what()).find(function) == std::string::npos) {
          failed(__FILE__, __LINE__, std::string(function) + " is not in: " + error.what());
        }
      }
      fail(function, 0, 0);
      const std::string left = leaks();
      // A destructor that cannot enter the context takes it for gone.
      const bool enters = std::string(function).starts_with("cuCtxPush") ||
                          std::string(function).starts_with("cuThreadExchange");
      if (enters) {
        reinterpret_cast<void (*)()>(control("fake_reset"))();
      } else if (!left.empty()) {
        failed(__FILE__, __LINE__,
               std::string(function) + ", call " + std::to_string(nth) + ", left " + left);
      }
    }
  }
}

TEST(events_order_streams_without_the_host) {
  const GpuPtr gpu = open_gpu();
  const auto pool = memory_of(gpu);
  const OwnStream writer(gpu);
  const OwnStream reader(gpu);
  device::Buffer memory = pool->get(sizeof(int), writer.get());
  gpu->fill(memory.data(), 1, sizeof(int), writer.get());
  Held held(gpu, writer.get());
  gpu->fill(memory.data(), 2, sizeof(int), writer.get());
  const EventPtr written = gpu->record(writer.get());
  EXPECT(!written->finished());
  written->order(reader.get());
  EXPECT(!written->finished());  // nobody has waited
  Word word(gpu);
  held.let_go();
  EXPECT(word.after(reader.get(), memory.data()) == 0x02020202);
  EXPECT(written->finished());
}

TEST(events_order_the_default_stream_of_another_gpu) {
  const GpuPtr gpu = open_gpu(0);
  const GpuPtr other = open_gpu(1);
  const OwnStream writer(gpu);
  Held held(gpu, writer.get());
  const EventPtr written = gpu->record(writer.get());
  written->order(nullptr, *other);
  const EventPtr after = other->record(nullptr);
  EXPECT(!after->finished());
  held.let_go();
  after->synchronize();
  EXPECT(written->finished());
  EXPECT(gpu->record(nullptr)->gpu().ordinal() == 0);
}

TEST(events_are_used_again) {
  const GpuPtr gpu = open_gpu();
  const OwnStream stream(gpu);
  for (int i = 0; i < 10; ++i) gpu->record(stream.get())->synchronize();
  EXPECT(calls("cuEventCreate") == 1);
}

TEST(the_calling_threads_own_default_stream_is_recorded) {
  const GpuPtr gpu = open_gpu();
  const auto own = reinterpret_cast<cuda::Stream>(2);
  Held held(gpu, own);
  EventPtr of_other_thread;
  std::thread([&] { of_other_thread = gpu->record(own); }).join();
  const EventPtr mine = gpu->record(own);
  of_other_thread->synchronize();
  EXPECT(!mine->finished());
  held.let_go();
  mine->synchronize();
}

TEST(a_stream_under_capture_is_refused) {
  const GpuPtr gpu = open_gpu();
  const OwnStream stream(gpu);
  capture(*gpu, stream.get(), 1);
  const std::string text = error_of(ErrorCode::kUnsupported, [&] { gpu->record(stream.get()); });
  EXPECT_HAS(text, "the current stream of GPU 0 is being captured into a CUDA graph");
  EXPECT_HAS(text, "before or after the capture");
  capture(*gpu, stream.get(), 0);
  gpu->record(stream.get())->synchronize();
  // What the driver says of the default stream while a stream that is ordered with it is being captured.
  fail("cuStreamIsCapturing", 1, cuda::kCaptureImplicit);
  EXPECT_HAS(error_of(ErrorCode::kUnsupported, [&] { gpu->record(nullptr); }), "CUDA graph");
  EXPECT(calls("cuEventRecord") == 1);
}

TEST(a_stream_of_another_gpu_is_the_callers_error) {
  const GpuPtr gpu = open_gpu(0);
  const GpuPtr other = open_gpu(1);
  const OwnStream stream(other);
  const std::string text =
      error_of(ErrorCode::kInvalidArgument, [&] { gpu->record(stream.get()); });
  EXPECT_HAS(text, "the stream must be one of GPU 0");
}

TEST(own_streams_go_first) {
  const GpuPtr gpu = open_gpu();
  const OwnStream stream(gpu);
  const Current current(*gpu);
  int least = 0;
  int greatest = 0;
  gpu->call().CtxGetStreamPriorityRange(&least, &greatest);
  EXPECT(greatest < least);
  EXPECT(reinterpret_cast<int (*)(cuda::Stream)>(control("fake_priority"))(stream.get()) ==
         greatest);
  // And the legacy default stream waits for none of them.
  Held held(gpu, stream.get());
  const EventPtr mine = gpu->record(stream.get());
  gpu->record(nullptr)->synchronize();
  EXPECT(!mine->finished());
  held.let_go();
  mine->synchronize();
}

TEST(the_current_context_is_put_back) {
  const GpuPtr gpu = open_gpu(0);
  const GpuPtr other = open_gpu(1);
  const Current outer(*gpu);
  {
    const Current inner(*other);
  }
  // A fill of GPU 0's default stream works in GPU 0's context only.
  EventPtr event = gpu->record(nullptr);
  cuda::Context popped = nullptr;
  EXPECT(gpu->call().CtxPopCurrent(&popped) == cuda::kSuccess);
  EXPECT(popped != nullptr);
  EXPECT(gpu->call().CtxPushCurrent(popped) == cuda::kSuccess);
  event->synchronize();
}

TEST(work_beside_a_capture_is_allowed_and_the_threads_mode_put_back) {
  const GpuPtr gpu = open_gpu();
  constexpr int kThreadLocal = 1;
  int mode = kThreadLocal;
  EXPECT(gpu->call().ThreadExchangeStreamCaptureMode(&mode) == cuda::kSuccess);
  {
    const Current current(*gpu);
    mode = cuda::kCaptureModeRelaxed;
    EXPECT(gpu->call().ThreadExchangeStreamCaptureMode(&mode) == cuda::kSuccess);
    EXPECT(mode == cuda::kCaptureModeRelaxed);
  }
  mode = 0;
  EXPECT(gpu->call().ThreadExchangeStreamCaptureMode(&mode) == cuda::kSuccess);
  EXPECT(mode == kThreadLocal);
}

TEST(a_broken_gpu_is_reported_by_its_events) {
  const GpuPtr gpu = open_gpu();
  const OwnStream stream(gpu);
  const EventPtr event = gpu->record(stream.get());
  reinterpret_cast<void (*)(int, int)>(control("fake_async_error"))(0, 700);
  EXPECT_HAS(error_of(ErrorCode::kSystem, [&] { event->finished(); }),
             "cuEventQuery failed: CUDA_ERROR_ILLEGAL_ADDRESS");
  EXPECT_HAS(error_of(ErrorCode::kSystem, [&] { gpu->record(stream.get()); }), "ILLEGAL_ADDRESS");
}

TEST(addresses_tell_their_gpu) {
  const GpuPtr gpu = open_gpu(1);
  const auto memory = memory_of(gpu);
  const auto pinned =
      std::make_shared<device::BufferPool>(gpu, device::BufferPool::Kind::kPinned, 0);
  const device::Buffer on_gpu = memory->get(100, nullptr);
  const device::Buffer on_host = pinned->get(100, nullptr);
  int local = 0;
  EXPECT(device::gpu_of_address(gpu->driver(), on_gpu.data()) == 1);
  EXPECT(device::gpu_of_address(gpu->driver(), static_cast<char*>(on_gpu.data()) + 99) == 1);
  EXPECT(device::gpu_of_address(gpu->driver(), on_host.data()) == -1);
  EXPECT(device::gpu_of_address(gpu->driver(), &local) == -1);
}

TEST(a_driver_that_is_gone_is_no_error_at_the_end) {
  GpuPtr gpu = open_gpu();
  auto pool = memory_of(gpu);
  auto stream = std::make_unique<OwnStream>(gpu);
  device::Buffer memory = pool->get(100, stream->get());
  memory.free_after(gpu->record(stream->get()));
  // Every attempt to enter the context fails, as in a process that ends.
  const auto end = [](auto&& work) {
    fail("cuCtxPushCurrent", 1, cuda::kDeinitialized);
    work();
  };
  end([&] { stream.reset(); });
  end([&] { memory = device::Buffer(); });
  end([&] { pool.reset(); });
  end([&] { gpu.reset(); });
}
