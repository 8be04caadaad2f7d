#include "stress_gpu.h"

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>

#include "device/cuda_abi.h"

namespace stress {
namespace {

namespace cuda = hvdlite::device::cuda;

constexpr int kMaxCount = 40'000;  // elements
constexpr int kMaxBatch = 4;
constexpr int kGroupSize = 3;
constexpr int kGroupSubmissions = 20;

// --- the fake driver ---------------------------------------------------------------------------------------------------

// Its functions, and those by which it is steered (control.h, driver/report.cc).
struct FakeDriver {
  cuda::Functions call;
  void (*set)(const char*, const char*) = nullptr;
  const char* (*leaks)() = nullptr;
  void (*idle)() = nullptr;
  void (*reset)() = nullptr;

  FakeDriver() {
    void* library = dlopen(STRESS_FAKE_CUDA, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) die(std::string("no fake driver: ") + dlerror());
    const auto find = [&](auto& function, const char* symbol) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, symbol));
      expect(function != nullptr, symbol);
    };
#define STRESS_FIND(name, symbol, type) find(call.name, symbol);
    HVDLITE_CUDA_FUNCTIONS(STRESS_FIND)
#undef STRESS_FIND
    find(set, "fake_set");
    find(leaks, "fake_leaks");
    find(idle, "fake_idle");
    find(reset, "fake_reset");
    ok(call.Init(0), "cuInit");
  }

  static void ok(cuda::Result result, const char* what) {
    if (result != cuda::kSuccess) die(std::string(what) + " returned " + std::to_string(result));
  }
};

// Opened before the first round and never closed: its scheduler's thread runs as long as the process.
const FakeDriver& driver() {
  static const auto& opened = *new FakeDriver;
  return opened;
}

// A GPU's primary context, current on the calling thread.
class OnGpu {
 public:
  explicit OnGpu(int gpu) : gpu_(gpu) {
    cuda::Context context = nullptr;
    FakeDriver::ok(driver().call.DevicePrimaryCtxRetain(&context, gpu), "retain");
    FakeDriver::ok(driver().call.CtxPushCurrent(context), "push");
  }
  ~OnGpu() {
    FakeDriver::ok(driver().call.CtxPopCurrent(nullptr), "pop");
    FakeDriver::ok(driver().call.DevicePrimaryCtxRelease(gpu_), "release");
  }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;

 private:
  int gpu_;
};

// A stream of the current GPU that is in no order with any other.
class DeviceStream {
 public:
  DeviceStream() {
    FakeDriver::ok(driver().call.StreamCreateWithPriority(&handle_, cuda::kStreamNonBlocking, 0),
                   "a new stream");
  }
  ~DeviceStream() { FakeDriver::ok(driver().call.StreamDestroy(handle_), "a stream's end"); }
  DeviceStream(const DeviceStream&) = delete;
  DeviceStream& operator=(const DeviceStream&) = delete;

  cuda::Stream get() const { return handle_; }

 private:
  cuda::Stream handle_ = nullptr;
};

// Floats on the current GPU.
class DeviceFloats {
 public:
  explicit DeviceFloats(int count) {
    FakeDriver::ok(
        driver().call.MemAlloc(&address_, static_cast<std::size_t>(count) * sizeof(float)),
        "GPU memory");
  }
  ~DeviceFloats() { FakeDriver::ok(driver().call.MemFree(address_), "freeing GPU memory"); }
  DeviceFloats(const DeviceFloats&) = delete;
  DeviceFloats& operator=(const DeviceFloats&) = delete;

  void* get() const { return reinterpret_cast<void*>(address_); }
  // From memory of the host that is read at once; the GPU's is written in the order of the stream.
  void write(const std::vector<float>& values, const DeviceStream& stream) const {
    FakeDriver::ok(
        driver().call.MemcpyAsync(address_, reinterpret_cast<cuda::Address>(values.data()),
                                  values.size() * sizeof(float), stream.get()),
        "copying to the GPU");
  }
  // What is there when the stream comes to it, for which this waits.
  std::vector<float> read(int count, const DeviceStream& stream) const {
    std::vector<float> values(static_cast<std::size_t>(count));
    FakeDriver::ok(driver().call.MemcpyAsync(reinterpret_cast<cuda::Address>(values.data()),
                                             address_, values.size() * sizeof(float), stream.get()),
                   "copying from the GPU");
    return values;
  }

 private:
  cuda::Address address_ = 0;
};

