#include "device/buffers.h"

#include <bit>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/thread.h"

namespace hvdlite::device {

using base::Error;
using base::ErrorCode;

namespace {

constexpr std::size_t kSmallest = 512;
constexpr std::size_t kPage = std::size_t{2} << 20;  // what the driver gets from the GPU at once
constexpr base::microseconds kPatience{1'000'000};
constexpr base::microseconds kNap{100};

// Small ones share powers of two, large ones waste at most a page of the GPU.
std::size_t capacity_for(std::size_t bytes) {
  if (bytes <= kSmallest) return kSmallest;
  return bytes < kPage ? std::bit_ceil(bytes) : (bytes + kPage - 1) / kPage * kPage;
}

}  // namespace

Buffer::Buffer(Buffer&& other) noexcept
    : home_(std::move(other.home_)),
      data_(std::exchange(other.data_, nullptr)),
      capacity_(std::exchange(other.capacity_, 0)),
      free_after_(std::move(other.free_after_)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(home_, other.home_);
  std::swap(data_, other.data_);
  std::swap(capacity_, other.capacity_);
  std::swap(free_after_, other.free_after_);
  return *this;
}

Buffer::~Buffer() {
  if (data_ != nullptr) home_->give_back(*this);
}

void Buffer::abandon() {
  data_ = nullptr;
  capacity_ = 0;
  free_after_.reset();
  home_.reset();
}

// What a pool keeps, oldest first.
struct BufferPool::State {
  struct Kept {
    void* data;
    std::size_t capacity;
    EventPtr free_after;
    // Does nobody use it any more? A GPU that failed uses nothing.
    bool idle() const {
      try {
        return !free_after || free_after->finished();
      } catch (const Error&) {
        return true;
      }
    }
  };
  GpuPtr gpu;
  Kind kind;
  std::size_t keep_bytes;
  std::mutex mutex;
  std::vector<Kept> kept;
  std::size_t kept_bytes = 0;
  std::size_t allocated = 0;  // buffers in existence
  bool closed = false;

  std::vector<Kept>::iterator find(std::size_t wanted);
  void take(std::vector<Kept>::iterator from, cuda::Stream stream, Buffer* buffer);
  void allocate(std::size_t capacity, Buffer* buffer);
  cuda::Result try_allocate(std::size_t capacity, void** data) const;
  void free(void* data) const noexcept;
  void trim(std::size_t limit) noexcept;
};

// The smallest that is large enough and not twice as large; of equal ones the first that is idle, or else the oldest.
std::vector<BufferPool::State::Kept>::iterator BufferPool::State::find(std::size_t wanted) {
  auto best = kept.end();
  bool best_idle = false;
  for (auto candidate = kept.begin(); candidate != kept.end(); ++candidate) {
    if (candidate->capacity < wanted || candidate->capacity / 2 > wanted) continue;
    if (best != kept.end()) {
      if (candidate->capacity > best->capacity) continue;
      if (candidate->capacity == best->capacity && best_idle) continue;
    }
    const bool idle = candidate->idle();
    if (!idle && kind == Kind::kPinned) continue;  // the host will write at once
    if (!idle && best != kept.end() && candidate->capacity == best->capacity) continue;
    best = candidate;
    best_idle = idle;
  }
  return best;
}

void BufferPool::State::take(std::vector<Kept>::iterator from, cuda::Stream stream,
                             Buffer* buffer) {
  if (kind == Kind::kDevice && from->free_after) from->free_after->order(stream);
  buffer->data_ = from->data;
  buffer->capacity_ = from->capacity;
  kept_bytes -= from->capacity;
  kept.erase(from);
}

cuda::Result BufferPool::State::try_allocate(std::size_t capacity, void** data) const {
  if (kind == Kind::kPinned) {
    return gpu->call().MemHostAlloc(data, capacity, cuda::kHostAllocPortable);
  }
  cuda::Address address = 0;
  const cuda::Result result = gpu->call().MemAlloc(&address, capacity);
  *data = reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));
  return result;
}

void BufferPool::State::allocate(std::size_t capacity, Buffer* buffer) {
  kept.reserve(allocated + 1);  // so that nothing can fail when it comes back
  const Current current(*gpu);
  void* data = nullptr;
  cuda::Result result = try_allocate(capacity, &data);
  if (result == cuda::kOutOfMemory && !kept.empty()) {
    trim(0);
    result = try_allocate(capacity, &data);
  }
  if (result != cuda::kSuccess) {
    const bool pinned = kind == Kind::kPinned;
    throw Error(
        ErrorCode::kSystem,
        "no " + std::to_string(capacity >> 10) + " KiB of " +
            (pinned ? "page-locked host memory for copies from and to GPU " : "memory on GPU ") +
            std::to_string(gpu->ordinal()) + " (" + gpu->name() +
            "): " + gpu->driver().describe(result, pinned ? "cuMemHostAlloc" : "cuMemAlloc") +
            "; leave the engine some, or set HVDLITE_FUSION_THRESHOLD lower");
  }
  ++allocated;
  buffer->data_ = data;
  buffer->capacity_ = capacity;
}

void BufferPool::State::free(void* data) const noexcept {
  gpu->clean_up([&](const cuda::Functions& call) {
    if (kind == Kind::kPinned) {
      call.MemFreeHost(data);
    } else {
      call.MemFree(reinterpret_cast<std::uintptr_t>(data));
    }
  });
}

// Frees the oldest until `limit` is kept; what the GPU still uses stays, since freeing it would wait.
void BufferPool::State::trim(std::size_t limit) noexcept {
  auto end = kept.begin();
  for (auto one = kept.begin(); one != kept.end(); ++one) {
    if (kept_bytes > limit && one->idle()) {
      kept_bytes -= one->capacity;
      --allocated;
      free(one->data);
    } else {
      if (end != one) *end = std::move(*one);
      ++end;
    }
  }
  kept.erase(end, kept.end());
}

BufferPool::BufferPool(GpuPtr gpu, Kind kind, std::size_t keep_bytes)
    : state_(std::make_unique<State>()) {
  state_->gpu = std::move(gpu);
  state_->kind = kind;
  state_->keep_bytes = keep_bytes;
}

BufferPool::~BufferPool() { close(); }

Buffer BufferPool::get(std::size_t bytes, cuda::Stream stream) {
  const std::size_t wanted = capacity_for(bytes);
  Buffer buffer;
  const std::lock_guard lock(state_->mutex);
  const auto found = state_->find(wanted);
  if (found != state_->kept.end()) {
    state_->take(found, stream, &buffer);
  } else {
    state_->allocate(wanted, &buffer);
  }
  buffer.home_ = shared_from_this();
  return buffer;
}

void BufferPool::give_back(Buffer& buffer) noexcept {
  if (!state_->gpu->in_own_process()) return;  // the lock may be held for ever
  const std::lock_guard lock(state_->mutex);
  state_->kept.push_back({buffer.data_, buffer.capacity_, std::move(buffer.free_after_)});
  state_->kept_bytes += buffer.capacity_;
  const std::size_t limit = state_->closed ? 0 : state_->keep_bytes;
  if (state_->kept_bytes > limit) state_->trim(limit);
}

void BufferPool::close() {
  if (!state_->gpu->in_own_process()) return;
  const base::Clock::time_point limit = base::Clock::now() + kPatience;
  for (;;) {
    {
      const std::lock_guard lock(state_->mutex);
      state_->closed = true;
      state_->trim(0);
      if (state_->kept.empty()) return;
    }
    if (base::Clock::now() > limit) return;
    std::this_thread::sleep_for(kNap);
  }
}

}  // namespace hvdlite::device
