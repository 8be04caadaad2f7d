// Ranks as threads of one process, or as state machines that one thread steps: the transport of the unit tests.
//
// It is stricter than MPI, in order to find mistakes. A send of more than 32 bytes completes only when its receive is posted,
// so a test finds a missing receive or a missing wait. The bytes are copied at that moment, so a test finds a buffer that is
// changed too early. And both sides must give the same number of bytes.
//
// Thread: each rank's token holder uses its endpoint; the Fabric locks itself. Owns: all mailboxes. Blocks: only wait().
// Throws: Error(PeerLost) from sends and receives with a rank that was killed, Error(Internal) if byte counts differ (on both
// sides, unless the send was complete before), Error(InvalidArgument) for a rank that is not in the fabric or has an endpoint
// already.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "transport/transport.h"

namespace hvdlite::transport {

class Fabric;  // the mailboxes of all ranks (inproc.cc)

struct FabricShape {
  static constexpr std::size_t kResultBytes = std::size_t{64} << 20;  // for each rank

  int size = 1;
  std::vector<int> hosts;      // number of each rank's host; empty: one host for all
  std::size_t tile_bytes = 0;  // of the hosts' windows; 0: as for real hosts
  std::size_t ledger_bytes = 0;
  std::size_t mail_bytes = 0;  // of each ring of control messages; 0: as for real hosts
  // Is called with each rank that the rings' users wake, in addition to the rank's bell.
  std::function<void(int)> rings{};
};

std::shared_ptr<Fabric> make_fabric(const FabricShape& shape);

// One endpoint of a rank at a time. Its destructor withdraws what it had posted, so that no peer touches its buffers any more.
// If announce_leaving() was not called before, the other ranks find this rank lost. use_window false: as on a host without
// shared memory.
std::unique_ptr<Transport> connect(std::shared_ptr<Fabric> fabric, int rank,
                                   bool use_window = true);

// For tests: the rank is dead from now on. Posts to it, and tests of operations that had not completed, throw Error(PeerLost),
// and so does each send and receive that the dead rank tries. Messages to it vanish, find_lost_peer() reports it once to each
// survivor, and all bells ring. Messages that it had sent before still arrive.
void kill(Fabric& fabric, int rank);

// Grows with each post, match, completed test, message and note_progress(). A scheduler that steps ranks in one thread reads it
// to see whether anything still moves.
std::uint64_t activity(const Fabric& fabric);

}  // namespace hvdlite::transport
