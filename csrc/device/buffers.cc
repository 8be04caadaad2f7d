// (Over 400 lines, because the buffer, the pool and the thread that frees change the same lists.)
//
// The life of a piece of memory:
//
//    the driver ──► in use ──► ~Buffer ──► kept ──► get() of a later user ──► in use
//                                            │
//                                          trim() ──► doomed_ ──► Freeing's thread ──► the driver
//
// Where the pool notes what, and until when:
//
//    kept        memory that came back, in the order of return; until get() takes it, or trim()
//    lent        for each buffer in use for which lend() was called: the events that used() has got. Each event stays until a
//                later used() finds that the GPU has reached it. All of them leave when the buffer comes back (kept then has
//                them as also_after) or is abandoned
//    doomed_     memory that trim() has taken out of kept; until the thread takes it to free it
//    allocated   the number of buffers in use, kept and abandoned, and of those that allocate() asks for now
//
// The pool's mutex protects kept, lent and allocated. Freeing has a mutex of its own; a thread that takes both takes the pool's
// first. Memory is allocated and freed without a mutex, because the driver may wait for the GPU there.
//
// get() first looks for kept memory of a suitable size (reuse()), and asks the driver only if there is none. Device memory may
// be given out while the GPU still uses it: the new user's stream is ordered after the old user's events. An example with one
// buffer and two streams:
//
//    host        event E is recorded after the kernel that reads; ~Buffer with free_after = E; get() for stream 2
//    stream 1    a kernel reads the buffer ──► E
//    stream 2                                waits for E ──► a kernel writes to the buffer
//
// The host waits for E neither in ~Buffer nor in get(). Page-locked memory is given out only after the GPU has reached the
// events of this memory, because the host itself writes to it.
//
// If the driver has no memory, allocate() takes the smallest kept buffer that is large enough, even if it is much larger. If
// there is none, it frees everything idle, and waits for the thread that frees. If there was something to free, it asks the
// driver once more.
//
// The functions that return a buffer (give_back, trim, Freeing::add) append to lists, but never need new room there, because
// count_one() has made the room when the buffer was allocated. So destructors cannot fail.
#include "device/buffers.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <exception>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/thread.h"

namespace hvdlite::device {

using base::Error;
using base::ErrorCode;

namespace {

constexpr std::size_t kSmallest = 512;
constexpr std::size_t kPage = std::size_t{2}
                              << 20;  // the driver takes GPU memory in pages of this size
constexpr base::microseconds kFreeingPatience{1'000'000};
// If memory is short, get() waits at most this long for memory that is being freed. The driver may never free it, because a
// kernel may wait for a lost rank.
constexpr base::microseconds kShortPatience{10'000'000};
constexpr base::microseconds kNap{100};

// Rounds small sizes up to powers of two, so that buffers of similar tensors have equal capacities and can replace each other.
// A large size wastes less than a page of the GPU. Examples: 300 bytes get 512, 700 KiB get 1 MiB, 5 MiB get 6 MiB.
std::size_t capacity_for(std::size_t bytes) {
  if (bytes <= kSmallest) return kSmallest;
  return bytes < kPage ? std::bit_ceil(bytes) : (bytes + kPage - 1) / kPage * kPage;
}

// Has the GPU reached the event? A GPU that has failed does not use the memory any more, so the answer is yes.
bool has_come(const EventPtr& event) {
  try {
    return !event || event->finished();
  } catch (const Error&) {
    return true;
  }
}

}  // namespace

// Memory to be freed, and the thread that frees it. The thread starts when add() finds none running, and ends when nothing is
// left. It keeps this object and the GPU alive, because the pool may end while the thread still waits in the driver.
class BufferPool::Freeing : public std::enable_shared_from_this<Freeing> {
 public:
  explicit Freeing(BufferPool::Kind kind) : kind_(kind) {}

  // Makes room for `more` pieces of memory beyond those that are there.
  void reserve(std::size_t more) {
    const std::lock_guard lock(mutex_);
    doomed_.reserve(doomed_.size() + more);
  }
  void add(const GpuPtr& gpu, void* data) noexcept {
    const std::lock_guard lock(mutex_);
    doomed_.push_back(data);
    if (running_) return;
    try {
      // `gpu = gpu` makes a non-const copy. A plain [gpu] would be const, could not be moved from, and would live until after
      // run().
      std::thread([self = shared_from_this(), gpu = gpu]() mutable {
        base::name_this_thread("hvdlite-free");
        self->run(std::move(gpu));
      }).detach();
      running_ = true;
    } catch (const std::exception&) {
      // No thread can be started now; the next add() tries again.
    }
  }
  bool is_idle() const {
    const std::lock_guard lock(mutex_);
    return doomed_.empty() && !running_;
  }

