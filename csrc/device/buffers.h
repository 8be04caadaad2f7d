// Recycled memory of a GPU, and of the host for copies to and from it (page-locked).
// Thread: any; one lock, under which nothing waits. Owns: what came back; while something is to be freed, a thread that does it.
// Blocks: where the driver does (a fresh allocation may wait for the GPU), and for memory that is being freed where there is no
// other. Throws: Error(System) if the machine has not got the memory.
//
// The driver frees memory when all that the GPU was given has come to its end, kernels that wait for other ranks included; and
// these may wait for what the freeing thread would have done next. So nobody but that one thread ever frees.
//
// A device buffer goes back with the event after which it is free: its next user's stream is ordered after that event, so the
// memory is handed on without the host ever waiting. Page-locked memory is handed on once its event, if it has one, has come.
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
  ~Buffer();  // back to the pool, free after `free_after` (or at once)
  void* data() const { return data_; }
  std::size_t capacity() const { return capacity_; }
  explicit operator bool() const { return data_ != nullptr; }
  void free_after(EventPtr event) { free_after_ = std::move(event); }
  // A caller works with its address from now on: it is free after the operations that BufferPool::used is told of, too.
  void lend();
  // Never freed: somebody may still write to it.
  void abandon();

 private:
  friend class BufferPool;
  std::shared_ptr<BufferPool> home_;
  void* data_ = nullptr;
  std::size_t capacity_ = 0;
  EventPtr free_after_;
  bool lent_ = false;
};

// Always held by a shared_ptr: buffers keep theirs alive.
class BufferPool : public std::enable_shared_from_this<BufferPool> {
 public:
  enum class Kind { kDevice, kPinned };
  // Keeps at most `keep_bytes` of returned memory (and what the GPU has not come to the end of).
  BufferPool(GpuPtr gpu, Kind kind, std::size_t keep_bytes);
  ~BufferPool();
  // At least `bytes` bytes, aligned to 256, uninitialised; usable in `stream` (of a pinned buffer: at once, by the host).
  Buffer get(std::size_t bytes, cuda::Stream stream);
  // Operations that end with this event read or write at this address. That is kept if memory is lent there.
  void used(const void* address, const EventPtr& event);
  // Frees what is kept, and from now on what comes back. What the GPU still uses is waited for, a second at most, and then left.
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
