// Pairwise alltoall of uneven parts: in shift s every rank sends to the rank s places to its right
// and receives from the one s places to its left.
//
// What moves where, four ranks ("01" is rank 0's part for rank 1):
//
//                rank 0           rank 1           rank 2           rank 3
//   shift 0      00 copied        11 copied        22 copied        33 copied
//   shift 1      01 -> 1          12 -> 2          23 -> 3          30 -> 0
//   shift 2      02 -> 2          13 -> 3          20 -> 0          31 -> 1
//   shift 3      03 -> 3          10 -> 0          21 -> 1          32 -> 2
//
// The shifts do not wait for each other; up to 16 of each direction are under way, so that with
// hundreds of ranks no rank gets messages from all others at once. Parts go from the input into the output
// without staging, those of zero bytes are not sent.
//
// Cost for p ranks of which each sends S bytes evenly: alpha + (p-1) o + (p-1)/p S beta (o: the
// sender's own time for a message). Bytes sent by a rank: its input without the part for itself.
//
// It cannot deadlock: the s-th receive waits only for receives of smaller shifts and the s-th send
// only for sends of smaller shifts; shift s of all ranks is a perfect matching of sends and
// receives, so by induction on s each completes.
//
// All bytes are copied, never computed.
//
// Source: the pairwise exchange in Thakur, Rabenseifner and Gropp, Optimization of collective
// communication operations in MPICH (IJHPCA 19, 2005), section 4.4.
#include <utility>
#include <vector>

#include "base/error.h"
#include "collectives/algorithms.h"
#include "collectives/chunking.h"
#include "collectives/in_flight.h"
#include "kernels/stream.h"

namespace hvdlite::collectives {

namespace {

class AlltoallvPairwise final : public Collective {
 public:
  AlltoallvPairwise(Comm comm, AlltoallvArgs args)
      : comm_(std::move(comm)),
        input_(static_cast<const std::byte*>(args.input)),
        output_(static_cast<std::byte*>(args.output)),
        send_sizes_(std::move(args.send_bytes)),
        recv_sizes_(std::move(args.recv_bytes)),
        send_offsets_(offsets_of(send_sizes_)),
        recv_offsets_(offsets_of(recv_sizes_)),
        shifts_(static_cast<std::size_t>(comm_.size() - 1)) {}

  bool advance() override {
    bool moved = true;
    while (moved) {
      while (receives_.posted() < shifts_ && receives_.has_room()) post_receive();
      while (sends_.posted() < shifts_ && sends_.has_room()) post_send();
      moved = receives_.drain(comm_);
      moved = sends_.drain(comm_) || moved;
    }
    copy_own();  // after the first posts, so that the transfers run during the copy
    return receives_.done() == shifts_ && sends_.done() == shifts_;
  }

 private:
  std::size_t wrap(std::size_t rank) const { return rank % (shifts_ + 1); }
  std::size_t own_rank() const { return static_cast<std::size_t>(comm_.rank()); }

  void post_receive() {
    const std::size_t source = wrap(own_rank() + shifts_ - receives_.posted());
    const std::size_t bytes = recv_sizes_[source];
    receives_.push(bytes == 0 ? transport::Ticket{}
                              : comm_.recv(static_cast<int>(source), 0,
                                           output_ + recv_offsets_[source], bytes));
  }

  void post_send() {
    const std::size_t target = wrap(own_rank() + sends_.posted() + 1);
    const std::size_t bytes = send_sizes_[target];
    sends_.push(bytes == 0 ? transport::Ticket{}
                           : comm_.send(static_cast<int>(target), 0, input_ + send_offsets_[target],
                                        bytes));
  }

  void copy_own() {
    if (copied_) return;
    copied_ = true;
    const std::size_t own = own_rank();
    if (send_sizes_[own] == 0) return;
    kernels::plain_copy(output_ + recv_offsets_[own], input_ + send_offsets_[own],
                        send_sizes_[own]);
  }

  Comm comm_;
  const std::byte* input_;
  std::byte* output_;
  std::vector<std::size_t> send_sizes_;
  std::vector<std::size_t> recv_sizes_;
  std::vector<std::size_t> send_offsets_;
  std::vector<std::size_t> recv_offsets_;
  std::size_t shifts_;  // p-1
  InFlight receives_;
  InFlight sends_;
  bool copied_ = false;
};

}  // namespace

std::unique_ptr<Collective> alltoallv_pairwise(Comm comm, AlltoallvArgs args, const Tuning&) {
  const auto size = static_cast<std::size_t>(comm.size());
  const auto rank = static_cast<std::size_t>(comm.rank());
  HVD_CHECK(args.send_bytes.size() == size && args.recv_bytes.size() == size);
  HVD_CHECK(args.send_bytes[rank] == args.recv_bytes[rank]);
  return std::make_unique<AlltoallvPairwise>(std::move(comm), std::move(args));
}

}  // namespace hvdlite::collectives
