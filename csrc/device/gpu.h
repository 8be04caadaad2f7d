// One GPU of this process, in its primary context, which it shares with the frameworks.
// Thread: any. Owns: a reference to the primary context, a pool of events. Blocks: only where the driver does. Throws:
// Error(System), as Driver says, and what a function names. In a forked child the destructors call no function of CUDA. Other
// functions must not be called there. Destructors expect that the driver may have ended before them, at the end of the process.
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

// While this object lives, the GPU's context is current in the thread that made the object. The object also allows this thread
// to allocate memory and to query events while another thread captures a stream into a CUDA graph. By default such calls would
// fail, and would make the capture invalid.
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

// A point in a stream's work. The driver's event for it comes from the pool of the GPU. Everybody who waits for it holds an
// EventPtr.
class Event {
 public:
  ~Event();  // back to the pool
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  // Orders `stream` after this event: the stream's later work waits for this point. Any thread may call it. If the stream
  // belongs to another GPU, give that GPU, because the handles 0, 1 and 2 stand for streams of the current context.
  void order(cuda::Stream stream) const { order(stream, *gpu_); }
  void order(cuda::Stream stream, const Gpu& stream_gpu) const;
  // Has the GPU reached this point? Throws Error(System) if the work before it failed.
  bool finished() const;
  void synchronize() const;  // sleeps until the GPU has come to it
  const Gpu& gpu() const { return *gpu_; }

 private:
  friend class Gpu;
  Event(std::shared_ptr<const Gpu> gpu, cuda::Event event) : gpu_(std::move(gpu)), event_(event) {}
  std::shared_ptr<const Gpu> gpu_;
  cuda::Event event_;
};
using EventPtr = std::shared_ptr<const Event>;

// A stream of hvdlite, of the highest priority. It is not ordered with the legacy default stream.
class OwnStream {
 public:
  explicit OwnStream(std::shared_ptr<const Gpu> gpu);
  ~OwnStream();  // work in the stream continues
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  cuda::Stream get() const { return stream_; }

 private:
  std::shared_ptr<const Gpu> gpu_;
  cuda::Stream stream_ = nullptr;
};

// Always held by a shared_ptr, because events, streams and buffers keep their GPU alive.
class Gpu : public std::enable_shared_from_this<Gpu> {
 public:
  // Throws Error(InvalidArgument) if there is no such GPU.
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

  // An event after all work that `stream` has now. Throws Error(Unsupported) while the stream is under capture into a graph,
  // and Error(InvalidArgument) for a stream that is not in this GPU's primary context.
  EventPtr record(cuda::Stream stream) const;
  void copy(void* to, const void* from, std::size_t bytes, cuda::Stream stream) const;
  void fill(void* to, unsigned char value, std::size_t bytes, cuda::Stream stream) const;
  // Has the stream done all its work?
  bool is_idle(cuda::Stream stream) const;

  // For destructors: is this the process that made the object? Only that process may call CUDA; a forked child may not.
  bool in_own_process() const noexcept;
  // Calls work(functions) in the GPU's context. Does nothing if the driver has ended, or in a forked child.
  template <typename Work>
  void clean_up(Work&& work) const noexcept {
    if (!in_own_process()) return;
    try {
      const Current current(*this);
      std::forward<Work>(work)(call());
    } catch (const base::Error&) {
      // The driver has ended before this object, and has freed its resources.
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

// The GPU in whose memory the address lies; -1: host memory.
int gpu_of_address(const Driver& driver, const void* address);

}  // namespace hvdlite::device
