// Takes the pages of the window in the constructor, from the processor on which the rank runs. Linux places a page of shared
// memory on the NUMA node of the processor that writes to it first ("first touch"), and a rank writes most often to its own
// part.
#include "transport/mapped_window.h"

#include <unistd.h>

#include <cstddef>
#include <utility>

#include "base/error.h"

namespace hvdlite::transport {
namespace {

// Reserves the bytes, so that a lack of memory is an error here and not a SIGBUS later, and then writes to each page once. The
// memory is all zero before and afterwards. The pointer is volatile because the compiler may otherwise leave out these writes.
void take(SharedMemory& memory, const std::byte* start, std::size_t bytes) {
  const auto offset = static_cast<std::size_t>(start - memory.data());
  memory.reserve(offset, bytes);
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  for (std::size_t at = offset; at < offset + bytes; at += page) {
    static_cast<volatile std::byte*>(memory.data())[at] = std::byte{0};
  }
}

}  // namespace

MappedWindow::MappedWindow(std::unique_ptr<SharedMemory> memory, const HostWindow::Layout& shape,
                           int local_rank)
    : memory_(std::move(memory)), window_(memory_->data(), shape, local_rank) {
  HVD_CHECK(memory_->size() == shape.bytes());
  if (local_rank == 0) take(*memory_, window_.common_part(), window_.common_bytes());
  take(*memory_, window_.own_part(), window_.own_bytes());
}

}  // namespace hvdlite::transport
