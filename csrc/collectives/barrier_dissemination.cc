// Dissemination barrier: in step k every rank sends a message to the rank 2^k places to its right. The message says that its
// sender has arrived, and that every rank has arrived whose arrival the sender already knows of.
//
// What moves where, four ranks (in braces: whose arrival a rank knows of afterwards):
//
//                rank 0           rank 1           rank 2           rank 3
//   step 0       -> 1 {3 0}       -> 2 {0 1}       -> 3 {1 2}       -> 0 {2 3}
//   step 1       -> 2 {1 2 3 0}   -> 3 {2 3 0 1}   -> 0 {3 0 1 2}   -> 1 {0 1 2 3}
//
// Cost for p ranks: ceil(log2 p) alpha, for any p. Bytes sent by a rank: ceil(log2 p), one in each step, because a message of
// zero bytes would not be sent.
//
// It cannot deadlock: a step waits only for the previous step of another rank. The peers of one
// rank's steps differ (2^k < p), so a rank sends at most one message to each other rank.
//
// There is no result on which ranks could disagree. No rank leaves before all have entered.
//
// Source: Hensgen, Finkel and Manber, Two algorithms for barrier synchronization (International
// Journal of Parallel Programming 17, 1988).
#include <array>
#include <utility>

#include "collectives/algorithms.h"

namespace hvdlite::collectives {

namespace {

class BarrierDissemination final : public Collective {
 public:
  explicit BarrierDissemination(Comm comm) : comm_(std::move(comm)) {
    while ((std::int64_t{1} << steps_) < comm_.size()) ++steps_;
  }

  bool advance() override {
    while (step_ < steps_) {
      if (!posted_) post();
      if (!comm_.test(receives_[step_])) return false;
      posted_ = false;
      ++step_;
    }
    while (sent_ < steps_ && comm_.test(sends_[sent_])) ++sent_;
    return sent_ == steps_;
  }

 private:
  static constexpr std::size_t kMaxSteps = 31;

  void post() {
    const std::int64_t size = comm_.size();
    const std::int64_t distance = std::int64_t{1} << step_;
    const auto left = static_cast<int>((comm_.rank() - distance + size) % size);
    const auto right = static_cast<int>((comm_.rank() + distance) % size);
    receives_[step_] = comm_.recv(left, 0, &heard_[step_], 1);
    sends_[step_] = comm_.send(right, 0, &token_, 1);
    posted_ = true;
  }

  Comm comm_;
  std::size_t steps_ = 0;
  std::size_t step_ = 0;
  std::size_t sent_ = 0;
  bool posted_ = false;  // this step's messages
  std::byte token_{1};
  std::array<std::byte, kMaxSteps> heard_{};
  std::array<transport::Ticket, kMaxSteps> receives_;
  std::array<transport::Ticket, kMaxSteps> sends_;
};

}  // namespace

std::unique_ptr<Collective> barrier_dissemination(Comm comm, Barrier, const Tuning&) {
  return std::make_unique<BarrierDissemination>(std::move(comm));
}

}  // namespace hvdlite::collectives
