// Barrier through shared memory: every rank raises its flag and waits for the flags of all others.
//
//                 rank 0              rank 1              rank 2
//   raises        flag 0              flag 1              flag 2
//   waits for     flags 1, 2          flags 0, 2          flags 0, 1
//
// The barrier is a tile without contents (shared_collective.h, which shows that tiles cannot deadlock).
//
// Cost for p ranks: one store, and one wait for the slowest; each rank looks at p-1 lines. Bytes sent: none.
//
// There is no result on which ranks could disagree. No rank leaves before all have entered.
//
// Source: common practice; the all-to-all form of the barriers in Mellor-Crummey and Scott, Algorithms for scalable
// synchronization on shared-memory multiprocessors (ACM TOCS 9, 1991).
#include <utility>

#include "base/error.h"
#include "collectives/algorithms.h"
#include "collectives/shared_collective.h"

namespace hvdlite::collectives {

namespace {

class BarrierShm final : public SharedCollective {
 public:
  BarrierShm(Comm comm, const Tuning& tuning) : SharedCollective(std::move(comm), tuning) {}

 private:
  bool step() override {
    if (!entered_) return entered_ = publish_inline(nullptr, 0);
    if (!all_inline_arrived()) return false;
    inline_done();
    finish(1);
    return true;
  }

  bool entered_ = false;
};

}  // namespace

std::unique_ptr<Collective> barrier_shm(Comm comm, Barrier, const Tuning& tuning) {
  HVD_CHECK(comm.shared() != nullptr);
  return std::make_unique<BarrierShm>(std::move(comm), tuning);
}

}  // namespace hvdlite::collectives
