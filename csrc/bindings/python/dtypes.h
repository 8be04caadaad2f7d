// Names and sizes of the dtype codes: what csrc/base/types.h says, for a file that may include nothing but the C ABI.
// A test compares the names with hvdlite/dtypes.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>

namespace hvdlite::python {

struct DTypeRow {
  const char* name;
  std::size_t size;
};

inline constexpr DTypeRow kDTypes[] = {
    {"uint8", 1},   {"int8", 1},    {"uint16", 2}, {"int16", 2},   {"uint32", 4},
    {"int32", 4},   {"uint64", 8},  {"int64", 8},  {"float16", 2}, {"bfloat16", 2},
    {"float32", 4}, {"float64", 8}, {"bool", 1},
};

// 1 for a code that the core is about to refuse.
inline std::size_t size_of_dtype(std::int32_t code) {
  const auto index = static_cast<std::size_t>(code);
  return code >= 0 && index < std::size(kDTypes) ? kDTypes[index].size : 1;
}

}  // namespace hvdlite::python
