#include "base/codec.h"

#include <iterator>

namespace hvdlite::base {

std::string_view name_of(CodecKind kind) {
  constexpr std::string_view kNames[] = {"none", "int8", "int4", "fp8"};
  const auto index = static_cast<std::size_t>(kind);
  return index < std::size(kNames) ? kNames[index] : "unknown codec";
}

std::string describe(const Codec& codec) {
  if (!codec) return std::string(name_of(codec.kind));
  return std::string(name_of(codec.kind)) + " in blocks of " + std::to_string(codec.block) +
         " between " + (codec.between == Between::kHosts ? "hosts" : "ranks");
}

}  // namespace hvdlite::base
