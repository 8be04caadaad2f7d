// The decisions of one fuzzed run, drawn from its input: so the same bytes give the same run, whoever made them.
// Thread: one. Owns: nothing; the input outlives it. Blocks: no. Throws: nothing.
//
// An input that is used up draws zeros, and zero always means "as a correct rank would": short inputs change little.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace hvdlite::fuzz {

using Bytes = std::vector<std::byte>;

class Draw {
 public:
  explicit Draw(std::span<const std::uint8_t> input) : rest_(input) {}

  bool empty() const { return rest_.empty(); }
  std::uint8_t byte() {
    if (rest_.empty()) return 0;
    const std::uint8_t value = rest_.front();
    rest_ = rest_.subspan(1);
    return value;
  }
  std::uint32_t below(std::uint32_t limit) {
    const std::uint32_t low = byte();
    return (limit > 256 ? low << 8 | byte() : low) % limit;
  }
  bool one_in(std::uint32_t times) { return below(times) == times - 1; }
  std::uint64_t word() {
    std::uint64_t value = 0;
    for (int i = 0; i < 8; ++i) value = value << 8 | byte();
    return value;
  }
  // A number that decoders and sums trip over.
  std::uint64_t awkward() {
    constexpr std::uint64_t kNumbers[] = {0,
                                          1,
                                          2,
                                          0x7f,
                                          0x80,
                                          0xff,
                                          0x100,
                                          0x7fff'ffff,
                                          0x8000'0000,
                                          0xffff'ffff,
                                          0x1'0000'0000,
                                          0x4000'0000'0000'0000,
                                          0x7fff'ffff'ffff'ffff,
                                          0x8000'0000'0000'0000,
                                          0xffff'ffff'ffff'ffff};
    constexpr std::uint32_t kCount = sizeof(kNumbers) / sizeof(kNumbers[0]);
    const std::uint32_t which = below(kCount + 1);
    return which < kCount ? kNumbers[which] : word();
  }

 private:
  std::span<const std::uint8_t> rest_;
};

// One change to a message: what lines and memory do, what a confused sender does, and what somebody who means harm does.
inline void mutate_once(Draw& draw, Bytes& bytes) {
  const auto size = static_cast<std::uint32_t>(std::min<std::size_t>(bytes.size(), 65535));
  const std::uint32_t at = draw.below(size + 1);
  const auto place = bytes.begin() + at;
  switch (draw.below(7)) {
    case 0:
      if (at < size) bytes[at] ^= static_cast<std::byte>(1U << draw.below(8));
      break;
    case 1:
      if (at < size) bytes[at] = static_cast<std::byte>(draw.byte());
      break;
    case 2:
    case 3: {
      const std::uint64_t number = draw.awkward();
      const std::size_t width = std::size_t{1} << draw.below(4);
      if (at < size) {
        std::memcpy(bytes.data() + at, &number, std::min<std::size_t>(width, size - at));
      }
      break;
    }
    case 4:
      bytes.resize(at);
      break;
    case 5: {
      const std::uint32_t length = draw.below(size - at + 1);
      const Bytes copy(place, place + length);
      bytes.insert(bytes.begin() + draw.below(size + 1), copy.begin(), copy.end());
      break;
    }
    default:
      for (std::uint32_t more = draw.below(16); more > 0; --more) {
        bytes.push_back(static_cast<std::byte>(draw.byte()));
      }
  }
}

inline void mutate(Draw& draw, Bytes& bytes) {
  for (std::uint32_t times = 1 + draw.below(4); times > 0; --times) mutate_once(draw, bytes);
}

}  // namespace hvdlite::fuzz
