#include "transport/mapped_window.h"

#include <unistd.h>

#include <cstddef>
#include <utility>

#include "base/error.h"

namespace hvdlite::transport {
namespace {

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
