#include "base/digest.h"

#include <array>
#include <bit>
#include <cstring>

#include "base/hash.h"

namespace hvdlite::base {

std::uint64_t digest(const void* memory, std::size_t bytes) {
  constexpr std::size_t kLanes = 8;
  using Words = std::array<std::uint64_t, kLanes>;
  Words lanes;
  for (std::size_t lane = 0; lane < kLanes; ++lane) lanes[lane] = mix64(lane + 1);
  const auto* next = static_cast<const unsigned char*>(memory);
  const auto take = [&](std::size_t size) {
    Words words{};
    std::memcpy(words.data(), next, size);
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = std::rotl(lanes[lane] ^ words[lane], 27) * 0x9e3779b97f4a7c15U;
    }
    next += size;
  };
  std::size_t left = bytes;
  for (; left >= sizeof(Words); left -= sizeof(Words)) take(sizeof(Words));
  if (left > 0) take(left);
  Hasher all;
  all.add(bytes);
  for (const std::uint64_t lane : lanes) all.add(lane);
  return all.value();
}

}  // namespace hvdlite::base
