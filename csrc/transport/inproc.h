// Ranks as threads of one process, or as state machines that one thread steps: the transport of the unit tests.
//
// It is stricter than MPI, in order to find mistakes. A send of more than 32 bytes completes only when its receive is posted,
// so a test finds a missing receive or a missing wait. The bytes are copied at that moment, so a test finds a buffer that is
// changed too early. And both sides must give the same number of bytes.
//
// Thread: the holder of a rank's progress token uses the rank's endpoint; the Fabric has locks of its own. Owns: all mailboxes.
// Blocks: only wait().
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
  // Called with each rank whose bell HostMail rings, after the bell has rung.
  std::function<void(int)> rings{};
};

std::shared_ptr<Fabric> make_fabric(const FabricShape& shape);

// Returns the endpoint of a rank. A rank has at most one endpoint at a time. Its destructor withdraws the operations that it
// has posted, so that no peer touches their buffers any more. If announce_leaving() was not called before, the other ranks then
// find this rank lost. use_window: if false, the rank behaves as on a host without shared memory.
std::unique_ptr<Transport> connect(std::shared_ptr<Fabric> fabric, int rank,
                                   bool use_window = true);

// For tests: the rank is dead from now on. If another rank then posts an operation with the dead rank, or calls test() for one
// that was not complete, Error(PeerLost) is thrown. The dead rank's own sends and receives throw it as well. Messages to the
// dead rank vanish, find_lost_peer() reports it once to each survivor, and all bells ring. Messages that it had sent before
// still arrive.
void kill(Fabric& fabric, int rank);

// A number that grows with each post, match, message and note_progress(), and with each call of test() that ends an operation.
// A scheduler that steps ranks in one thread reads it to see whether anything still moves.
std::uint64_t activity(const Fabric& fabric);

}  // namespace hvdlite::transport
