// Adasum allreduce: combines the ranks' tensors in pairs, and the results in pairs again. The common direction of two tensors
// counts once, and orthogonal components are added:
//
//   adasum(a, b) = (1 - a.b / 2 a.a) a + (1 - a.b / 2 b.b) b
//
// Equal tensors give the tensor itself, orthogonal ones their sum. The dot products are those of a whole tensor. Each part of
// the buffer is one tensor, so each part has coefficients of its own.
//
// What moves where, four ranks ("23" is the adasum of the tensors of ranks 2 and 3):
//
//                rank 0           rank 1           rank 2           rank 3
//   distance 1   0 <-> 1's        1 <-> 0's        2 <-> 3's        3 <-> 2's
//   holds        01               01               23               23
//   distance 2   01 <-> 2's       01 <-> 3's       23 <-> 0's       23 <-> 1's
//   holds        0123             0123             0123             0123
//
// Partials are of the accumulator type (float32 for 16-bit floats) and rounded to it at each distance; dot products are
// computed in double. The number of ranks is a power of two. As adasum(s a, s b) = s adasum(a, b), the result is postscale *
// adasum of prescale * x.
//
// A null input (an absent or joined rank) contributes -0, which is the identity: adasum(a, -0) = a. The coefficient of a is 1
// if a.a is almost zero (kLeastSquare), or if b.b is zero. (If b.b is zero, a.b is zero as well, or it is not a number because
// a holds an infinity.)
//
// Cost for p ranks and S bytes of accumulators: log2(p) (alpha + S beta + S gamma). Staging: two vectors of accumulators.
//
// It cannot deadlock, for the reason given in allreduce_recursive_doubling.
//
// All ranks get the same bits although each computes the result itself: both partners of an exchange take the lower ranks'
// partial as a and the upper ranks' as b, and add the products of a dot product in the same order. The dot products use only
// the baseline instruction set. Layout-independent: each part is combined separately, so its place in the buffer does not
// matter.
//
// Source: Maleki et al., Scaling Distributed Training with Adaptive Summation (MLSys 2021).
#include <algorithm>
#include <array>
#include <cfloat>
#include <cmath>
#include <utility>

#include "collectives/algorithms.h"
#include "collectives/staging.h"

namespace hvdlite::collectives {

namespace {

// The number of partial sums in a dot product. The compiler can keep them in vector registers without changing the order of
// additions.
constexpr std::size_t kLanes = 8;

struct Dots {
  double ab = 0;
  double aa = 0;
  double bb = 0;
};

template <typename A>
Dots dots_of(const A* a, const A* b, std::size_t n) {
  std::array<double, kLanes> ab = {};
  std::array<double, kLanes> aa = {};
  std::array<double, kLanes> bb = {};
  const auto add = [&](std::size_t lane, std::size_t i) {
    const auto x = static_cast<double>(a[i]);
    const auto y = static_cast<double>(b[i]);
    ab[lane] += x * y;
    aa[lane] += x * x;
    bb[lane] += y * y;
  };
  const std::size_t whole = n - n % kLanes;
  for (std::size_t i = 0; i < whole; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) add(lane, i + lane);
  }
  for (std::size_t i = whole; i < n; ++i) add(i - whole, i);
  Dots dots;
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    dots.ab += ab[lane];
    dots.aa += aa[lane];
    dots.bb += bb[lane];
  }
  return dots;
}

double coefficient(double ab, double own, double other) {
  // Horovod's bound.
  static const double kLeastSquare = std::sqrt(DBL_MIN);
  return own >= kLeastSquare && other != 0 ? 1.0 - ab / own * 0.5 : 1.0;
}

// out = adasum(a, b); out may be a or b.
template <typename A>
void combine(A* out, const A* a, const A* b, std::size_t n) {
  const Dots dots = dots_of(a, b, n);
  const double of_a = coefficient(dots.ab, dots.aa, dots.bb);
  const double of_b = coefficient(dots.ab, dots.bb, dots.aa);
  for (std::size_t i = 0; i < n; ++i) {
    out[i] = static_cast<A>(of_a * static_cast<double>(a[i]) + of_b * static_cast<double>(b[i]));
  }
}

template <typename A>
class Adasum final : public Collective {
 public:
  Adasum(Comm comm, AllreduceArgs args, const Tuning& tuning)
      : comm_(std::move(comm)),
        args_(std::move(args)),
        // Casting and scaling are those of a Sum.
        kernels_(kernels::reduce_kernels(args_.reduction.dtype, base::ReduceOp::kSum, tuning.isa)),
        count_(args_.count()),
        staging_(tuning.staging, 2, count_ * sizeof(A)),
        held_(reinterpret_cast<A*>(staging_.take())),
        spare_(reinterpret_cast<A*>(staging_.take())) {
    HVD_CHECK((comm_.size() & (comm_.size() - 1)) == 0);
  }

  bool advance() override {
    if (done_ || count_ == 0) return true;
    if (distance_ == 0) {
      load();
      distance_ = 1;
    }
    for (; distance_ < comm_.size(); distance_ *= 2) {
      const int partner = comm_.rank() ^ distance_;
      if (!posted_) {
        receive_ = comm_.recv(partner, 0, spare_, count_ * sizeof(A));
        send_ = comm_.send(partner, 0, held_, count_ * sizeof(A));
        posted_ = true;
      }
      if (!comm_.test(receive_) || !comm_.test(send_)) return false;
      posted_ = false;
      merge(partner < comm_.rank());
    }
    store();
    done_ = true;
    return true;
  }

 private:
  void load() {
    A* place = held_;
    for (const AllreducePart& part : args_.parts) {
      if (part.input != nullptr) {
        kernels_.load(place, part.input, part.count, args_.reduction.prescale);
      } else {
        std::fill_n(place, part.count, A(-0.0));  // +0 would turn -0 into +0
      }
      place += part.count;
    }
  }

  void merge(bool received_is_lower) {
    std::size_t offset = 0;
    for (const AllreducePart& part : args_.parts) {
      A* const mine = held_ + offset;
      const A* const theirs = spare_ + offset;
      combine(mine, received_is_lower ? theirs : mine, received_is_lower ? mine : theirs,
              part.count);
      offset += part.count;
    }
  }

  void store() {
    const A* place = held_;
    for (const AllreducePart& part : args_.parts) {
      if (part.output != nullptr) {
        kernels_.store(part.output, place, part.count, args_.reduction.postscale, 1);
      }
      place += part.count;
    }
  }

  Comm comm_;
  AllreduceArgs args_;
  const kernels::ReduceKernels& kernels_;
  std::size_t count_;
  Staging staging_;
  A* held_;   // this rank's partial
  A* spare_;  // what a partner sends
  int distance_ = 0;
  bool posted_ = false;  // the messages of the current distance are posted
  bool done_ = false;
  transport::Ticket receive_;
  transport::Ticket send_;
};

}  // namespace

std::unique_ptr<Collective> allreduce_adasum(Comm comm, AllreduceArgs args, const Tuning& tuning) {
  HVD_CHECK(base::is_float(args.reduction.dtype));
  if (args.reduction.dtype == base::DType::kFloat64) {
    return std::make_unique<Adasum<double>>(std::move(comm), std::move(args), tuning);
  }
  return std::make_unique<Adasum<float>>(std::move(comm), std::move(args), tuning);
}

}  // namespace hvdlite::collectives
