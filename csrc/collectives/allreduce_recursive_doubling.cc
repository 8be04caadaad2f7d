// Recursive doubling allreduce: after log2(p) exchanges of the whole vector every rank has the sum. It is for small vectors,
// because it has the fewest messages that wait for each other.
//
// What moves where, four ranks ("23" is the partial of ranks 2 and 3, lower rank first):
//
//                rank 0           rank 1           rank 2           rank 3
//   distance 1   0 <-> 1's        1 <-> 0's        2 <-> 3's        3 <-> 2's
//   holds        01               01               23               23
//   distance 2   01 <-> 2's       01 <-> 3's       23 <-> 0's       23 <-> 1's
//   holds        0123             0123             0123             0123
//
// If p is not a power of two but 2^k + rest, the first 2 * rest ranks are folded in pairs before the exchanges: rank 2i, the
// folded one, sends its contribution to rank 2i+1. Rank 2i+1 takes part for both ranks, and sends rank 2i the result at the
// end. Partials are exchanged in the accumulator type, so 16-bit floats are rounded once. If no rank is folded, the first
// exchange has no partials: contributions travel in the user's type.
//
// Cost for p ranks and S bytes: log2(p) (alpha + S beta + S gamma); if p is not a power of two, 2 (alpha + S beta) more. Bytes
// sent by a rank: log2(p) S, as accumulators (if p is a power of two, the first exchange is of the user's type). Staging: two
// vectors of accumulators, so forcing this algorithm for a large buffer costs memory as well as time.
//
// It cannot deadlock: both partners of an exchange post their receive before their send, and go on only when both are complete.
// So the k-th exchange waits only for the (k-1)-th of both partners, and the first one for the contribution of a folded rank,
// which waits for nothing. A folded rank waits for the last exchange of its partner.
//
// All ranks get the same bits although each computes the result itself: the participants form
// contiguous groups, and both partners combine the lower group's partial (on the left) with the
// upper group's (on the right). Layout-independent: the order depends on p alone, not on
// where an element lies. (It is not the order of allreduce_direct, from four ranks on.)
//
// Source: Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in
// MPICH (IJHPCA 19, 2005), section 4; the fold as in MPICH's allreduce.
#include <bit>
#include <utility>
#include <vector>

#include "collectives/algorithms.h"
#include "collectives/reducer.h"
#include "collectives/staging.h"

namespace hvdlite::collectives {

namespace {

class RecursiveDoubling final : public Collective {
 public:
  RecursiveDoubling(Comm comm, const AllreduceArgs& args, const Tuning& tuning)
      : comm_(std::move(comm)),
        reducer_(args.reduction, tuning.isa, args.whole().input, args.whole().count,
                 args.whole().count),
        output_(static_cast<std::byte*>(args.whole().output)),
        count_(args.whole().count),
        staging_(tuning.staging, 2,
                 comm_.size() == 1 ? 0 : args.whole().count * reducer_.partial_bytes()) {
    held_ = staging_.take();
    spare_ = staging_.take();
    plan();
  }

  bool advance() override {
    for (; next_ < steps_.size(); ++next_) {
      const Step& step = steps_[next_];
      if (!posted_ && step.receives != nullptr) {
        receive_ = comm_.recv(step.peer, 0, step.receives, step.bytes);
      }
      if (!posted_ && step.sends != nullptr) {
        send_ = comm_.send(step.peer, 0, step.sends, step.bytes);
      }
      posted_ = true;
      if (!comm_.test(receive_) || !comm_.test(send_)) return false;
      complete(step);
      posted_ = false;
    }
    return true;
  }

 private:
  // What follows when a step's messages are there.
  enum class Then {
    kNothing,
    kHold,    // the own contribution becomes the partial
    kBegin,   // the two contributions become the partial
    kMerge,   // the peer's partial is added to it
    kFinish,  // the partial becomes the result
    kAlone,
  };
  // Null: the step sends (or receives) nothing.
  struct Step {
    Then then = Then::kNothing;
    int peer = 0;
    const std::byte* sends = nullptr;
    std::byte* receives = nullptr;
    std::size_t bytes = 0;
  };

  void plan() {
    const int size = comm_.size();
    const int rank = comm_.rank();
    if (count_ == 0) return;
    if (size == 1) return steps_.push_back({Then::kAlone});
    const std::byte* const own = reducer_.own(0);
    const std::size_t contribution_bytes = count_ * reducer_.contribution_bytes();
    const std::size_t partial_bytes = count_ * reducer_.partial_bytes();
    const std::size_t result_bytes = count_ * reducer_.result_bytes();
    const int participants = static_cast<int>(std::bit_floor(static_cast<unsigned>(size)));
    const int rest = size - participants;
    const bool folded = rank < 2 * rest;
    if (folded && rank % 2 == 0) {
      steps_.push_back({Then::kNothing, rank + 1, own, nullptr, contribution_bytes});
      return steps_.push_back({Then::kNothing, rank + 1, nullptr, output_, result_bytes});
    }
    // If no rank is folded, the first exchange is one of contributions.
    const bool swaps = rest == 0;
    if (swaps) {
      steps_.push_back({Then::kBegin, rank ^ 1, own, spare_, contribution_bytes});
    } else if (folded) {
      steps_.push_back({Then::kBegin, rank - 1, nullptr, spare_, contribution_bytes});
    } else {
      steps_.push_back({Then::kHold});
    }
    // Participants are numbered without the gaps that folding left; their order stays that of
    // ranks.
    const int number = folded ? rank / 2 : rank - rest;
    for (int distance = swaps ? 2 : 1; distance < participants; distance *= 2) {
      const int partner = number ^ distance;
      const int peer = partner < rest ? 2 * partner + 1 : partner + rest;
      steps_.push_back({Then::kMerge, peer, held_, spare_, partial_bytes});
    }
    steps_.push_back({Then::kFinish});
    if (folded) steps_.push_back({Then::kNothing, rank - 1, output_, nullptr, result_bytes});
  }

  void complete(const Step& step) {
    const bool received_is_lower = step.peer < comm_.rank();
    const std::byte* const own = reducer_.own(0);
    switch (step.then) {
      case Then::kNothing:
        break;
      case Then::kHold:
        reducer_.load(held_, own, count_);
        break;
      case Then::kBegin:
        reducer_.begin(held_, received_is_lower ? spare_ : own, received_is_lower ? own : spare_,
                       count_);
        break;
      case Then::kMerge:
        reducer_.merge(held_, received_is_lower ? spare_ : held_,
                       received_is_lower ? held_ : spare_, count_);
        break;
      case Then::kFinish:
        reducer_.finish(output_, held_, count_);
        break;
      case Then::kAlone:
        reducer_.finish_alone(output_);
        break;
    }
  }

  Comm comm_;
  ElementReducer reducer_;
  std::byte* output_;
  std::size_t count_;
  Staging staging_;
  std::byte* held_;   // this rank's partial
  std::byte* spare_;  // what a partner sends
  std::vector<Step> steps_;
  std::size_t next_ = 0;
  bool posted_ = false;  // the messages of steps_[next_] are posted
  transport::Ticket receive_;
  transport::Ticket send_;
};

}  // namespace

std::unique_ptr<Collective> allreduce_recursive_doubling(Comm comm, AllreduceArgs args,
                                                         const Tuning& tuning) {
  return std::make_unique<RecursiveDoubling>(std::move(comm), args, tuning);
}

}  // namespace hvdlite::collectives
