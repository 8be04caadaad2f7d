#include "no_memory.h"

#include <cstdlib>

namespace native_test {
namespace {

thread_local std::size_t left = 0;  // allocations up to the one that is refused; 0: none is

}  // namespace

void refuse_allocation(std::size_t number) { left = number; }

}  // namespace native_test

// These replace the functions of the C++ library.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  if (native_test::left > 0 && --native_test::left == 0) throw std::bad_alloc();
  void* const memory = std::malloc(bytes > 0 ? bytes : 1);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return std::malloc(bytes > 0 ? bytes : 1);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
