// The part of the C ABI that exposes the fusion kernels of one GPU, for hvdlite.bench.

#include <chrono>
#include <vector>

#include "c_api/c_api.h"
#include "device/devices.h"

using hvdlite::base::Error;
using hvdlite::device::Buffer;
using hvdlite::device::Conversion;
using hvdlite::device::Current;
using hvdlite::device::Device;
using hvdlite::device::Devices;
using hvdlite::device::parse_candidates;
using hvdlite::device::Piece;
using hvdlite::engine::guarded;
using hvdlite::engine::require;

struct hvdlite_fusion {
  explicit hvdlite_fusion(const hvdlite::device::DeviceSettings& settings, int gpu)
      : devices(settings), device(devices.device(gpu)), stream(device.gpu) {}
  Devices devices;
  Device& device;
  hvdlite::device::OwnStream stream;
  std::vector<Buffer> memory;
};

namespace {

using Clock = std::chrono::steady_clock;

char* moved(void* base, std::int64_t bytes) { return static_cast<char*>(base) + bytes; }

// Two events that record the time. (Events of class Gpu record none.)
class Stopwatch {
 public:
  explicit Stopwatch(const hvdlite_fusion& fusion)
      : gpu_(*fusion.device.gpu), stream_(fusion.stream.get()), current_(gpu_) {
    for (auto& event : events_) {
      gpu_.driver().check(gpu_.call().EventCreate(&event, 0), "cuEventCreate");
    }
  }
  ~Stopwatch() {
    for (auto event : events_) {
      if (event != nullptr) gpu_.call().EventDestroy(event);
    }
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  void start() {
    record(0);
    begun_ = Clock::now();
  }
  // Waits for the stream.
  void stop(int launches, double* gpu_us, double* host_us) {
    const std::chrono::duration<double, std::micro> host = Clock::now() - begun_;
    record(1);
    gpu_.driver().check(gpu_.call().StreamSynchronize(stream_), "cuStreamSynchronize");
    float milliseconds = 0;
    gpu_.driver().check(gpu_.call().EventElapsedTime(&milliseconds, events_[0], events_[1]),
                        "cuEventElapsedTime");
    if (gpu_us != nullptr) *gpu_us = 1e3 * static_cast<double>(milliseconds) / launches;
    if (host_us != nullptr) *host_us = host.count() / launches;
  }

 private:
  void record(int which) {
    gpu_.driver().check(gpu_.call().EventRecord(events_[which], stream_), "cuEventRecord");
  }
  const hvdlite::device::Gpu& gpu_;
  const hvdlite::device::cuda::Stream stream_;
  const Current current_;
  hvdlite::device::cuda::Event events_[2] = {};
  Clock::time_point begun_;
};

std::vector<Piece> pieces_of(const hvdlite_fusion_move& move, int set) {
  std::vector<Piece> pieces;
  for (std::int64_t i = 0; i < move.pieces; ++i) {
    void* const tensor = move.tensors[i];
    pieces.push_back({tensor == nullptr ? nullptr : moved(tensor, set * move.tensor_stride),
                      static_cast<std::size_t>(move.offsets[i]),
                      static_cast<std::size_t>(move.counts[i])});
  }
  return pieces;
}

// Measures launches. launch(set): launches the work on this set.
template <typename Launch>
void measure(const hvdlite_fusion& fusion, std::int32_t launches, std::int32_t sets, double* gpu_us,
             double* host_us, Launch launch) {
  require(launches >= 1 && sets >= 1, "at least one launch and one set");
  Stopwatch watch(fusion);
  watch.start();
  for (std::int32_t i = 0; i < launches; ++i) launch(i % sets);
  watch.stop(launches, gpu_us, host_us);
}

void run(hvdlite_fusion& fusion, const hvdlite_fusion_move& move, double* gpu_us, double* host_us) {
  require(move.from >= 0 && move.from < hvdlite::base::kNumDTypes, "unknown dtype");
  require(move.to >= 0 && move.to < hvdlite::base::kNumDTypes, "unknown dtype");
  const Conversion conversion{static_cast<hvdlite::base::DType>(move.from),
                              static_cast<hvdlite::base::DType>(move.to), move.factor, move.divisor,
                              static_cast<hvdlite::base::ReduceOp>(move.op)};
  std::vector<std::vector<Piece>> sets;
  for (int set = 0; set < move.sets; ++set) sets.push_back(pieces_of(move, set));
  hvdlite::device::FusionKernels& kernels = fusion.device.kernels();
  const auto stream = fusion.stream.get();
  measure(fusion, move.launches, move.sets, gpu_us, host_us, [&](std::int32_t set) {
    void* const buffer = moved(move.buffer, set * move.buffer_stride);
    const std::vector<Piece>& pieces = sets[static_cast<std::size_t>(set)];
    if (move.unpack != 0) {
      kernels.unpack(pieces, buffer, conversion, move.nonfinite, stream);
    } else {
      kernels.pack(pieces, buffer, conversion, move.nonfinite, stream);
    }
  });
}

}  // namespace

int hvdlite_fusion_open(const char* cuda_library, const char* nvrtc_library,
                        const char* kernel_cache, int32_t gpu, hvdlite_fusion** out) {
  return guarded([&] {
    hvdlite::device::DeviceSettings settings;
    settings.cuda = parse_candidates(cuda_library);
    settings.kernels = {parse_candidates(nvrtc_library), kernel_cache};
    auto fusion = std::make_unique<hvdlite_fusion>(settings, gpu);
    fusion->device.kernels();
    *out = fusion.release();
  });
}

void hvdlite_fusion_close(hvdlite_fusion* fusion) { delete fusion; }

const char* hvdlite_fusion_gpu(const hvdlite_fusion* fusion) {
  return fusion->device.gpu->name().c_str();
}

const char* hvdlite_fusion_origin(const hvdlite_fusion* fusion) {
  return fusion->device.kernels().origin().c_str();
}

int64_t hvdlite_fusion_uploads(const hvdlite_fusion* fusion) {
  return fusion->device.kernels().uploads();
}

int hvdlite_fusion_memory(hvdlite_fusion* fusion, int64_t bytes, void** out) {
  return guarded([&] {
    fusion->memory.push_back(
        fusion->device.memory->get(static_cast<std::size_t>(bytes), fusion->stream.get()));
    *out = fusion->memory.back().data();
  });
}

int hvdlite_fusion_run(hvdlite_fusion* fusion, const hvdlite_fusion_move* move, double* gpu_us,
                       double* host_us) {
  return guarded([&] { run(*fusion, *move, gpu_us, host_us); });
}

int hvdlite_fusion_copy(hvdlite_fusion* fusion, void* to, const void* from, int64_t bytes,
                        int32_t launches, int32_t sets, int64_t stride, double* gpu_us,
                        double* host_us) {
  return guarded([&] {
    measure(*fusion, launches, sets, gpu_us, host_us, [&](std::int32_t set) {
      const std::int64_t skip = set * stride;
      fusion->device.gpu->copy(moved(to, skip), static_cast<const char*>(from) + skip,
                               static_cast<std::size_t>(bytes), fusion->stream.get());
    });
  });
}
