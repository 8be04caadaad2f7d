#include "engine/execution/operation.h"

namespace hvdlite::engine {

using base::OpKind;
using base::ReduceOp;

collectives::Reduction reduction_of(const Request& request, std::int64_t divisor) {
  return {request.dtype, request.op, request.prescale, request.postscale,
          request.op == ReduceOp::kAverage ? divisor : 1};
}

collectives::Reduction reduction_of(const Agreed& agreed, int ranks) {
  return reduction_of(*agreed.request, agreed.divisor > 0 ? agreed.divisor : ranks);
}

Operation::Operation(FusedOp fused, std::vector<Entry> entries)
    : fused_(std::move(fused)), entries_(std::move(entries)) {
  for (std::size_t i = 0; i < fused_.parts.size(); ++i) {
    bytes_ += fused_.parts[i].request->bytes();
    if (entries_[i].request) entries_[i].completion->contributors = fused_.parts[i].contributors;
  }
}

bool Operation::has_no_value() const {
  return fused_.parts.front().contributors == 0 && first_request().kind == OpKind::kAllreduce;
}

}  // namespace hvdlite::engine
