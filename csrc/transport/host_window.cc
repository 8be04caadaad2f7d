#include "transport/host_window.h"

#include <unistd.h>

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

std::unique_ptr<HostWindow> HostWindow::over(std::shared_ptr<SharedMemory> memory,
                                             const Layout& shape, int local_rank) {
  HVD_CHECK(memory->size() == shape.bytes());
  auto window = std::make_unique<HostWindow>(std::shared_ptr<std::byte>(memory, memory->data()),
                                             shape, local_rank);
  if (local_rank == 0) take(*memory, window->common(0), shape.ledgers_bytes());
  take(*memory, window->of_rank(local_rank), shape.rank_bytes());
  return window;
}

}  // namespace hvdlite::transport
