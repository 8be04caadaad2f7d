// Coded allreduce: as direct (allreduce_direct.cc), but contributions and results travel coded (kernels/codec.h). Each piece of
// the buffer has an owner. Every rank sends the owner its encoded contribution. The owner decodes the contributions, adds them
// in float32 in rank order 0, 1, ..., applies postscale and divisor, encodes the sum once and sends it to all ranks. So an
// element is coded twice, for any number of ranks.
//
// What moves where, three ranks, one round of three pieces a b c (piece r is owned by rank r; "b1" is rank 1's contribution to
// b, "[b1]" is b1 encoded):
//
//                rank 0             rank 1             rank 2
//   scatter      [b0] -> 1          [c1] -> 2          [a2] -> 0
//                [c0] -> 2          [a1] -> 0          [b2] -> 1
//   adds         a=[a0]+[a1]+[a2]   b=[b0]+[b1]+[b2]   c=[c0]+[c1]+[c2]   in float32
//   gather       [a] -> 1, 2        [b] -> 0, 2        [c] -> 0, 1        all decode [a] [b] [c]
//
// All ranks get the same bits because all decode the same bytes: an owner takes its result from [a] as well, and not from a. An
// owner also encodes and decodes its own contribution, so that no element's value depends on which rank owns it. Pieces begin
// and end with blocks of the codec, and no block spans two parts (block_layout.h). So the bits of a part depend on the
// contributions to it and on the codec, and not on the parts beside it, the owners or timing: the algorithm is
// layout-independent.
//
// Cost for p ranks and S bytes, of which the codec makes S/c bytes: each rank sends 2(p-1)/p S/c, encodes (1 + 1/p) S, and
// decodes 2 S: p contributions to its pieces, which it adds in the same pass, and all results. Up to four rounds are under way,
// each on a channel of its own.
//
// It cannot deadlock, for the reasons that allreduce_direct.cc gives. In place: a rank encodes its contribution to a piece
// before it can receive the result for that piece.
//
// With Reduction::from_partials the inputs are float32 (allreduce_hierarchical).
//
// Source: for the exchange, see allreduce_direct.cc. A ring would quantise at every hop, while an owner needs only two
// quantisations: Alistarh et al., QSGD (NeurIPS 2017), and Markov et al., CGX (Middleware 2022).
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/cache_line.h"
#include "collectives/algorithms.h"
#include "collectives/block_layout.h"
#include "collectives/direct_reduction.h"
#include "kernels/codec.h"

namespace hvdlite::collectives {

namespace {

using base::DType;

// Encodes pieces of the buffer, and decodes them.
class Coder {
 public:
  Coder(std::vector<AllreducePart> parts, const Reduction& reduction, kernels::Isa isa)
      : parts_(std::move(parts)),
        reduction_(reduction),
        layout_(parts_, reduction.codec),
        block_(static_cast<std::size_t>(reduction.codec.block)),
        codec_(kernels::codec_kernels(reduction.codec.kind, isa)),
        elements_(kernels::reduce_kernels(reduction.dtype, reduction.op, isa)),
        sums_(kernels::reduce_kernels(DType::kFloat32, reduction.op, isa)),
        input_bytes_(base::size_of(reduction.from_partials ? DType::kFloat32 : reduction.dtype)),
        output_bytes_(base::size_of(reduction.dtype)),
        plain_input_(reduction.from_partials ||
                     (reduction.dtype == DType::kFloat32 && reduction.prescale == 1.0)),
        plain_output_(reduction.dtype == DType::kFloat32),
        scratch_(base::kLargestBlock) {
    HVD_CHECK(elements_.accumulator == DType::kFloat32);
  }

  const BlockLayout& layout() const { return layout_; }
  std::size_t output_bytes() const { return output_bytes_; }

  // out = this rank's contribution to a range, encoded; an absent rank contributes zeros.
  void encode_own(const Range& range, std::byte* out) {
    layout_.walk(range,
                 [&](std::size_t number, std::size_t offset, std::size_t n, std::size_t coded) {
                   const auto* const input = static_cast<const std::byte*>(parts_[number].input);
                   if (input == nullptr) {
                     std::memset(out + coded, 0, kernels::encoded_bytes(layout_.codec(), n));
                   } else if (plain_input_) {
                     codec_.encode(out + coded, input + offset * input_bytes_, n, block_);
                   } else {
                     in_steps(n, [&](std::size_t done, std::size_t count, std::size_t bytes) {
                       elements_.load(scratch_.data(), input + (offset + done) * input_bytes_,
                                      count, reduction_.prescale);
                       codec_.encode(out + coded + bytes, scratch_.data(), count, block_);
                     });
                   }
                 });
  }

