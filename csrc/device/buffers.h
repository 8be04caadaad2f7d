// Memory of a GPU, and page-locked memory of the host for copies to and from the GPU. The pool reuses returned memory.
// Thread: any; two locks (of the pool, and of the memory to be freed), under which nothing waits. Owns: returned memory; while
// something is to be freed, a thread that frees it. Blocks: where the driver does (a fresh allocation may wait for the GPU),
// and, if memory is short, for memory that is being freed (10 s at most). Throws: Error(System) if the machine lacks the memory
// or a call of the driver fails.
//
// When memory is freed, the driver first waits for all work of the GPU, including kernels that wait for other ranks. These
// ranks may in turn wait for the next step of the thread that drives the engine. So a separate thread frees all memory.
//
// A device buffer returns to the pool together with the event after which it is free. The pool orders the stream of the next
// user after that event, so the host never waits. If page-locked memory returns with an event, this memory is reused only when
// the GPU has reached this event.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "device/gpu.h"

namespace hvdlite::device {

class BufferPool;

class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();  // returns to the pool; free after `free_after`, or at once
  void* data() const { return data_; }
  std::size_t capacity() const { return capacity_; }
  explicit operator bool() const { return data_ != nullptr; }
  void free_after(EventPtr event) { free_after_ = std::move(event); }
  // Tells the pool that a caller uses the buffer's address from now on. When such a buffer returns, its memory is free only
  // after `free_after` and all events that BufferPool::used() has got for this buffer.
  void lend();
  // Leaks the memory, because something may still write to it.
  void abandon();

 private:
  friend class BufferPool;
  std::shared_ptr<BufferPool> home_;
  void* data_ = nullptr;
  std::size_t capacity_ = 0;
  EventPtr free_after_;
};

// Always held by a shared_ptr, because buffers keep their pool alive.
class BufferPool : public std::enable_shared_from_this<BufferPool> {
 public:
  enum class Kind { kDevice, kPinned };
  // Whenever a buffer comes back, the pool frees returned memory that the GPU no longer uses, until it keeps at most
  // `keep_bytes`. Memory that the GPU still uses stays.
  BufferPool(GpuPtr gpu, Kind kind, std::size_t keep_bytes);
  ~BufferPool();
  // Gives at least `bytes` bytes, aligned to 256, uninitialised. Work in `stream` may use them. If they are page-locked memory,
  // the host may use them at once.
  Buffer get(std::size_t bytes, cuda::Stream stream);
  // Tells the pool that operations which end with this event use this address. If the address lies in a lent buffer, the pool
  // notes the event for this buffer.
  void used(const void* address, const EventPtr& event);
  // Frees returned memory now. From now on memory is freed as soon as it comes back. Waits for the GPU for a second at most.
  // Memory that the GPU still uses stays until another buffer comes back or the pool ends.
  void close();

 private:
  friend class Buffer;
  class Freeing;
  struct State;
  void give_back(Buffer& buffer) noexcept;
  std::vector<EventPtr> take_lent(const void* data) noexcept;
  std::unique_ptr<State> state_;
};

}  // namespace hvdlite::device
