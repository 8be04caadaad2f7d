// Ring allgather of uneven parts: every part travels once around the ring. It is cut into segments, and a rank passes a segment
// on before it has the whole part.
//
// What moves where, four ranks with parts a b c d (rank r's left neighbour is r-1; a rank sends its own part first; then it
// passes on every part that comes from the left, but not the part of its right neighbour):
//
//   link 0 -> 1 carries  a d c      link 1 -> 2  b a d
//   link 2 -> 3 carries  c b a      link 3 -> 0  d c b
//
// Each link carries one stream of segments in a fixed order on one channel. Every segment is received into its place in the
// output, so the algorithm needs no staging memory. A rank may send a segment on as soon as it has arrived; up to 16 segments
// are under way in each direction. Parts of zero bytes are not sent.
//
// Cost for p ranks, parts of m_r bytes, S bytes in all, segments of g bytes: about (p-1) alpha + (S + (p-2) g) beta, for any
// distribution of sizes. (Without segments, one large part would be stored and forwarded p-1 times.) Bytes sent by rank r:
// S - m_(r+1).
//
// It cannot deadlock: receives wait only for earlier receives, sends of own segments wait for no receive, and each segment is
// passed on by a chain of ranks that ends before its origin.
//
// In place: a rank's own part already lies at its place in the output, and no other part is written there.
//
// All ranks get the same bytes: they are copied, never computed.
//
// Source: the ring allgather in Thakur, Rabenseifner and Gropp, Optimization of collective
// communication operations in MPICH (IJHPCA 19, 2005); segmenting uneven parts as in Traff et al.,
// A simple, pipelined algorithm for large, irregular all-gather problems (IJHPCA 24, 2010).
#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"
#include "collectives/algorithms.h"
#include "collectives/chunking.h"
#include "collectives/in_flight.h"
#include "kernels/stream.h"

namespace hvdlite::collectives {

namespace {

class AllgathervRing final : public Collective {
 public:
  AllgathervRing(Comm comm, const AllgathervArgs& args, const Tuning& tuning)
      : comm_(std::move(comm)),
        input_(static_cast<const std::byte*>(args.input)),
        output_(static_cast<std::byte*>(args.output)) {
    const std::vector<Range> parts = runs_of(args.bytes);
    const std::size_t size = parts.size();
    const auto rank = static_cast<std::size_t>(comm_.rank());
    own_ = parts[rank];
    for (std::size_t step = 0; step < size; ++step) {
      const Range& part = parts[(rank + size - step) % size];
      const std::size_t segments =
          pieces_in(part.count, std::max<std::size_t>(tuning.segment_bytes, 1));
      for (std::size_t i = 0; i < segments; ++i) stream_.push_back(part_of(part, segments, i));
      if (step == 0) own_segments_ = stream_.size();
      if (step + 2 == size) num_sends_ = stream_.size();
    }
    num_receives_ = stream_.size() - own_segments_;
  }

  bool advance() override {
    bool moved = true;
    while (moved) {
      post_receives();
      post_sends();
      moved = receives_.drain(comm_);
      moved = sends_.drain(comm_) || moved;
    }
    copy_own();  // after the first posts, so that the transfers run during the copy
    return receives_.done() == num_receives_ && sends_.done() == num_sends_;
  }

 private:
  void post_receives() {
    const int left = (comm_.rank() + comm_.size() - 1) % comm_.size();
    while (receives_.posted() < num_receives_ && receives_.has_room()) {
      const Range& segment = stream_[own_segments_ + receives_.posted()];
      receives_.push(comm_.recv(left, 0, output_ + segment.offset, segment.count));
    }
  }

  void post_sends() {
    const int right = (comm_.rank() + 1) % comm_.size();
    const std::size_t available = std::min(num_sends_, own_segments_ + receives_.done());
    while (sends_.posted() < available && sends_.has_room()) {
      const Range& segment = stream_[sends_.posted()];
      const std::byte* const source = sends_.posted() < own_segments_
                                          ? input_ + (segment.offset - own_.offset)
                                          : output_ + segment.offset;
      sends_.push(comm_.send(right, 0, source, segment.count));
    }
  }

  void copy_own() {
    if (copied_) return;
    copied_ = true;
    std::byte* const mine = output_ + own_.offset;
    if (input_ != mine && own_.count > 0) kernels::plain_copy(mine, input_, own_.count);
  }

  Comm comm_;
  const std::byte* input_;
  std::byte* output_;
  Range own_;
  // The segments of all parts, as bytes of the output: of the own part, of the left neighbour's, and so on. All but the first
  // own_segments_ come from the left. All but those of the last part, the right neighbour's, go to the right.
  std::vector<Range> stream_;
  std::size_t own_segments_ = 0;
  std::size_t num_receives_ = 0;
  std::size_t num_sends_ = 0;
  InFlight receives_;
  InFlight sends_;
  bool copied_ = false;
};

}  // namespace

std::unique_ptr<Collective> allgatherv_ring(Comm comm, AllgathervArgs args, const Tuning& tuning) {
  HVD_CHECK(args.bytes.size() == static_cast<std::size_t>(comm.size()));
  return std::make_unique<AllgathervRing>(std::move(comm), args, tuning);
}

}  // namespace hvdlite::collectives
