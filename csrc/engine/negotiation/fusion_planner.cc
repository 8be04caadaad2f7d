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
  // For an absent or joined rank, a fusion buffer in host memory has the identity of sums.
  return agreed.contributors == ranks;
}

bool compatible(const AgreedOperation& one, const AgreedOperation& other) {
  const Request& a = *one.request;
  const Request& b = *other.request;
  return one.divisor == other.divisor && a.dtype == b.dtype && a.op == b.op &&
         a.on_gpu() == b.on_gpu() && a.wire == b.wire && a.codec == b.codec &&
         a.prescale == b.prescale && a.postscale == b.postscale && a.group_hash == b.group_hash &&
         a.arena == b.arena && a.weighted == b.weighted &&
         (!a.weighted || a.in_group());  // a group has one weight
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