hvdlite_request on_gpu(hvdlite_request request, int gpu, const DeviceStream& stream) {
  request.device = gpu;
  request.stream = stream.get();
  return request;
}

void order(hvdlite_engine* engine, int64_t handle, const DeviceStream& stream) {
  expect(hvdlite_order(engine, handle, stream.get()) == HVDLITE_OK, "order failed");
}

// --- callers -----------------------------------------------------------------------------------------------------------

// Where one operation of a batch lies. Results of the engine's making are copied to `output` too.
struct Slot {
  DeviceFloats input{kMaxCount}, output{4 * kMaxCount};
  int64_t handle = 0;
  bool in_place = false;

  const DeviceFloats& result() const { return in_place ? input : output; }
};

// Of one thread of a rank: `stream` gives inputs and takes back the memory, `reader` looks at results.
struct GpuThread {
  const Round& round;
  hvdlite_engine* engine;
  int rank, thread, pair_set;
  DeviceStream stream, reader;

  void start(Slot& slot, const Step& step, std::size_t number) const;
  void finish(const Slot& slot, const Step& step) const;
};

void GpuThread::start(Slot& slot, const Step& step, std::size_t number) const {
  slot.input.write(
      std::vector<float>(static_cast<std::size_t>(step.count), static_cast<float>(rank + 1)),
      stream);
  slot.in_place = step.kind != kAllgather && number % 3 == 0;
  const int64_t count = step.count;
  const std::string name = "gpu" + std::to_string(thread) + "." + std::to_string(number);
  slot.handle = submit(
      engine,
      on_gpu(request_for(step.kind, name, step.in_pair ? pair_set : 0, count, slot.input.get(),
                         step.kind == kAllgather ? nullptr : slot.result().get()),
             rank, stream));
  expect(slot.handle > 0, "submit of GPU memory refused");
}

void GpuThread::finish(const Slot& slot, const Step& step) const {
  int done = 0;
  expect(hvdlite_poll(engine, slot.handle, &done) == HVDLITE_OK, "poll failed");
  expect(wait(engine, slot.handle) == HVDLITE_OK, "an operation on GPU memory failed");
  order(engine, slot.handle, reader);
  order(engine, slot.handle, stream);
  const int members = round.members(step);
  const bool gathered = step.kind == kAllgather;
  if (gathered) {
    const hvdlite_result result = result_of(engine, slot.handle);
    hvdlite_block* block = hvdlite_result_take_block(engine, slot.handle, 0);
    expect(block != nullptr && hvdlite_block_device(block) == rank, "no block on the GPU");
    expect(hvdlite_block_copy(block, slot.output.get(), static_cast<std::size_t>(result.num_bytes),
                              reader.get()) == HVDLITE_OK,
           "copying a block failed");
    hvdlite_block_free(block);
  }
  expect(hvdlite_release(engine, slot.handle) == HVDLITE_OK, "release failed");
  const std::vector<float> values =
      slot.result().read(gathered ? members * step.count : step.count, reader);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float wanted = gathered ? static_cast<float>(i / static_cast<std::size_t>(step.count) + 1)
                         : step.kind == kBroadcast ? 1.0F
                                                   : sum_of(members);
    expect(values[i] == wanted, "wrong result on a GPU");
  }
}

}  // namespace

void use_fake_gpus(hvdlite_config& config) {
  driver();
  config.cuda_library = STRESS_FAKE_CUDA;
  config.nccl_library = STRESS_FAKE_NCCL;
  config.nvrtc_library = STRESS_FAKE_NVRTC;
  config.kernel_cache = "";
}

GpuRound::GpuRound(int gpus, unsigned seed) {
  driver().reset();
  driver().set("gpus", std::to_string(gpus).c_str());
  driver().set("seed", std::to_string(seed).c_str());
}

