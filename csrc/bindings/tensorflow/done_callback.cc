#include "done_callback.h"

#include <link.h>

#include <cstdint>

namespace hvdlite::tensorflow {
namespace {

constexpr int kDestroy = 3;  // libstdc++'s std::_Manager_operation::__destroy_functor

// Does an address lie in the code of a loaded library?
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

}  // namespace

std::optional<DoneCallback> DoneCallback::take_checked(TF_AsyncOpKernelDoneCallback* callback) {
  const auto* function = reinterpret_cast<const Function*>(callback);
  if (!is_code(reinterpret_cast<const void*>(function->manage)) ||
      !is_code(reinterpret_cast<const void*>(function->invoke))) {
    return std::nullopt;
  }
  return take(callback);
}

// What std::function's move constructor does: what it stores may be copied byte by byte, or it is a pointer.
DoneCallback DoneCallback::take(TF_AsyncOpKernelDoneCallback* callback) {
  return DoneCallback(std::exchange(*reinterpret_cast<Function*>(callback), Function{}));
}

DoneCallback::~DoneCallback() {
  if (function_.manage != nullptr) function_.manage(&function_, &function_, kDestroy);
}

}  // namespace hvdlite::tensorflow
