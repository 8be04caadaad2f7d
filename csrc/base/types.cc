#include "base/types.h"

namespace hvdlite::base {

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
