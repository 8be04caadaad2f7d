// The words that all layers share: element types, reduction operators, kinds of operations.
// Thread: plain values, any thread. Owns: nothing. Blocks: no. Throws: nothing.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace hvdlite::base {

// The codes cross the C ABI and the wire; append, never renumber. hvdlite/dtypes.py holds the same table (a test compares).
enum class DType : std::uint8_t {
  kUInt8 = 0,
  kInt8 = 1,
  kUInt16 = 2,
  kInt16 = 3,
  kUInt32 = 4,
  kInt32 = 5,
  kUInt64 = 6,
  kInt64 = 7,
  kFloat16 = 8,
  kBFloat16 = 9,
  kFloat32 = 10,
  kFloat64 = 11,
  kBool = 12,
  kComplex64 = 13,  // two float32
  kComplex128 = 14,
};
inline constexpr int kNumDTypes = 15;

struct DTypeFacts {
  std::string_view name;
  std::size_t size;
};

constexpr DTypeFacts facts_of(DType dtype) {
  constexpr DTypeFacts kFacts[kNumDTypes] = {
      {"uint8", 1},   {"int8", 1},    {"uint16", 2}, {"int16", 2},     {"uint32", 4},
      {"int32", 4},   {"uint64", 8},  {"int64", 8},  {"float16", 2},   {"bfloat16", 2},
      {"float32", 4}, {"float64", 8}, {"bool", 1},   {"complex64", 8}, {"complex128", 16}};
  const auto index = static_cast<std::size_t>(dtype);
  return index < kNumDTypes ? kFacts[index] : DTypeFacts{"unknown dtype", 0};
}

constexpr std::string_view name_of(DType dtype) { return facts_of(dtype).name; }  // "float32"
constexpr std::size_t size_of(DType dtype) { return facts_of(dtype).size; }

constexpr bool is_float(DType dtype) {
  return dtype >= DType::kFloat16 && dtype <= DType::kFloat64;
}
constexpr bool is_complex(DType dtype) {
  return dtype == DType::kComplex64 || dtype == DType::kComplex128;
}
// Can elements of this type have fractions?
constexpr bool has_fractions(DType dtype) { return is_float(dtype) || is_complex(dtype); }

// The size of one real number: of a complex number, the size of each of its two parts.
constexpr std::size_t size_of_real(DType dtype) {
  return is_complex(dtype) ? size_of(dtype) / 2 : size_of(dtype);
}

// Horovod's numbering. Average is a Sum whose result is divided by the number of ranks before it is rounded.
enum class ReduceOp : std::uint8_t {
  kAverage = 0,
  kSum = 1,
  kAdasum = 2,
  kMin = 3,
  kMax = 4,
  kProduct = 5,
};
inline constexpr int kNumReduceOps = 6;

enum class OpKind : std::uint8_t {
  kAllreduce = 0,
  kAllgather = 1,
  kBroadcast = 2,
  kAlltoall = 3,
  kReducescatter = 4,
  kBarrier = 5,
  kJoin = 6,
  kAddProcessSet = 7,
  kRemoveProcessSet = 8,
  kSend = 9,
  kRecv = 10,
};
inline constexpr int kNumOpKinds = 11;

constexpr bool reduces(OpKind kind) {
  return kind == OpKind::kAllreduce || kind == OpKind::kReducescatter;
}
// Operations in which the ranks' inputs may have different numbers of rows (the first dimension). All other dimensions are
// equal.
constexpr bool rows_may_differ(OpKind kind) {
  return kind == OpKind::kAllgather || kind == OpKind::kAlltoall;
}
constexpr bool moves_data(OpKind kind) {
  return reduces(kind) || rows_may_differ(kind) || kind == OpKind::kBroadcast;
}
constexpr bool changes_sets(OpKind kind) {
  return kind == OpKind::kAddProcessSet || kind == OpKind::kRemoveProcessSet;
}
// Is it an operation of two ranks, for which only these two ask? All other kinds are collective.
constexpr bool is_point_to_point(OpKind kind) {
  return kind == OpKind::kSend || kind == OpKind::kRecv;
}

// A rank's place in the job. local_: on its host; cross_: across hosts.
struct Topology {
  int rank = 0, size = 1, local_rank = 0, local_size = 1, cross_rank = 0, cross_size = 1;
  bool is_homogeneous = true;  // all hosts have equally many ranks
};

// Identifies a process set for the whole job: ids are reused after remove_process_set, epochs are not.
struct SetId {
  std::int32_t id = 0;
  std::uint32_t epoch = 0;
  friend bool operator==(const SetId&, const SetId&) = default;
  friend auto operator<=>(const SetId&, const SetId&) = default;
};

std::string_view name_of(ReduceOp op);  // "Average"
std::string_view name_of(OpKind kind);  // "allreduce"

}  // namespace hvdlite::base
