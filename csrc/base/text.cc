#include "base/text.h"

#include <array>
#include <charconv>

namespace hvdlite::base {

std::string to_text(double number) {
  std::array<char, 32> text;
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), number).ptr};
}

std::string to_text(double number, int decimals) {
  std::array<char, 336> text;  // the largest number has 309 digits before the point
  const auto end = std::to_chars(text.data(), text.data() + text.size(), number,
                                 std::chars_format::fixed, decimals);
  return {text.data(), end.ptr};
}

std::string describe_rank(int rank, const std::string& host, int pid) {
  return "rank " + std::to_string(rank) + " (host " + host + ", pid " + std::to_string(pid) + ")";
}

}  // namespace hvdlite::base