 private:
  void run(GpuPtr gpu) noexcept {
    for (;;) {
      void* data = nullptr;
      {
        const std::lock_guard lock(mutex_);
        if (doomed_.empty()) {
          gpu.reset();  // the GPU is released before others see that this thread is idle
          running_ = false;
          return;
        }
        data = doomed_.back();
        doomed_.pop_back();
      }
      // Without the lock: this may wait for the GPU, and add() must not wait meanwhile.
      gpu->clean_up([&](const cuda::Functions& call) {
        if (kind_ == BufferPool::Kind::kPinned) {
          call.MemFreeHost(data);
        } else {
          call.MemFree(reinterpret_cast<std::uintptr_t>(data));
        }
      });
    }
  }

  const BufferPool::Kind kind_;
  mutable std::mutex mutex_;
  std::vector<void*> doomed_;
  bool running_ = false;
};

Buffer::Buffer(Buffer&& other) noexcept : Buffer() { *this = std::move(other); }

// Swaps, so the memory that this buffer had returns to the pool when `other` ends.
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

struct BufferPool::State {
  struct IdleBuffer {
    void* data;
    std::size_t capacity;
    EventPtr free_after;
    std::vector<EventPtr> also_after;
    // Has the GPU done all its work on the buffer?
    bool idle() const { return has_come(free_after) && std::ranges::all_of(also_after, has_come); }
  };
  struct Lent {
    std::size_t capacity;
    std::vector<EventPtr> events;  // of operations on it
  };
  State(GpuPtr of, Kind what, std::size_t keep)
      : gpu(std::move(of)),
        kind(what),
        keep_bytes(keep),
        freeing(std::make_shared<Freeing>(what)) {}

  const GpuPtr gpu;
  const Kind kind;
  const std::size_t keep_bytes;
  const std::shared_ptr<Freeing> freeing;
  std::mutex mutex;
  std::vector<IdleBuffer> kept;
  std::size_t kept_bytes = 0;
  std::size_t allocated = 0;
  bool closed = false;
  std::map<std::uintptr_t, Lent> lent;  // by address
  std::atomic<std::size_t> num_lent{0};

  std::vector<IdleBuffer>::iterator find(std::size_t wanted, std::size_t most);
  bool reuse(std::size_t wanted, std::size_t most, cuda::Stream stream, Buffer* buffer);
  void allocate(std::size_t capacity, cuda::Stream stream, Buffer* buffer);
  cuda::Result try_allocate(std::size_t capacity, void** data) const;
  bool free_all();
  std::string why_none(std::size_t capacity, cuda::Result result) const;
  void count_one();
  void trim(std::size_t limit) noexcept;
};

// Finds the smallest buffer of `wanted` to `most` bytes. Of equal ones it takes the idle one that came back first. If none of
// them is idle, it takes the one that came back first.
std::vector<BufferPool::State::IdleBuffer>::iterator BufferPool::State::find(std::size_t wanted,
                                                                             std::size_t most) {
  auto best = kept.end();
  bool best_idle = false;
  for (auto candidate = kept.begin(); candidate != kept.end(); ++candidate) {
    if (candidate->capacity < wanted || candidate->capacity > most) continue;
    if (best != kept.end()) {
      if (candidate->capacity > best->capacity) continue;
      if (candidate->capacity == best->capacity && best_idle) continue;
    }
    // idle() calls the driver, so the cheaper comparisons come first.
    const bool idle = candidate->idle();
    // Page-locked memory that the GPU still uses is left out, because the new user may write to it at once.
    if (!idle && kind == Kind::kPinned) continue;
    if (!idle && best != kept.end() && candidate->capacity == best->capacity) continue;
    best = candidate;
    best_idle = idle;
  }
  return best;
}

// If a call of order() throws, the buffer stays in kept, with all its events.
bool BufferPool::State::reuse(std::size_t wanted, std::size_t most, cuda::Stream stream,
                              Buffer* buffer) {
  const std::lock_guard lock(mutex);
  const auto from = find(wanted, most);
  if (from == kept.end()) return false;
  if (kind == Kind::kDevice) {
    if (from->free_after) from->free_after->order(stream);
    for (const EventPtr& event : from->also_after) event->order(stream);
  }
  buffer->data_ = from->data;
  buffer->capacity_ = from->capacity;
  kept_bytes -= from->capacity;
  kept.erase(from);
  return true;
}

cuda::Result BufferPool::State::try_allocate(std::size_t capacity, void** data) const {
  if (kind == Kind::kPinned) {
    // Portable: page-locked for the contexts of all GPUs, not only for the current one.
    return gpu->call().MemHostAlloc(data, capacity, cuda::kHostAllocPortable);
  }
  cuda::Address address = 0;
  const cuda::Result result = gpu->call().MemAlloc(&address, capacity);
  *data = reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));
  return result;
}

