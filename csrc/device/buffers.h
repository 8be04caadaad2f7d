// Memory of a GPU, and page-locked memory of the host for copies to and from it. The pool reuses returned memory.
// Thread: any; two locks (of the pool, and of the memory to be freed), under which nothing waits. Owns: returned memory; while
// something is to be freed, a thread that frees it. Blocks: where the driver does (a fresh allocation may wait for the GPU),
// and, if memory is short, for memory that is being freed (10 s at most). Throws: Error(System) if the machine lacks the memory
// or a call of the driver fails.
//
// When memory is freed, the driver first waits for all work of the GPU, including kernels that wait for other ranks. These
// ranks may in turn wait for the next step of the thread that frees. So only that one thread ever frees memory.
//
// A device buffer returns together with the event after which it is free. The stream of its next user is ordered after that
// event, so the host never waits. Page-locked memory is reused only when the GPU has reached its event, if it has one.
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
  // A caller uses its address from now on. So the memory is free only after the operations that BufferPool::used() reports.
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
  // Gives at least `bytes` bytes, aligned to 256, uninitialised. They are usable in `stream`; page-locked memory is usable by
  // the host at once.
  Buffer get(std::size_t bytes, cuda::Stream stream);
  // Operations that end with this event use this address. The pool notes the event if it has lent memory there.
  void used(const void* address, const EventPtr& event);
  // Frees returned memory now, and from now on when it comes back. Waits for the GPU for a second at most. Memory that the GPU
  // still uses stays until another buffer comes back or the pool ends.
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
