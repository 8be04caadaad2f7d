// How an allreduce codes floats on their way between ranks: few bits for each element, and one float32 scale for each block of
// elements. A codec is a plain value; kernels/codec.h describes the formats, and declares the functions that encode and decode.
// Thread: plain values, any thread. Owns: nothing. Blocks: no. Throws: nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace hvdlite::base {

// The numbers cross the C ABI and the wire; append, never renumber. hvdlite/compression.py has the same numbers (a test
// compares).
enum class CodecKind : std::uint8_t { kNone = 0, kInt8 = 1, kInt4 = 2, kFp8 = 3 };
inline constexpr int kNumCodecKinds = 4;

// Where elements travel coded: only between hosts, or also between the ranks of one host.
enum class Between : std::uint8_t { kHosts = 0, kRanks = 1 };
inline constexpr int kNumBetweens = 2;

struct Codec {
  CodecKind kind = CodecKind::kNone;
  Between between = Between::kHosts;
  std::int32_t block = 0;  // elements that share a scale; 0 for kNone

  explicit operator bool() const { return kind != CodecKind::kNone; }
  friend bool operator==(const Codec&, const Codec&) = default;
};

// The number of elements of a block is a multiple of kBlockStep, and at most kLargestBlock.
inline constexpr std::int32_t kBlockStep = 64;
inline constexpr std::int32_t kLargestBlock = 4096;

constexpr bool is_possible_block(std::int32_t block) {
  return block > 0 && block <= kLargestBlock && block % kBlockStep == 0;
}

std::string_view name_of(CodecKind kind);  // "int8"
std::string describe(const Codec& codec);  // "int8 in blocks of 256 between hosts"; "none"

}  // namespace hvdlite::base
