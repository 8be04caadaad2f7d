#include "plausible.h"

#include <link.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstdint>

namespace hvdlite::tensorflow {

bool is_code(const void* address) {
  struct Search {
    std::uintptr_t address;
    bool found;
  } search{reinterpret_cast<std::uintptr_t>(address), false};
  dl_iterate_phdr(
      [](dl_phdr_info* library, std::size_t, void* data) {
        auto* wanted = static_cast<Search*>(data);
        for (int i = 0; i < library->dlpi_phnum; ++i) {
          const auto& segment = library->dlpi_phdr[i];
          const std::uintptr_t start = library->dlpi_addr + segment.p_vaddr;
          if (segment.p_type == PT_LOAD && (segment.p_flags & PF_X) != 0 &&
              wanted->address >= start && wanted->address < start + segment.p_memsz) {
            wanted->found = true;
          }
        }
        return wanted->found ? 1 : 0;
      },
      &search);
  return search.found;
}

// The kernel copies the bytes, so a bad address gives an error instead of a signal.
bool read_pointer(const void* address, const void** pointer) {
  const iovec to{pointer, sizeof(*pointer)};
  const iovec from{const_cast<void*>(address), sizeof(*pointer)};
  return process_vm_readv(getpid(), &to, 1, &from, 1, 0) == sizeof(*pointer);
}

}  // namespace hvdlite::tensorflow
