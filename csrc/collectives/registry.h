// The lists of algorithms. An algorithm has one name, with which its file's name and its heading in docs/algorithms.md end. If
// the algorithm can be forced, the name is also the value of a knob. select.h chooses an algorithm.
// Thread: any (constant tables). Owns: nothing. Blocks: no. Throws: Error(InvalidArgument) for an unknown name, with the known
// ones.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"
#include "collectives/collective.h"

namespace hvdlite::collectives {

template <typename Args>
struct Algorithm {
  std::string_view name;  // "ring"
  std::unique_ptr<Collective> (*make)(Comm comm, Args args, const Tuning& tuning);
  // Do its bits stay the same when the same elements lie elsewhere in a fused buffer? (Those of a ring do not, from 3 ranks
  // on.)
  bool layout_independent = true;
  // Does it take buffers of many parts, and null outputs (AllreduceArgs)?
  bool scattered = false;
  // Can it run on this Comm? Null: it runs on every Comm. The answer is the same on all ranks.
  bool (*runs_on)(const Comm& comm) = nullptr;
  // Not empty: the algorithm serves only these operations. Then it cannot be forced; start_... (select.h) chooses it for them.
  std::string_view serves_only = {};

  bool can_be_forced() const { return serves_only.empty(); }
};

// All members of the Comm share memory.
bool shares_memory(const Comm& comm);
// Its members are on several hosts, and those of each host share memory.
bool shares_memory_on_hosts(const Comm& comm);

struct Barrier {};  // a barrier has no arguments

// All algorithms of a collective.
template <typename Args>
struct AlgorithmList {
  std::string_view collective;
  std::string_view knob;
  std::span<const Algorithm<Args>> algorithms;

  const Algorithm<Args>& find(std::string_view name) const {
    std::string known;
    for (const Algorithm<Args>& algorithm : algorithms) {
      if (algorithm.name == name) return algorithm;
      known += (known.empty() ? "" : ", ") + std::string(algorithm.name);
    }
    throw base::Error(base::ErrorCode::kInvalidArgument, "unknown " + std::string(collective) +
                                                             " algorithm '" + std::string(name) +
                                                             "'; known: " + known);
  }
};

extern const AlgorithmList<AllreduceArgs> kAllreduce;
extern const AlgorithmList<ReducescatterArgs> kReducescatter;
extern const AlgorithmList<AllgathervArgs> kAllgatherv;
extern const AlgorithmList<BroadcastArgs> kBroadcast;
extern const AlgorithmList<AlltoallvArgs> kAlltoallv;
extern const AlgorithmList<Barrier> kBarrier;

}  // namespace hvdlite::collectives
