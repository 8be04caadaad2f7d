// Takes the memory away from a case: an allocation that the case chooses throws std::bad_alloc.
// Thread: main's. Owns: nothing. Blocks: no. Throws: as operator new.
#pragma once

#include <cstddef>
#include <new>

namespace native_test {

// Of the allocations from now on, the one of this number throws; 0: none does.
void refuse_allocation(std::size_t number);

// Calls step(n) for n = 0, 1, ... while it throws std::bad_alloc. In call n the allocation n + 1 is refused.
template <typename Step>
void refuse_each_allocation(Step step) {
  for (std::size_t number = 0, refused = 1; refused != 0; ++number) {
    try {
      refuse_allocation(number + 1);
      step(number);
      refused = 0;
    } catch (const std::bad_alloc&) {
    }
    refuse_allocation(0);
  }
}

}  // namespace native_test
