// The common part of the broadcast trees: segments come from this rank's parent and go on to this rank's children. A segment is
// received into its place in the user's data and sent on from there.
// Thread: the holder of the progress token. Owns: nothing but tickets. Blocks: no. Throws: what
// Transport throws.
#pragma once

#include <vector>

#include "collectives/collective.h"
#include "collectives/in_flight.h"

namespace hvdlite::collectives {

// A rank's neighbours in a tree, as places in the Comm.
struct Branch {
  int parent = -1;            // -1 at the root
  std::vector<int> children;  // in the order in which each segment is sent to them
};

class BroadcastStream final : public Collective {
 public:
  BroadcastStream(Comm comm, const BroadcastArgs& args, const Tuning& tuning, const Branch& branch);
  bool advance() override;

 private:
  struct Child {
    int rank = 0;
    InFlight sends;
  };

  std::size_t available() const;  // segments that may be sent on
  bool receive();
  bool feed(Child& child);

  Comm comm_;
  std::byte* data_;
  std::size_t bytes_;
  std::size_t segments_;
  int parent_;
  std::vector<Child> children_;
  InFlight receives_;
};

}  // namespace hvdlite::collectives
