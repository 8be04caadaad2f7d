#include "collectives/registry.h"

#include "collectives/algorithms.h"

namespace hvdlite::collectives {

namespace {

constexpr Algorithm<AllreduceArgs> kAllreduceRows[] = {
    {"ring", allreduce_ring, /*layout_independent=*/false},
    {"direct", allreduce_direct},
    {"recursive_doubling", allreduce_recursive_doubling},
    {.name = "shm", .make = allreduce_shm, .scattered = true, .runs_on = shares_memory},
    {.name = "inline", .make = allreduce_inline, .scattered = true, .runs_on = shares_memory},
    {.name = "push",
     .make = allreduce_push,
     .scattered = true,
     .runs_on = shares_memory,
     .serves_only = "tensors that lie in an arena, and auto takes it for those"},
    // layout_independent: if Tuning::deterministic is set, or on up to eight hosts
    {.name = "hierarchical",
     .make = allreduce_hierarchical,
     .scattered = true,
     .runs_on = shares_memory_on_hosts},
    {.name = "coded",
     .make = allreduce_coded,
     .scattered = true,
     .serves_only = "reductions with a codec as compression, whatever this knob says"},
    {.name = "adasum",
     .make = allreduce_adasum,
     .scattered = true,
     .serves_only = "reductions with op=Adasum, whatever this knob says"},
};
constexpr Algorithm<ReducescatterArgs> kReducescatterRows[] = {
    {"ring", reducescatter_ring, /*layout_independent=*/false},
    {"direct", reducescatter_direct},
    {.name = "shm", .make = reducescatter_shm, .runs_on = shares_memory},
};
constexpr Algorithm<AllgathervArgs> kAllgathervRows[] = {
    {"ring", allgatherv_ring},
    {"direct", allgatherv_direct},
    {.name = "shm", .make = allgatherv_shm, .runs_on = shares_memory},
};
constexpr Algorithm<BroadcastArgs> kBroadcastRows[] = {
    {"binomial", broadcast_binomial},
    {"chain", broadcast_chain},
    {.name = "shm", .make = broadcast_shm, .runs_on = shares_memory},
};
constexpr Algorithm<AlltoallvArgs> kAlltoallvRows[] = {
    {"pairwise", alltoallv_pairwise},
    {.name = "shm", .make = alltoallv_shm, .runs_on = shares_memory},
};
constexpr Algorithm<Barrier> kBarrierRows[] = {
    {"dissemination", barrier_dissemination},
    {.name = "shm", .make = barrier_shm, .runs_on = shares_memory},
};

}  // namespace

bool shares_memory(const Comm& comm) {
  return comm.shared() != nullptr && comm.shared()->size() == comm.size();
}

bool shares_memory_on_hosts(const Comm& comm) { return comm.hosts() != nullptr; }

constexpr AlgorithmList<AllreduceArgs> kAllreduce = {"allreduce", "HVDLITE_ALLREDUCE_ALGORITHM",
                                                     kAllreduceRows};
constexpr AlgorithmList<ReducescatterArgs> kReducescatter = {
    "reducescatter", "HVDLITE_REDUCESCATTER_ALGORITHM", kReducescatterRows};
constexpr AlgorithmList<AllgathervArgs> kAllgatherv = {"allgatherv", "HVDLITE_ALLGATHERV_ALGORITHM",
                                                       kAllgathervRows};
constexpr AlgorithmList<BroadcastArgs> kBroadcast = {"broadcast", "HVDLITE_BROADCAST_ALGORITHM",
                                                     kBroadcastRows};
constexpr AlgorithmList<AlltoallvArgs> kAlltoallv = {"alltoallv", "HVDLITE_ALLTOALLV_ALGORITHM",
                                                     kAlltoallvRows};
constexpr AlgorithmList<Barrier> kBarrier = {"barrier", "HVDLITE_BARRIER_ALGORITHM", kBarrierRows};

}  // namespace hvdlite::collectives