  // Decodes a contribution to a range, and adds it to the sum; is_first: makes it the sum.
  void add(const Range& range, std::byte* sum, const std::byte* contribution, bool is_first) const {
    std::byte* place = sum;
    layout_.walk(range, [&](std::size_t, std::size_t, std::size_t n, std::size_t coded) {
      (is_first ? codec_.decode : codec_.decode_add)(place, contribution + coded, n, block_);
      place += n * sizeof(float);
    });
  }

  // out = the finished sum of a range, encoded.
  void encode_sum(const Range& range, std::byte* sum, std::byte* out) const {
    sums_.store(sum, sum, range.count, reduction_.postscale, reduction_.divisor);
    const std::byte* place = sum;
    layout_.walk(range, [&](std::size_t, std::size_t, std::size_t n, std::size_t coded) {
      codec_.encode(out + coded, place, n, block_);
      place += n * sizeof(float);
    });
  }

  // Decodes the result of a range into this rank's output.
  void decode_result(const Range& range, const std::byte* result) {
    layout_.walk(range, [&](std::size_t number, std::size_t offset, std::size_t n,
                            std::size_t coded) {
      auto* const output = static_cast<std::byte*>(parts_[number].output);
      if (output == nullptr) return;
      if (plain_output_) {
        codec_.decode(output + offset * output_bytes_, result + coded, n, block_);
        return;
      }
      in_steps(n, [&](std::size_t done, std::size_t count, std::size_t bytes) {
        codec_.decode(scratch_.data(), result + coded + bytes, count, block_);
        elements_.store(output + (offset + done) * output_bytes_, scratch_.data(), count, 1.0, 1);
      });
    });
  }

 private:
  // Cuts n elements into steps of whole blocks that fit into the scratch memory. For each step calls handle(elements before it,
  // its elements, encoded bytes before it).
  template <typename Handle>
  void in_steps(std::size_t n, Handle handle) const {
    const std::size_t step = scratch_.size() / block_ * block_;
    std::size_t bytes = 0;
    for (std::size_t done = 0; done < n; done += step) {
      const std::size_t count = std::min(step, n - done);
      handle(done, count, bytes);
      bytes += kernels::encoded_bytes(layout_.codec(), count);
    }
  }

  std::vector<AllreducePart> parts_;
  Reduction reduction_;
  BlockLayout layout_;
  std::size_t block_;
  const kernels::CodecKernels& codec_;
  const kernels::ReduceKernels& elements_;  // of the user's type
  const kernels::ReduceKernels& sums_;      // of float32
  std::size_t input_bytes_;
  std::size_t output_bytes_;
  bool plain_input_;
  bool plain_output_;
  std::vector<float> scratch_;
};

// The data that all lanes of one operation share. It outlives the lanes.
struct CodedJob {
  Comm comm;
  Coder coder;
  Pieces pieces;
  std::shared_ptr<StagingCache> cache;
  std::size_t slot_bytes = 0;  // room for an encoded piece
  CodedBytes sent = {};

  std::size_t lanes() const { return std::min(pieces.rounds(), kMostLanes); }
  Range piece(std::size_t round, int rank) const {
    return coder.layout().whole_blocks(pieces.piece(round, rank));
  }
  std::size_t encoded_bytes(const Range& piece) const {
    return coder.layout().encoded_bytes(piece);
  }
};

class CodedLane {
 public:
  // 2 (n-1) + 1 encoded pieces, and one piece of float32.
  static std::size_t staging_bytes(const CodedJob& job) {
    const auto block = static_cast<std::size_t>(job.coder.layout().codec().block);
    return num_slots(job) * job.slot_bytes + (job.pieces.largest() + block) * sizeof(float);
  }

  CodedLane(CodedJob& job, int channel, std::byte* memory)
      : job_(&job),
        slots_(memory),
        sum_(memory + num_slots(job) * job.slot_bytes),
        round_(static_cast<std::size_t>(channel)),
        scatter_(job.comm, channel),
        gather_(job.comm, channel) {}

  bool advance() {
    for (; round_ < job_->pieces.rounds(); round_ += job_->lanes()) {
      const bool scattered = scatter();
      add_in_rank_order();
      if (!gather() || !scattered) return false;
      added_ = 0;
      decoded_ = 0;
      scatter_.reset();
      gather_.reset();
    }
    return true;
  }