// Counts one more buffer, and makes room so that its return can never fail. In the worst case all counted buffers come back,
// and then trim() passes all of them to Freeing before its thread takes one.
void BufferPool::State::count_one() {
  const std::lock_guard lock(mutex);
  kept.reserve(allocated + 1);
  freeing->reserve(allocated + 1);
  ++allocated;
}

// `allocated` is raised before the driver is asked. Otherwise two threads that ask at the same time would each make room for
// one buffer more, and two would come. `allocated` is lowered again if the driver gives no new buffer: after an error, and also
// if a kept buffer serves instead, because that one was counted when the driver gave it.
void BufferPool::State::allocate(std::size_t capacity, cuda::Stream stream, Buffer* buffer) {
  count_one();
  void* data = nullptr;
  cuda::Result result = cuda::kSuccess;
  try {
    const Current current(*gpu);
    // The thread that frees may finish between the first try_allocate() and free_all(). In this case free_all() finds nothing
    // to free, but the driver has more memory than before. So was_freeing leads to the second try, too.
    const bool was_freeing = !freeing->is_idle();
    result = try_allocate(capacity, &data);
    if (result == cuda::kOutOfMemory && !reuse(capacity, SIZE_MAX, stream, buffer)) {
      if (free_all() || was_freeing) result = try_allocate(capacity, &data);
    }
  } catch (const Error&) {
    const std::lock_guard lock(mutex);
    --allocated;
    throw;
  }
  if (result == cuda::kSuccess) {
    buffer->data_ = data;
    buffer->capacity_ = capacity;
    return;
  }
  {
    const std::lock_guard lock(mutex);
    --allocated;
  }
  if (!*buffer) throw Error(ErrorCode::kSystem, why_none(capacity, result));
}

// Frees all idle memory of the pool, and waits until it is freed, without the lock, for kShortPatience at most. Returns false
// if there was nothing to free and nothing being freed.
bool BufferPool::State::free_all() {
  bool any = false;
  {
    const std::lock_guard lock(mutex);
    const std::size_t before = allocated;
    trim(0);
    any = allocated < before || !freeing->is_idle();
  }
  const base::Clock::time_point limit = base::Clock::now() + kShortPatience;
  while (!freeing->is_idle() && base::Clock::now() < limit) std::this_thread::sleep_for(kNap);
  return any;
}

std::string BufferPool::State::why_none(std::size_t capacity, cuda::Result result) const {
  const bool pinned = kind == Kind::kPinned;
  return "no " + std::to_string(capacity >> 10) + " KiB of " +
         (pinned ? "page-locked host memory for copies from and to GPU " : "memory on GPU ") +
         std::to_string(gpu->ordinal()) + " (" + gpu->name() +
         "): " + gpu->driver().describe(result, pinned ? "cuMemHostAlloc" : "cuMemAlloc") +
         "; free some of this memory for the engine, or set HVDLITE_FUSION_THRESHOLD lower";
}

// Frees the oldest memory until at most `limit` bytes are kept. Memory that the GPU still uses stays, so more may be kept. The
// loop moves the buffers that stay to the front, in their order.
void BufferPool::State::trim(std::size_t limit) noexcept {
  auto end = kept.begin();
  for (auto one = kept.begin(); one != kept.end(); ++one) {
    if (kept_bytes > limit && one->idle()) {
      kept_bytes -= one->capacity;
      --allocated;
      freeing->add(gpu, one->data);
    } else {
      if (end != one) *end = std::move(*one);
      ++end;
    }
  }
  kept.erase(end, kept.end());
}

