// The unit in which the processor moves data between memory and its caches, on all processors that hvdlite supports.
#pragma once

#include <cstddef>

namespace hvdlite::base {

inline constexpr std::size_t kCacheLine = 64;  // bytes

constexpr std::size_t round_up_to_cache_lines(std::size_t bytes) {
  return (bytes + kCacheLine - 1) / kCacheLine * kCacheLine;
}

}  // namespace hvdlite::base
