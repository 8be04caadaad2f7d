#include "base/types.h"

namespace hvdlite::base {

std::string_view name_of(DType dtype) {
  constexpr std::string_view kNames[kNumDTypes] = {
      "uint8",   "int8",     "uint16",  "int16",   "uint32", "int32",     "uint64",    "int64",
      "float16", "bfloat16", "float32", "float64", "bool",   "complex64", "complex128"};
  const auto index = static_cast<std::size_t>(dtype);
  return index < kNumDTypes ? kNames[index] : "unknown dtype";
}

std::string_view name_of(ReduceOp op) {
  constexpr std::string_view kNames[] = {"Average", "Sum", "Adasum", "Min", "Max", "Product"};
  const auto index = static_cast<std::size_t>(op);
  return index < std::size(kNames) ? kNames[index] : "unknown op";
}

std::string_view name_of(OpKind kind) {
  constexpr std::string_view kNames[kNumOpKinds] = {
      "allreduce", "allgather",       "broadcast",          "alltoall", "reducescatter", "barrier",
      "join",      "add_process_set", "remove_process_set", "send",     "recv"};
  const auto index = static_cast<std::size_t>(kind);
  return index < kNumOpKinds ? kNames[index] : "unknown kind";
}

}  // namespace hvdlite::base