BufferPool::BufferPool(GpuPtr gpu, Kind kind, std::size_t keep_bytes)
    : state_(std::make_unique<State>(std::move(gpu), kind, keep_bytes)) {}

BufferPool::~BufferPool() { close(); }

// A kept buffer of up to twice the rounded size serves as well. A larger one does not, because a small request would then hold
// a buffer that the next large request needs.
Buffer BufferPool::get(std::size_t bytes, cuda::Stream stream) {
  const std::size_t wanted = capacity_for(bytes);
  Buffer buffer;
  if (!state_->reuse(wanted, 2 * wanted + 1, stream, &buffer)) {
    state_->allocate(wanted, stream, &buffer);
  }
  buffer.home_ = shared_from_this();
  return buffer;
}

// In a forked child the lock may be held for ever, so there the entry in lent stays. The assignment swaps the members of this
// buffer and of a temporary one. data_ is null before the assignment, so the temporary buffer returns nothing when it ends.
void Buffer::abandon() {
  if (data_ != nullptr && home_->state_->gpu->in_own_process()) {
    const std::lock_guard lock(home_->state_->mutex);
    home_->take_lent(data_);
  }
  data_ = nullptr;
  *this = Buffer();
}

void Buffer::lend() {
  BufferPool::State& state = *home_->state_;
  const std::lock_guard lock(state.mutex);
  state.lent[reinterpret_cast<std::uintptr_t>(data_)] = {capacity_, {}};
  state.num_lent = state.lent.size();
}

// Finds the lent buffer in which the address lies: the last one that begins at or below it. The engine calls this for the input
// and the output of each GPU operation, so the number of lent buffers is looked at first, without the lock.
void BufferPool::used(const void* address, const EventPtr& event) {
  if (address == nullptr || state_->num_lent == 0) return;
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  const std::lock_guard lock(state_->mutex);
  auto found = state_->lent.upper_bound(at);
  if (found == state_->lent.begin()) return;
  --found;
  if (at - found->first >= found->second.capacity) return;
  std::vector<EventPtr>& events = found->second.events;
  // Tensors of one fused operation may lie in one buffer; they report the same event.
  if (!events.empty() && events.back() == event) return;
  // Events that the GPU has reached are dropped. Otherwise the list would grow with each operation until the buffer returns.
  std::erase_if(events, has_come);
  events.push_back(event);
}

// Called with the lock held, for any buffer: one that was not lent has no events.
std::vector<EventPtr> BufferPool::take_lent(const void* data) noexcept {
  const auto found = state_->lent.find(reinterpret_cast<std::uintptr_t>(data));
  if (found == state_->lent.end()) return {};
  std::vector<EventPtr> events = std::move(found->second.events);
  state_->lent.erase(found);
  state_->num_lent = state_->lent.size();
  return events;
}

void BufferPool::give_back(Buffer& buffer) noexcept {
  if (!state_->gpu->in_own_process()) return;  // in a forked child the lock may be held for ever
  const std::lock_guard lock(state_->mutex);
  state_->kept.push_back(
      {buffer.data_, buffer.capacity_, std::move(buffer.free_after_), take_lent(buffer.data_)});
  state_->kept_bytes += buffer.capacity_;
  const std::size_t limit = state_->closed ? 0 : state_->keep_bytes;
  if (state_->kept_bytes > limit) state_->trim(limit);
}

// Tries again until nothing is left or the time is over. The lock is released between the attempts, so that buffers can return
// meanwhile. The destructor calls close() a last time. Memory that the GPU still uses at its last attempt is never freed,
// because an operation in flight may still write to it.
void BufferPool::close() {
  if (!state_->gpu->in_own_process()) return;
  const base::Clock::time_point limit = base::Clock::now() + kFreeingPatience;
  for (;;) {
    {
      const std::lock_guard lock(state_->mutex);
      state_->closed = true;
      state_->trim(0);
      if (state_->kept.empty() && state_->freeing->is_idle()) return;
    }
    if (base::Clock::now() > limit) return;
    std::this_thread::sleep_for(kNap);
  }
}

}  // namespace hvdlite::device
