// A 64-bit hash of a sequence of words and texts, the same on all ranks: tables and the ledger of negotiation are keyed by it.
// Thread: one object, one thread. Owns: nothing. Blocks: no. Throws: nothing.
//
// With each word w the state s becomes mix(s ^ w), where mix is the finaliser of splitmix64 (Steele, Lea and Flood, "Fast
// splittable pseudorandom number generators", 2014, with the constants of Stafford's "Mix13"). mix is a bijection, so:
//   - two sequences of equal length that differ in exactly one word never collide;
//   - two sequences that differ in several words collide with probability about 2^-64, as mix spreads each input bit over all
//     output bits.
// A text is added as its length and then its bytes, eight to a word. So the texts "ab", "c" and "a", "bc" are different
// sequences of words. The hash protects against accidental collisions, not against an attacker. It depends on the native byte
// order, as all bytes that ranks exchange do.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace hvdlite::base {

constexpr std::uint64_t mix64(std::uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9U;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebU;
  x ^= x >> 31;
  return x;
}

class Hasher {
 public:
  void add(std::uint64_t word) { state_ = mix64(state_ ^ word); }
  void add_signed(std::int64_t word) { add(static_cast<std::uint64_t>(word)); }
  // Two 32-bit fields in one word.
  void add_pair(std::int32_t high, std::int32_t low) {
    add((static_cast<std::uint64_t>(static_cast<std::uint32_t>(high)) << 32) |
        static_cast<std::uint32_t>(low));
  }
  // Adds the bits of the number: -0.0 differs from 0.0.
  void add_double(double value) { add(std::bit_cast<std::uint64_t>(value)); }
  void add_text(std::string_view text) {
    add(text.size());
    for (; text.size() >= sizeof(std::uint64_t); text.remove_prefix(sizeof(std::uint64_t))) {
      std::uint64_t word = 0;
      std::memcpy(&word, text.data(), sizeof(word));
      add(word);
    }
    if (text.empty()) return;
    std::uint64_t word = 0;
    std::memcpy(&word, text.data(), text.size());
    add(word);
  }
  std::uint64_t value() const { return state_; }

 private:
  // Not 0, because mix64(0) is 0, so a state of 0 would ignore leading zeros. The number is the fraction of the golden ratio.
  std::uint64_t state_ = 0x9e3779b97f4a7c15U;
};

}  // namespace hvdlite::base
