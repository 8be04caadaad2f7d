// The constructors of all algorithms: function name = file name. For registry.cc, and for algorithms that contain another.
// Thread: the holder of the progress token. Owns: nothing. Blocks: no. Throws: Error(Unsupported) for an element type and op
// that no kernel serves, Error(Internal) for a Comm or arguments that the algorithm cannot serve (Algorithm::runs_on,
// scattered). Nothing is posted before the first advance().
#pragma once

#include <memory>

#include "collectives/registry.h"

namespace hvdlite::collectives {

std::unique_ptr<Collective> allreduce_ring(Comm comm, AllreduceArgs args, const Tuning& tuning);
std::unique_ptr<Collective> allreduce_direct(Comm comm, AllreduceArgs args, const Tuning& tuning);
std::unique_ptr<Collective> allreduce_recursive_doubling(Comm comm, AllreduceArgs args,
                                                         const Tuning& tuning);
std::unique_ptr<Collective> allreduce_push(Comm comm, AllreduceArgs args, const Tuning& tuning);
std::unique_ptr<Collective> allreduce_shm(Comm comm, AllreduceArgs args, const Tuning& tuning);
std::unique_ptr<Collective> allreduce_inline(Comm comm, AllreduceArgs args, const Tuning& tuning);
std::unique_ptr<Collective> allreduce_hierarchical(Comm comm, AllreduceArgs args,
                                                   const Tuning& tuning);
std::unique_ptr<Collective> allreduce_coded(Comm comm, AllreduceArgs args, const Tuning& tuning);
std::unique_ptr<Collective> allreduce_adasum(Comm comm, AllreduceArgs args, const Tuning& tuning);
std::unique_ptr<Collective> reducescatter_ring(Comm comm, ReducescatterArgs args,
                                               const Tuning& tuning);
std::unique_ptr<Collective> reducescatter_direct(Comm comm, ReducescatterArgs args,
                                                 const Tuning& tuning);
std::unique_ptr<Collective> reducescatter_shm(Comm comm, ReducescatterArgs args,
                                              const Tuning& tuning);
std::unique_ptr<Collective> allgatherv_direct(Comm comm, AllgathervArgs args, const Tuning& tuning);
std::unique_ptr<Collective> allgatherv_ring(Comm comm, AllgathervArgs args, const Tuning& tuning);
std::unique_ptr<Collective> allgatherv_shm(Comm comm, AllgathervArgs args, const Tuning& tuning);
std::unique_ptr<Collective> broadcast_binomial(Comm comm, BroadcastArgs args, const Tuning& tuning);
std::unique_ptr<Collective> broadcast_chain(Comm comm, BroadcastArgs args, const Tuning& tuning);
std::unique_ptr<Collective> broadcast_shm(Comm comm, BroadcastArgs args, const Tuning& tuning);
std::unique_ptr<Collective> alltoallv_pairwise(Comm comm, AlltoallvArgs args, const Tuning& tuning);
std::unique_ptr<Collective> alltoallv_shm(Comm comm, AlltoallvArgs args, const Tuning& tuning);
std::unique_ptr<Collective> barrier_dissemination(Comm comm, Barrier args, const Tuning& tuning);
std::unique_ptr<Collective> barrier_shm(Comm comm, Barrier args, const Tuning& tuning);

}  // namespace hvdlite::collectives
