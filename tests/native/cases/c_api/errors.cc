// What a caller of the C ABI learns of an error.
#include "harness.h"
#include "hvdlite/hvdlite.h"
#include "no_memory.h"

namespace {

TEST(an_error_without_memory_for_its_text_is_an_error) {
  bool some_fell_short = false;
  for (std::size_t number = 1; number <= 10; ++number) {
    hvdlite_fabric* fabric = nullptr;
    native_test::refuse_allocation(number);
    const int code = hvdlite_fabric_create(0, nullptr, &fabric);
    native_test::refuse_allocation(0);
    if (code == HVDLITE_E_SYSTEM) {
      EXPECT_HAS(hvdlite_last_error(), "out of memory");
      some_fell_short = true;
    } else {
      EXPECT(code == HVDLITE_E_INVALID_ARGUMENT);
      EXPECT_HAS(hvdlite_last_error(), "a fabric needs at least one rank");
    }
  }
  EXPECT(some_fell_short);
}

}  // namespace
