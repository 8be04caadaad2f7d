// The first collective of a weighted mean: the members exchange their weights, and each member learns its share of the sum of
// all weights. A member may give notice with its weight (in elastic training: notice that the member will leave). All members
// learn of the notice at the same operation.
// Thread: the holder of the progress token. Owns: the weights. Blocks: no. Throws: what start_allreduce throws.
#pragma once

#include <memory>
#include <vector>

#include "collectives/select.h"
#include "engine/model/request.h"
#include "engine/observe/usage.h"

namespace hvdlite::engine {

class WeightExchange {
 public:
  // Starts the collective, which the owner advances until it has ended. own: this rank's weight; 0 if the rank has joined.
  std::unique_ptr<collectives::Collective> start(const collectives::Comm& comm, Weight own,
                                                 const collectives::Selection& selection);
  // True after start() until take() is called.
  bool pending() const { return !weights_.empty(); }
  // Call take() when the collective has ended. Returns the reduction for the second collective, that of the values. If all
  // weights are equal and not 0, take() returns `mean`, the plain mean, for which every algorithm can be used. Otherwise take()
  // returns a Sum with the prescale of `mean` times this rank's share (times 0 if all weights are 0). Counts the operation in
  // counters.notices if any member has given notice. rank: this rank's place in the Comm.
  collectives::Reduction take(collectives::Reduction mean, int rank, Counters& counters);
  // Valid after take(). True: this rank's weight is 0. Such a rank contributes nothing, and not 0 times its values, because 0
  // times a value that is not finite is NaN.
  bool counts_nothing() const { return counts_nothing_; }

 private:
  // From start() to take(): the weights of the members, and as the last element the number of members that give notice. Empty
  // before start() and after take().
  std::vector<double> weights_;
  bool counts_nothing_ = false;
};

}  // namespace hvdlite::engine