 private:
  // Sends contributions to their owners. Returns true when all sends and receives are complete.
  bool scatter() {
    const std::size_t mine = job_->encoded_bytes(job_->piece(round_, job_->comm.rank()));
    return scatter_.advance([&](int rank) { return std::span(received(rank), mine); },
                            [&](int owner) {
                              const Range piece = job_->piece(round_, owner);
                              job_->coder.encode_own(piece, sent(owner));
                              return message(piece, sent(owner));
                            });
  }

  // Adds contributions that have arrived, but never rank q+1's before rank q's. After the last one the result is encoded.
  void add_in_rank_order() {
    const int size = job_->comm.size();
    const int rank = job_->comm.rank();
    if (added_ == size) return;
    const Range piece = job_->piece(round_, rank);
    for (; added_ < size; ++added_) {
      if (!scatter_.has_arrived(added_)) return;
      if (added_ == rank) job_->coder.encode_own(piece, own());
      job_->coder.add(piece, sum_, added_ == rank ? own() : received(added_), added_ == 0);
    }
    job_->coder.encode_sum(piece, sum_, own());
    job_->coder.decode_result(piece, own());
  }

  // Sends finished pieces to all ranks. Returns true when all sends and receives are complete.
  bool gather() {
    // A result overwrites the slot of a sent contribution, so the send must be complete. Between two ranks the scatter message
    // also has to be posted before the gather message, on both sides.
    if (!scatter_.may_be_followed()) return false;
    const Range mine = job_->piece(round_, job_->comm.rank());
    const bool done = gather_.advance(
        [&](int owner) {
          return std::span(sent(owner), job_->encoded_bytes(job_->piece(round_, owner)));
        },
        [&](int) { return message(mine, own()); },
        /*may_send=*/added_ == job_->comm.size());
    for (; decoded_ < gather_.arrived(); ++decoded_) {
      const int owner = gather_.sender_in(decoded_ + 1);
      job_->coder.decode_result(job_->piece(round_, owner), sent(owner));
    }
    return done;
  }

  std::span<const std::byte> message(const Range& piece, const std::byte* from) {
    const std::size_t bytes = job_->encoded_bytes(piece);
    job_->sent.before += piece.count * job_->coder.output_bytes();
    job_->sent.after += bytes;
    return {from, bytes};
  }

  static std::size_t num_slots(const CodedJob& job) {
    return static_cast<std::size_t>(2 * job.comm.size() - 1);
  }
  // The slots: one for the own piece; one for each other rank, for this rank's contribution to the other's piece and later for
  // that piece's result; one for each other rank, for the other's contribution to the own piece.
  std::byte* own() const { return slots_; }
  std::byte* sent(int rank) const { return slots_ + scatter_.shift_of(rank) * job_->slot_bytes; }
  std::byte* received(int rank) const {
    const auto others = static_cast<std::size_t>(job_->comm.size() - 1);
    return slots_ + (others + scatter_.shift_of(rank)) * job_->slot_bytes;
  }

  CodedJob* job_;
  std::byte* slots_;
  std::byte* sum_;
  std::size_t round_;
  int added_ = 0;            // ranks 0 .. added_-1 are in the sum
  std::size_t decoded_ = 0;  // results
  Shifts scatter_;
  Shifts gather_;
};

class AllreduceCoded final : public InLanes<CodedLane, CodedJob> {
 public:
  using InLanes::InLanes;
  CodedBytes coded_bytes() const override { return job_.sent; }
};

}  // namespace

std::unique_ptr<Collective> allreduce_coded(Comm comm, AllreduceArgs args, const Tuning& tuning) {
  Coder coder(std::move(args.parts), args.reduction, tuning.isa);
  const base::Codec codec = args.reduction.codec;
  const auto block = static_cast<std::size_t>(codec.block);
  const std::size_t blocks =
      direct_piece_bytes(tuning, comm.size()) / kernels::encoded_bytes(codec, block);
  const Pieces pieces = Pieces::of_buffer(coder.layout().count(), comm.size(),
                                          std::max<std::size_t>(blocks, 1) * block, 1);
  CodedJob job{std::move(comm), std::move(coder), pieces, tuning.staging};
  for (std::size_t round = 0; round < job.pieces.rounds(); ++round) {
    for (int rank = 0; rank < job.comm.size(); ++rank) {
      job.slot_bytes = std::max(job.slot_bytes, job.encoded_bytes(job.piece(round, rank)));
    }
  }
  job.slot_bytes = base::round_up_to_cache_lines(job.slot_bytes);
  return std::make_unique<AllreduceCoded>(std::move(job));
}

}  // namespace hvdlite::collectives
