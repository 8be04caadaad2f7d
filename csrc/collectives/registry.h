// The lists of algorithms. An algorithm has one name: at the end of its file's name and of its heading in docs/algorithms.md,
// and as the value of a knob if it can be forced. select.h chooses one of them.
// Thread: any (constant tables). Owns: nothing. Blocks: no. Throws: Error(InvalidArgument) for an unknown name, with the known
// ones.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "collectives/collective.h"

namespace hvdlite::collectives {

template <typename Args>
struct Algorithm {
  std::string_view name;  // "ring"
  std::unique_ptr<Collective> (*make)(Comm comm, Args args, const Tuning& tuning);
  // Do its bits stay the same when the same elements lie elsewhere in a fused buffer? (A ring's do
  // not, from 3 ranks on.)
  bool layout_independent = true;
  // Does it take buffers of many parts, and null outputs (AllreduceArgs)?
  bool scattered = false;
  // Comms that it can run on, null: all. The answer is the same on all ranks.
  bool (*runs_on)(const Comm& comm) = nullptr;
  // Does it work only in memory that all members map (AllreduceArgs::mapped)? Then it cannot be forced, because only the caller
  // decides which tensors lie there.
  bool in_arena = false;
  // Does it serve only the op Adasum? Then it cannot be forced either, because the op decides.
  bool adasum = false;
  // Does it serve only reductions with a codec? Then it cannot be forced either: the caller asks for the codec.
  bool only_coded = false;

  bool can_be_forced() const { return !in_arena && !adasum && !only_coded; }
};

// All members of the Comm share memory.
bool shares_memory(const Comm& comm);
// Its members are on several hosts, and those of each host share memory.
bool shares_memory_on_hosts(const Comm& comm);

struct Barrier {};  // a barrier has no arguments

// The name of the collective with these Args: "allreduce" and so on, as in its knob.
template <typename Args>
std::string_view collective_name();

// All algorithms of a collective.
std::span<const Algorithm<AllreduceArgs>>
allreduce_algorithms();  // ring direct recursive_doubling shm inline push hierarchical coded adasum
std::span<const Algorithm<ReducescatterArgs>> reducescatter_algorithms();  // ring direct shm
std::span<const Algorithm<AllgathervArgs>> allgatherv_algorithms();        // ring direct shm
std::span<const Algorithm<BroadcastArgs>> broadcast_algorithms();          // binomial chain shm
std::span<const Algorithm<AlltoallvArgs>> alltoallv_algorithms();          // pairwise shm
std::span<const Algorithm<Barrier>> barrier_algorithms();                  // dissemination shm

template <typename Args>
const Algorithm<Args>& find_algorithm(std::span<const Algorithm<Args>> algorithms,
                                      std::string_view name);

}  // namespace hvdlite::collectives
