// Where everything lies in the window:
//
//    window           head and ledger of region 0 | those of region 1 | ... | part of rank 0 | part of rank 1 | ...
//    part of a rank   its flags in all regions | its prepared inputs, two for each region | the rings to this rank, for each
//                     rank one of mail and one of payloads | padding to a page | its tiles, two for each region
//
// An example: four ranks and the usual sizes. A tile has 512 KiB, so a rank's 16 tiles take 8 MiB. The rings from one rank to
// another have 64 KiB for mail and 128 KiB for payloads. A part also has rings from the rank to itself, which nobody uses.
//
// The host's first rank takes the pages of the heads and ledgers from the system, and each rank takes the pages of its own
// part. share() in mpi_env.cc returns only after all ranks have done that, so no rank uses the window earlier.
#include "transport/host_window.h"

#include <unistd.h>

#include "base/error.h"

namespace hvdlite::transport {
namespace {

// reserve() comes first, because it reports a lack of memory as an error. The stores then map the pages into this process. The
// memory is zero already, so the stores change nothing.
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
