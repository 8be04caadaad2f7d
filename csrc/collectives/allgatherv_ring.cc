// Ring allgather of uneven parts: every part travels once around the ring. It is cut into segments, and a rank passes a segment
// on before it has the whole part.
//
// What moves where, four ranks with parts a b c d (rank r's left neighbour is r-1; a rank sends its
// own part first, then passes on what comes from the left, all but its right neighbour's part):
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
// It cannot deadlock: receives are posted without waiting for anything but earlier receives, own
// segments are sent without waiting for any receive, and each segment is passed on by a chain of
// ranks that ends before its origin.
//
// In place: no other rank's part goes to the place of a rank's own part.
//
// All ranks get the same bytes: they are copied, never computed.
//
// Source: the ring allgather in Thakur, Rabenseifner and Gropp, Optimization of collective
// communication operations in MPICH (IJHPCA 19, 2005); segmenting uneven parts as in Traff et al.,
// A simple, pipelined algorithm for large, irregular all-gather problems (IJHPCA 24, 2010).
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "collectives/algorithms.h"
#include "collectives/chunking.h"
#include "collectives/in_flight.h"
#include "kernels/stream.h"

namespace hvdlite::collectives {

namespace {

class AllgathervRing final : public Collective {
 public:
  AllgathervRing(Comm comm, AllgathervArgs args, const Tuning& tuning)
      : comm_(std::move(comm)),
        input_(static_cast<const std::byte*>(args.input)),
        output_(static_cast<std::byte*>(args.output)),
        sizes_(std::move(args.bytes)),
        offsets_(offsets_of(sizes_)),
        segment_(std::max<std::size_t>(tuning.segment_bytes, 1)),
        own_segments_(segments(comm_.rank())) {
    const int size = comm_.size();
    const int right = (comm_.rank() + 1) % size;
    std::size_t total = 0;
    for (int part = 0; part < size; ++part) total += segments(part);
    if (size > 1) {
      num_receives_ = total - own_segments_;
      num_sends_ = total - segments(right);
    }
    incoming_.part = (comm_.rank() + size - 1) % size;
    outgoing_.part = comm_.rank();
    skip_empty(incoming_);
    skip_empty(outgoing_);
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
  // A place in the stream of a link: parts in descending order, cyclically, each segment by
  // segment.
  struct Cursor {
    int part = 0;
    std::size_t segment = 0;
  };

  std::size_t size_of(int part) const { return sizes_[static_cast<std::size_t>(part)]; }
  std::size_t segments(int part) const { return pieces_in(size_of(part), segment_); }

  void skip_empty(Cursor& cursor) const {
    for (int seen = 0; seen < comm_.size() && cursor.segment == segments(cursor.part); ++seen) {
      cursor.segment = 0;
      cursor.part = (cursor.part + comm_.size() - 1) % comm_.size();
    }
  }

  // The bytes of the segment at the cursor within its part, and the cursor moved on.
  Range take(Cursor& cursor) const {
    const Range range = part_of(size_of(cursor.part), segments(cursor.part), cursor.segment);
    ++cursor.segment;
    skip_empty(cursor);
    return range;
  }

  std::byte* place(int part) const { return output_ + offsets_[static_cast<std::size_t>(part)]; }

  void post_receives() {
    const int left = (comm_.rank() + comm_.size() - 1) % comm_.size();
    while (receives_.posted() < num_receives_ && receives_.has_room()) {
      const int part = incoming_.part;
      const Range range = take(incoming_);
      receives_.push(comm_.recv(left, 0, place(part) + range.offset, range.count));
    }
  }

  // The stream to the right is the own part and then the stream from the left.
  void post_sends() {
    const int right = (comm_.rank() + 1) % comm_.size();
    const std::size_t available = std::min(num_sends_, own_segments_ + receives_.done());
    while (sends_.posted() < available && sends_.has_room()) {
      const int part = outgoing_.part;
      const Range range = take(outgoing_);
      const std::byte* const source = part == comm_.rank() ? input_ : place(part);
      sends_.push(comm_.send(right, 0, source + range.offset, range.count));
    }
  }

  void copy_own() {
    if (copied_) return;
    copied_ = true;
    std::byte* const mine = place(comm_.rank());
    if (input_ != mine && size_of(comm_.rank()) > 0) {
      kernels::plain_copy(mine, input_, size_of(comm_.rank()));
    }
  }

  Comm comm_;
  const std::byte* input_;
  std::byte* output_;
  std::vector<std::size_t> sizes_;
  std::vector<std::size_t> offsets_;
  std::size_t segment_;
  std::size_t own_segments_;
  std::size_t num_receives_ = 0;
  std::size_t num_sends_ = 0;
  Cursor incoming_;
  Cursor outgoing_;
  InFlight receives_;
  InFlight sends_;
  bool copied_ = false;
};

}  // namespace

std::unique_ptr<Collective> allgatherv_ring(Comm comm, AllgathervArgs args, const Tuning& tuning) {
  HVD_CHECK(args.bytes.size() == static_cast<std::size_t>(comm.size()));
  return std::make_unique<AllgathervRing>(std::move(comm), std::move(args), tuning);
}

}  // namespace hvdlite::collectives
