#include "collectives/registry.h"

#include <string>

#include "base/error.h"
#include "collectives/algorithms.h"

namespace hvdlite::collectives {

namespace {

constexpr Algorithm<AllreduceArgs> kAllreduce[] = {
    {"ring", allreduce_ring, /*layout_independent=*/false},
    {"direct", allreduce_direct},
    {"recursive_doubling", allreduce_recursive_doubling},
    {.name = "shm", .make = allreduce_shm, .scattered = true, .runs_on = shares_memory},
    {.name = "inline", .make = allreduce_inline, .scattered = true, .runs_on = shares_memory},
    {.name = "push",
     .make = allreduce_push,
     .scattered = true,
     .runs_on = shares_memory,
     .in_arena = true},
    // layout_independent: if Tuning::deterministic is set, or on up to eight hosts
    {.name = "hierarchical",
     .make = allreduce_hierarchical,
     .scattered = true,
     .runs_on = shares_memory_on_hosts},
    {.name = "coded", .make = allreduce_coded, .scattered = true, .only_coded = true},
    {.name = "adasum", .make = allreduce_adasum, .scattered = true, .adasum = true},
};
constexpr Algorithm<ReducescatterArgs> kReducescatter[] = {
    {"ring", reducescatter_ring, /*layout_independent=*/false},
    {"direct", reducescatter_direct},
    {.name = "shm", .make = reducescatter_shm, .runs_on = shares_memory},
};
constexpr Algorithm<AllgathervArgs> kAllgatherv[] = {
    {"ring", allgatherv_ring},
    {"direct", allgatherv_direct},
    {.name = "shm", .make = allgatherv_shm, .runs_on = shares_memory},
};
constexpr Algorithm<BroadcastArgs> kBroadcast[] = {
    {"binomial", broadcast_binomial},
    {"chain", broadcast_chain},
    {.name = "shm", .make = broadcast_shm, .runs_on = shares_memory},
};
constexpr Algorithm<AlltoallvArgs> kAlltoallv[] = {
    {"pairwise", alltoallv_pairwise},
    {.name = "shm", .make = alltoallv_shm, .runs_on = shares_memory},
};
constexpr Algorithm<Barrier> kBarrier[] = {
    {"dissemination", barrier_dissemination},
    {.name = "shm", .make = barrier_shm, .runs_on = shares_memory},
};

}  // namespace

bool shares_memory(const Comm& comm) {
  return comm.shared() != nullptr && comm.shared()->size() == comm.size();
}

bool shares_memory_on_hosts(const Comm& comm) { return comm.hosts() != nullptr; }

std::span<const Algorithm<AllreduceArgs>> allreduce_algorithms() { return kAllreduce; }
std::span<const Algorithm<ReducescatterArgs>> reducescatter_algorithms() { return kReducescatter; }
std::span<const Algorithm<AllgathervArgs>> allgatherv_algorithms() { return kAllgatherv; }
std::span<const Algorithm<BroadcastArgs>> broadcast_algorithms() { return kBroadcast; }
std::span<const Algorithm<AlltoallvArgs>> alltoallv_algorithms() { return kAlltoallv; }
std::span<const Algorithm<Barrier>> barrier_algorithms() { return kBarrier; }

template <>
std::string_view collective_name<AllreduceArgs>() {
  return "allreduce";
}
template <>
std::string_view collective_name<ReducescatterArgs>() {
  return "reducescatter";
}
template <>
std::string_view collective_name<AllgathervArgs>() {
  return "allgatherv";
}
template <>
std::string_view collective_name<BroadcastArgs>() {
  return "broadcast";
}
template <>
std::string_view collective_name<AlltoallvArgs>() {
  return "alltoallv";
}
template <>
std::string_view collective_name<Barrier>() {
  return "barrier";
}

template <typename Args>
const Algorithm<Args>& find_algorithm(std::span<const Algorithm<Args>> algorithms,
                                      std::string_view name) {
  std::string known;
  for (const Algorithm<Args>& algorithm : algorithms) {
    if (algorithm.name == name) return algorithm;
    known += (known.empty() ? "" : ", ") + std::string(algorithm.name);
  }
  throw base::Error(base::ErrorCode::kInvalidArgument,
                    "unknown " + std::string(collective_name<Args>()) + " algorithm '" +
                        std::string(name) + "'; known: " + known);
}

template const Algorithm<AllreduceArgs>& find_algorithm(std::span<const Algorithm<AllreduceArgs>>,
                                                        std::string_view);
template const Algorithm<ReducescatterArgs>& find_algorithm(
    std::span<const Algorithm<ReducescatterArgs>>, std::string_view);
template const Algorithm<AllgathervArgs>& find_algorithm(std::span<const Algorithm<AllgathervArgs>>,
                                                         std::string_view);
template const Algorithm<BroadcastArgs>& find_algorithm(std::span<const Algorithm<BroadcastArgs>>,
                                                        std::string_view);
template const Algorithm<AlltoallvArgs>& find_algorithm(std::span<const Algorithm<AlltoallvArgs>>,
                                                        std::string_view);
template const Algorithm<Barrier>& find_algorithm(std::span<const Algorithm<Barrier>>,
                                                  std::string_view);

}  // namespace hvdlite::collectives
