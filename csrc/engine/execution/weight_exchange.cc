// An example: rank 1 has three times rank 0's weight and gives notice, and rank 2 has joined.
//
//             weights_         after the sum     reduction of this rank's values
//    rank 0   [ 2 0 0 | 0 ]    [ 2 6 0 | 1 ]     Sum, prescale * 2/8
//    rank 1   [ 0 6 0 | 1 ]    [ 2 6 0 | 1 ]     Sum, prescale * 6/8
//    rank 2   [ 0 0 0 | 0 ]    [ 2 6 0 | 1 ]     Sum, prescale * 0, and it contributes nothing
//
// All members see the same weights. So either all of them use the plain mean, or all use the Sum.
#include "engine/execution/weight_exchange.h"

#include <algorithm>
#include <utility>

namespace hvdlite::engine {

using base::ReduceOp;

// Each member contributes a vector that holds its weight at its own place, its notice (1 or 0) at the last place, and zeros
// elsewhere. The sum of these vectors holds all weights, without rounding. A weighted FusedOp has several parts only if they
// are a group, and on each member all tensors of a group have the same weight. So one weight is enough for the FusedOp.
std::unique_ptr<collectives::Collective> WeightExchange::start(
    const collectives::Comm& comm, Weight own, const collectives::Selection& selection) {
  weights_.assign(static_cast<std::size_t>(comm.size()) + 1, 0.0);
  weights_[static_cast<std::size_t>(comm.rank())] = own.value;
  weights_.back() = own.notice ? 1 : 0;
  collectives::AllreduceArgs args;
  args.parts = {{weights_.data(), weights_.data(), weights_.size()}};
  args.reduction = {.dtype = base::DType::kFloat64, .op = ReduceOp::kSum};
  return collectives::start_allreduce(comm, args, selection);
}

// A member's share is its weight divided by the sum of all weights. The shares add up to 1 (unless all weights are 0), so the
// Sum of the scaled values needs no divisor.
collectives::Reduction WeightExchange::take(collectives::Reduction mean, int rank,
                                            Counters& counters) {
  std::vector<double> weights = std::exchange(weights_, {});
  if (weights.back() > 0) ++counters.notices;
  weights.pop_back();
  const double own = weights[static_cast<std::size_t>(rank)];
  counts_nothing_ = own == 0;
  if (own != 0 && std::ranges::all_of(weights, [&](double each) { return each == own; })) {
    return mean;
  }
  // Divides by the largest weight first, because a sum of large weights could overflow.
  const double largest = std::ranges::max(weights);
  double total = 0;
  for (const double each : weights) total += largest > 0 ? each / largest : 0;
  mean.op = ReduceOp::kSum;
  mean.divisor = 1;
  mean.own_prescale = true;
  mean.prescale *= total > 0 ? own / largest / total : 0;
  return mean;
}

}  // namespace hvdlite::engine
