// Remembers which functions of a traced build (HVDLITE_TRACE) run while it is switched on. It is preloaded: the C library has functions
// of these names that do nothing.
// Thread: any. Owns: a table of the functions, for the life of the process. Blocks: no. Throws: no.
#include <dlfcn.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>

namespace {

// More than there are functions; a power of two.
constexpr std::size_t kPlaces = std::size_t{1} << 16;

std::atomic<bool> on{false};
std::atomic<void*> functions[kPlaces];

}  // namespace

extern "C" {

// What the compiler calls at the beginning of each function.
void __cyg_profile_func_enter(void* function, void*) {
  if (!on.load(std::memory_order_relaxed)) return;
  auto place = static_cast<std::size_t>(reinterpret_cast<std::uintptr_t>(function) >> 2) % kPlaces;
  for (;; place = (place + 1) % kPlaces) {
    void* found = nullptr;
    if (functions[place].compare_exchange_strong(found, function) || found == function) return;
  }
}

void __cyg_profile_func_exit(void*, void*) {}

void record_functions(int whether) { on.store(whether != 0); }

// A line for each: the library's file, and the function's place in it.
int write_functions(const char* path) {
  std::FILE* const file = std::fopen(path, "w");
  if (file == nullptr) return 0;
  for (const std::atomic<void*>& each : functions) {
    void* const function = each.load();
    Dl_info library = {};
    if (function == nullptr || dladdr(function, &library) == 0) continue;
    const auto offset =
        static_cast<const char*>(function) - static_cast<const char*>(library.dli_fbase);
    std::fprintf(file, "%s 0x%tx\n", library.dli_fname, offset);
  }
  return std::fclose(file) == 0 ? 1 : 0;
}
}
