#include "engine/fusion_planner.h"

namespace hvdlite::engine {
namespace {

using base::OpKind;
using base::ReduceOp;

// May this response share a buffer with others at all?
bool fusible(const Response& response, int ranks_needed) {
  const Request& request = response.request;
  if (!response.error.ok() || request.kind != OpKind::kAllreduce || response.contributors == 0) {
    return false;
  }
  if (request.op == ReduceOp::kSum || request.op == ReduceOp::kAverage) return true;
  // An absent rank contributes the identity, and a zero-filled stretch of the buffer is that only for sums.
  return response.contributors == ranks_needed;
}

bool compatible(const Response& one, const Response& other) {
  const Request& a = one.request;
  const Request& b = other.request;
  return one.divisor == other.divisor && a.dtype == b.dtype && a.op == b.op &&
         a.device == b.device && a.prescale == b.prescale && a.postscale == b.postscale &&
         a.group == b.group && a.arena == b.arena;
}

}  // namespace

std::vector<FusedOp> plan_fusion(const std::vector<ResponsePtr>& responses, std::size_t threshold,
                                 int ranks) {
  std::vector<FusedOp> plan;
  std::vector<bool> taken(responses.size(), false);
  for (std::size_t i = 0; i < responses.size(); ++i) {
    if (taken[i]) continue;
    FusedOp fused = {responses[i]};
    std::size_t bytes = responses[i]->request.bytes();
    for (std::size_t j = i + 1; fusible(*responses[i], ranks) && j < responses.size(); ++j) {
      const Response& candidate = *responses[j];
      if (taken[j] || !fusible(candidate, ranks) || !compatible(*responses[i], candidate)) continue;
      if (bytes + candidate.request.bytes() > threshold) continue;
      bytes += candidate.request.bytes();
      taken[j] = true;
      fused.push_back(responses[j]);
    }
    plan.push_back(std::move(fused));
  }
  return plan;
}

}  // namespace hvdlite::engine
