// Ranks as threads (or as simulated state machines stepped by one thread) in one process: the
// transport of the unit tests.
//
// It is stricter than MPI where strictness finds mistakes: a send above a few dozen bytes
// completes only when its receive was posted (so a missing receive or a missing wait shows), the
// bytes are copied at that moment (so a buffer touched too early shows), and the two sides must
// name the same number of bytes.
//
// Thread: each rank's endpoint belongs to its token holder; the Fabric itself is locked inside.
// Owns: all mailboxes. Blocks: only wait(). Throws: Error(PeerLost) from the data plane of whoever
// deals with a rank closed by kill(), Error(Internal) on both sides when byte counts differ.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "transport/transport.h"

namespace hvdlite::transport {

class Fabric;  // the mailboxes of `size` ranks

struct FabricShape {
  static constexpr std::size_t kResultBytes = std::size_t{64} << 20;  // of each rank's ResultMemory

  int size = 1;
  std::vector<int> hosts;      // number of each rank's host; empty: one host for all
  std::size_t tile_bytes = 0;  // of the hosts' windows; 0: as for real hosts
  std::size_t ledger_bytes = 0;
  std::size_t mail_bytes = 0;        // of each ring of control messages; 0: as for real hosts
  std::function<void(int)> rings{};  // is told, too, whom the rings' users wake
};

std::shared_ptr<Fabric> make_fabric(const FabricShape& shape);

// One endpoint a rank at a time. Destroying it withdraws what it had posted, so that no peer
// touches its buffers any more; without announce_leaving() before, the peers find it lost.
// use_window false: as if the host had no shared memory.
std::unique_ptr<Transport> connect(std::shared_ptr<Fabric> fabric, int rank,
                                   bool use_window = true);

// Tests: the rank is dead from now on. Posts to it and tests of what had not completed throw
// Error(PeerLost), as does everything the dead rank itself tries; messages to it vanish,
// find_lost_peer() tells each survivor once, all bells ring. What it had sent before still arrives.
void kill(Fabric& fabric, int rank);

// Grows with every post, match, completed test and message: a scheduler that steps ranks in one
// thread knows by it whether anything still moves.
std::uint64_t activity(const Fabric& fabric);

}  // namespace hvdlite::transport
