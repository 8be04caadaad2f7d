#include "nccl/reduce.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/half.h"

namespace fake {
namespace {

namespace nccl = hvdlite::device::nccl;
using hvdlite::base::BFloat16;
using hvdlite::base::Float16;

constexpr std::size_t kChunk = 1024;

template <typename T>
constexpr bool kSixteenBits = std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>;

template <typename T>
auto widen(T value) {
  if constexpr (kSixteenBits<T>) {
    return hvdlite::base::to_float(value);
  } else {
    return value;
  }
}

template <typename T, typename Wide>
T narrow(Wide value) {
  if constexpr (std::is_same_v<T, Float16>) {
    return hvdlite::base::to_float16(static_cast<float>(value));
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return hvdlite::base::to_bfloat16(static_cast<float>(value));
  } else {
    return static_cast<T>(value);
  }
}

template <typename T>
T combine(T left, T right, int op) {
  const auto a = widen(left);
  const auto b = widen(right);
  if (op == nccl::kMax) return a < b ? right : left;
  if (op == nccl::kMin) return b < a ? right : left;
  if constexpr (std::is_integral_v<T>) {  // wraps around
    const auto x = static_cast<std::uint64_t>(left);
    const auto y = static_cast<std::uint64_t>(right);
    return static_cast<T>(op == nccl::kProd ? x * y : x + y);
  } else {
    return narrow<T>(op == nccl::kProd ? a * b : a + b);
  }
}

// The average of floats is the sum of the shares; that of integers is divided at the end.
template <typename T>
T prepare(T value, int op, std::size_t ranks) {
  if constexpr (std::is_integral_v<T>) {
    return value;
  } else {
    if (op != nccl::kAvg) return value;
    const T share = narrow<T>(1.0 / static_cast<double>(ranks));
    return narrow<T>(widen(value) * widen(share));
  }
}

template <typename T>
void reduce_as(const std::vector<const void*>& from, void* to, std::size_t count, int op) {
  const std::size_t ranks = from.size();
  // As NCCL 2.28 does now and then: the last one of an odd number is not written.
  if (ranks == 1 && op == nccl::kAvg && sizeof(T) == 2 && from[0] != to) count -= count % 2;
  const auto at = [&](std::size_t rank, std::size_t i) {
    T value;
    std::memcpy(&value, static_cast<const char*>(from[rank]) + i * sizeof(T), sizeof(T));
    return prepare(value, op, ranks);
  };
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t first = i / kChunk % ranks;
    T result = at(first, i);
    for (std::size_t step = 1; step < ranks; ++step) {
      result = combine(result, at((first + step) % ranks, i), op);
    }
    if constexpr (std::is_integral_v<T>) {
      if (op == nccl::kAvg) result = static_cast<T>(result / static_cast<T>(ranks));
    }
    std::memcpy(static_cast<char*>(to) + i * sizeof(T), &result, sizeof(T));
  }
}

}  // namespace

std::size_t size_of(int type) {
  constexpr std::size_t kSizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  return type >= 0 && type < 10 ? kSizes[type] : 0;
}

void reduce(const std::vector<const void*>& from, void* to, std::size_t count, int type, int op) {
  switch (type) {
    case nccl::kInt8:
      return reduce_as<std::int8_t>(from, to, count, op);
    case nccl::kUInt8:
      return reduce_as<std::uint8_t>(from, to, count, op);
    case nccl::kInt32:
      return reduce_as<std::int32_t>(from, to, count, op);
    case nccl::kUInt32:
      return reduce_as<std::uint32_t>(from, to, count, op);
    case nccl::kInt64:
      return reduce_as<std::int64_t>(from, to, count, op);
    case nccl::kUInt64:
      return reduce_as<std::uint64_t>(from, to, count, op);
    case nccl::kFloat16:
      return reduce_as<Float16>(from, to, count, op);
    case nccl::kFloat32:
      return reduce_as<float>(from, to, count, op);
    case nccl::kFloat64:
      return reduce_as<double>(from, to, count, op);
    case nccl::kBFloat16:
      return reduce_as<BFloat16>(from, to, count, op);
    default:
      return;
  }
}

}  // namespace fake
