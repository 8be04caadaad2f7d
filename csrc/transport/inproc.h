// Ranks as threads (or as simulated state machines stepped by one thread) in one process: the transport of the unit tests.
// Thread: each rank's endpoint belongs to its token holder; the Fabric itself is locked inside. Owns: all mailboxes.
// Blocks: only wait(). Throws: Error(PeerLost) to an endpoint whose peer was closed by kill().
#pragma once

#include <memory>

#include "transport/transport.h"

namespace hvdlite::transport {

class Fabric;  // the mailboxes of `size` ranks

std::shared_ptr<Fabric> make_fabric(int size);
std::unique_ptr<Transport> connect(std::shared_ptr<Fabric> fabric, int rank);
// Tests: from now on every operation with this rank throws Error(PeerLost).
void kill(Fabric& fabric, int rank);

}  // namespace hvdlite::transport
