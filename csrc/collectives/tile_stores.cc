#include "collectives/tile_stores.h"

#include <algorithm>
#include <utility>

namespace hvdlite::collectives {

std::uint64_t StoreTrials::handled(std::uint64_t tile, double cost, std::uint64_t kind) {
  if (first_ != 0 && tile >= first_) {
    const std::uint64_t place = tile - first_;
    if (place < 2 * kTiles) {
      if (!std::exchange(kind_known_, true)) kind_ = kind;
      mixed_ = mixed_ || kind != kind_;
      double& best = best_[place / kTiles];
      if (place % kTiles >= kWarmUp) best = best > 0 ? std::min(best, cost) : cost;
    }
    if (place + 1 >= 2 * kTiles) conclude(tile);
  } else if (first_ == 0) {
    const bool surprises =
        kind == kind_ && usual_ > 0 && (cost > usual_ * kSurprise || cost * kSurprise < usual_);
    surprises_ = surprises ? surprises_ + 1 : 0;
    const bool sooner = surprises_ >= kSurprises && tile >= earliest_;
    if (tile >= next_ || sooner) {
      first_ = tile + kAhead;
      best_ = {};
      kind_known_ = mixed_ = false;
      surprises_ = 0;
    }
  }
  return word();
}

void StoreTrials::conclude(std::uint64_t tile) {
  first_ = 0;
  if (mixed_ || best_[0] <= 0 || best_[1] <= 0) {  // of two kinds, or too few timed
    next_ = tile + kLeastGap;
    return;
  }
  const bool better = best_[streams_ ? 0 : 1] < kGain * best_[streams_ ? 1 : 0];
  if (better) streams_ = !streams_;
  gap_ = better ? kLeastGap : std::min(2 * gap_, kMostGap);
  usual_ = best_[streams_ ? 1 : 0];
  next_ = tile + gap_;
  earliest_ = tile + gap_ / 4;
}

}  // namespace hvdlite::collectives