GpuRound::~GpuRound() {
  driver().idle();
  // Communicators are ended by threads of their own.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (*driver().leaks() != '\0') {
    if (std::chrono::steady_clock::now() > deadline) {
      die(std::string("left on the GPUs:\n") + driver().leaks());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

void gpu_caller(const Round& round, int rank, int thread, int pair_set, unsigned seed) {
  const OnGpu gpu(rank);
  std::mt19937 random(seed);
  GpuThread self{.round = round,
                 .engine = round.engines[static_cast<std::size_t>(rank)],
                 .rank = rank,
                 .thread = thread,
                 .pair_set = pair_set,
                 .stream = {},
                 .reader = {}};
  std::deque<Slot> slots(kMaxBatch);
  const std::vector<Step>& steps = round.gpu_plan[static_cast<std::size_t>(thread)];
  for (std::size_t begin = 0; begin < steps.size();) {
    const std::size_t end = std::min(steps.size(), begin + 1 + random() % kMaxBatch);
    for (std::size_t i = begin; i < end; ++i) {
      if (!steps[i].in_pair || rank < 2) self.start(slots[i - begin], steps[i], i);
    }
    for (std::size_t i = end; i-- > begin;) {
      if (!steps[i].in_pair || rank < 2) self.finish(slots[i - begin], steps[i]);
    }
    begin = end;
  }
}

void gpu_group_caller(const Round& round, int rank) {
  const OnGpu gpu(rank);
  hvdlite_engine* engine = round.engines[static_cast<std::size_t>(rank)];
  const int64_t count = 1000;
  const DeviceStream stream;
  std::deque<DeviceFloats> tensors;
  std::vector<std::string> names;
  for (int i = 0; i < kGroupSize; ++i) {
    names.push_back("gpu group " + std::to_string(i));
    tensors.emplace_back(static_cast<int>(count));
  }
  std::vector<hvdlite_request> requests;
  std::vector<void*> data;
  for (std::size_t i = 0; i < kGroupSize; ++i) {
    requests.push_back(
        on_gpu(request_for(kAllreduce, names[i], 0, count, nullptr, nullptr), rank, stream));
    data.push_back(tensors[i].get());
  }
  int64_t group = 0;
  expect(hvdlite_prepare(engine, requests.data(), requests.size(), &group) == HVDLITE_OK,
         "prepare refused");
  for (int step = 0; step < kGroupSubmissions; ++step) {
    const bool absent[kGroupSize] = {step % round.size == rank, false, false};
    for (const DeviceFloats& tensor : tensors) {
      tensor.write(
          std::vector<float>(static_cast<std::size_t>(count), static_cast<float>(rank + step)),
          stream);
    }
    hvdlite_submission what{};
    what.count = kGroupSize;
    what.group = group;
    what.data = data.data();
    what.absent = absent;
    what.stream = stream.get();
    what.wake = step % 2;
    const int64_t handle = submit(engine, what);
    expect(handle > 0, "a prepared group on a GPU was refused");
    expect(wait(engine, handle) == HVDLITE_OK, "a prepared group on a GPU failed");
    order(engine, handle, stream);
    expect(hvdlite_release(engine, handle) == HVDLITE_OK, "release failed");
  }
  // Of the last submission; if one before it had been out of order, its numbers would be there.
  const int last = kGroupSubmissions - 1;
  const float sum = sum_of(round.size - 1) + static_cast<float>(round.size * last);
  for (std::size_t i = 0; i < kGroupSize; ++i) {
    const float missing = i == 0 ? static_cast<float>(last % round.size + last) : 0;
    for (const float value : tensors[i].read(static_cast<int>(count), stream)) {
      expect(value == sum - missing, "wrong result of a prepared group on a GPU");
    }
  }
  expect(hvdlite_release_prepared(engine, group) == HVDLITE_OK, "release_prepared failed");
}

LateCaller::LateCaller(const Round& round, int rank) {
  hvdlite_engine* engine = round.engines[static_cast<std::size_t>(rank)];
  thread_ = std::thread([engine, rank, size = round.size] {
    const OnGpu gpu(rank);
    const DeviceStream stream;
    const DeviceFloats tensor(1);
    for (int i = 0;; ++i) {
      tensor.write({static_cast<float>(rank + 1)}, stream);
      const std::string name = "late" + std::to_string(i);
      const int64_t count = 1;
      const int64_t handle =
          submit(engine, on_gpu(request_for(kAllreduce, name, 0, count, tensor.get(), tensor.get()),
                                rank, stream));
      if (handle <= 0) break;  // it has shut down
      const bool good = wait(engine, handle) == HVDLITE_OK;
      // What has failed may have begun: its memory is free in the stream's order, too. After a failure there is no order, also not
      // for what ended well just before it.
      const bool ordered = hvdlite_order(engine, handle, stream.get()) == HVDLITE_OK;
      expect(ordered || !good || *hvdlite_failure_cause(engine) != '\0', "order failed");
      hvdlite_release(engine, handle);
      if (!good || !ordered) break;
      // A failure cuts short what had been handed over to the GPU before, and says so.
      if (tensor.read(1, stream)[0] == sum_of(size)) continue;
      expect(*hvdlite_failure_cause(engine) != '\0', "wrong result of a late operation");
      break;
    }
  });
}

}  // namespace stress
