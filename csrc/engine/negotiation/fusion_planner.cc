// First fit, in the order of the list: the first operation that is in no FusedOp begins a new one. Then each later operation is
// added to this FusedOp if it and the first operation are fusible() and compatible(), and if the bytes of the FusedOp stay
// within the threshold. An example with a threshold of 10 bytes (the numbers in the list are bytes, too):
//
//    list:   a 4    b 4 (other dtype)    c 4    d 9    e 2
//    plan:   {a, c, e}    {b}    {d}                           after a and c, d would make 17 bytes; e makes 10
//
// FusedOps are in the order of their first operations, and the operations in each FusedOp are in the order of the list. The
// plan depends on nothing but the arguments: no time, no address, no order of a hash table. Members have equal lists
// (set_negotiation.cc, set_port.cc), so all make the same plan and exchange nothing for it.
//
// It is enough to compare each operation with the first one of its FusedOp: compatible() only asks whether fields are equal, so
// what is compatible with the first operation is compatible with all.
#include "engine/negotiation/fusion_planner.h"

namespace hvdlite::engine {
namespace {

using base::OpKind;
using base::ReduceOp;

// May this operation share a buffer with others at all?
bool fusible(const AgreedOperation& agreed, int ranks) {
  const Request& request = *agreed.request;
  if (agreed.failed || request.kind != OpKind::kAllreduce || agreed.contributors == 0) return false;
  if (request.op == ReduceOp::kSum || request.op == ReduceOp::kAverage) return true;
  // A fusion buffer in host memory has zeros in place of an absent value, and zero is the identity only of sums. So operations
  // of another op are fused only if every member has a value. The same rule holds in GPU memory.
  return agreed.contributors == ranks;
}

// May these two share a buffer? One collective runs over the whole buffer, so both must give it equal arguments. Operations
// without a group have the group hash 0.
bool compatible(const AgreedOperation& one, const AgreedOperation& other) {
  const Request& a = *one.request;
  const Request& b = *other.request;
  return one.divisor == other.divisor && a.dtype == b.dtype && a.op == b.op &&
         a.on_gpu() == b.on_gpu() && a.wire == b.wire && a.codec == b.codec &&
         a.prescale == b.prescale && a.postscale == b.postscale && a.group_hash == b.group_hash &&
         a.arena == b.arena && a.weighted == b.weighted &&
         (!a.weighted || a.in_group());  // only operations of one group surely have one weight
}

}  // namespace

std::vector<std::vector<std::uint32_t>> plan_fusion(std::span<const AgreedOperation> agreed,
                                                    std::size_t threshold, int ranks) {
  std::vector<std::vector<std::uint32_t>> plan;
  std::vector<bool> taken(agreed.size(), false);
  for (std::uint32_t i = 0; i < agreed.size(); ++i) {
    if (taken[i]) continue;
    std::vector<std::uint32_t> fused = {i};
    std::size_t bytes = agreed[i].request->bytes();
    for (std::uint32_t j = i + 1; fusible(agreed[i], ranks) && j < agreed.size(); ++j) {
      const Request& candidate = *agreed[j].request;
      if (taken[j] || !fusible(agreed[j], ranks) || !compatible(agreed[i], agreed[j])) continue;
      // If the first operation is above the threshold, nothing is added to it, not even an empty tensor.
      if (bytes + candidate.bytes() > threshold) continue;
      bytes += candidate.bytes();
      taken[j] = true;
      fused.push_back(j);
    }
    plan.push_back(std::move(fused));
  }
  return plan;
}

}  // namespace hvdlite::engine
