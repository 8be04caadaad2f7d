// One GPU of this process, in its primary context, which it shares with the frameworks.
// Thread: any. Owns: a reference to the primary context, a pool of events. Blocks: no, but where the driver does.
// Throws: Error(System) as Driver says. Nothing here calls CUDA in a forked child, and destructors take it that the driver may
// be gone at the end of the process.
#pragma once

#include <sys/types.h>

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "device/driver.h"

namespace hvdlite::device {

class Gpu;

// Makes the GPU's context the calling thread's for as long as it lives, and keeps what the thread does meanwhile from breaking
// the capture of a CUDA graph in somebody's stream (which by default forbids others to allocate memory or to query events).
class Current {
 public:
  explicit Current(const Gpu& gpu);
  ~Current();
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  const Gpu& gpu_;
  int capture_mode_;
};

// A point in a stream's work, of a GPU's pool of events. Kept alive by whoever still has to wait for it.
class Event {
 public:
  ~Event();  // back to the pool
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  // What `stream` does from now on comes after it. Any thread. A stream of another GPU is given with that: 0, 1 and 2 stand for
  // streams of the current context.
  void order(cuda::Stream stream) const { order(stream, *gpu_); }
  void order(cuda::Stream stream, const Gpu& stream_gpu) const;
  // Has the GPU come to it? Error(System) if the work before it failed.
  bool finished() const;
  void synchronize() const;  // sleeps until it has
  const Gpu& gpu() const { return *gpu_; }

 private:
  friend class Gpu;
  Event(std::shared_ptr<const Gpu> gpu, cuda::Event event) : gpu_(std::move(gpu)), event_(event) {}
  std::shared_ptr<const Gpu> gpu_;
  cuda::Event event_;
};
using EventPtr = std::shared_ptr<const Event>;

// A stream of our own, of the highest priority, that takes no part in the legacy default stream's order.
class OwnStream {
 public:
  explicit OwnStream(std::shared_ptr<const Gpu> gpu);
  ~OwnStream();  // what is in it goes on
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  cuda::Stream get() const { return stream_; }

 private:
  std::shared_ptr<const Gpu> gpu_;
  cuda::Stream stream_ = nullptr;
};

// Always held by a shared_ptr: events, streams and buffers keep theirs alive.
class Gpu : public std::enable_shared_from_this<Gpu> {
 public:
  // Error(InvalidArgument) if there is no such GPU.
  Gpu(DriverPtr driver, int ordinal);
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  int ordinal() const { return ordinal_; }
  const std::string& name() const { return name_; }  // "NVIDIA H200"
  const cuda::Uuid& uuid() const { return uuid_; }
  int compute_capability() const { return capability_; }  // 90 for 9.0
  int multiprocessors() const { return multiprocessors_; }
  const Driver& driver() const { return *driver_; }
  const cuda::Functions& call() const { return driver_->call(); }

  // After all that `stream` has been given so far. Error(Unsupported) while the stream is being captured into a graph.
  EventPtr record(cuda::Stream stream) const;
  void copy(void* to, const void* from, std::size_t bytes, cuda::Stream stream) const;
  void fill(void* to, unsigned char value, std::size_t bytes, cuda::Stream stream) const;
  // Has the stream nothing left to do?
  bool is_idle(cuda::Stream stream) const;

  // For destructors: is this the process that may call CUDA (not one forked from it)?
  bool in_own_process() const noexcept;
  // Does work(functions) in the context, and nothing if the driver is gone.
  template <typename Work>
  void clean_up(Work&& work) const noexcept {
    if (!in_own_process()) return;
    try {
      const Current current(*this);
      std::forward<Work>(work)(call());
    } catch (const base::Error&) {
      // The driver has ended before us, and with it what was to be freed.
    }
  }

 private:
  friend class Event;
  friend class Current;
  void refuse_capture(cuda::Stream stream) const;
  EventPtr new_event() const;
  void give_back(cuda::Event event) const noexcept;

  const DriverPtr driver_;
  const int ordinal_;
  const pid_t process_;
  cuda::Device device_ = 0;
  std::string name_;
  cuda::Uuid uuid_{};
  int capability_ = 0;
  int multiprocessors_ = 0;
  cuda::Context context_ = nullptr;
  mutable std::mutex mutex_;
  mutable std::vector<cuda::Event> free_events_;
};
using GpuPtr = std::shared_ptr<const Gpu>;

// Which GPU does this address belong to? -1: none (host memory).
int gpu_of_address(const Driver& driver, const void* address);

}  // namespace hvdlite::device
