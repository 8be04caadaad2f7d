// Whole collectives of simulated ranks, stepped by one thread.
// Thread: any. Owns: nothing. Blocks: until all are done. Throws: Error(Internal) where they get stuck, Error(InvalidArgument).
//
// Every rank gets an endpoint of one in-process fabric, a channel through its window, and the state
// machines of one or several collectives, a few of them in flight at a time. A seeded generator
// picks who starts or advances something next, starves some ranks for a while, interrupts a rank in
// the middle of a step for some of the others', and reports some completions late, so that channels
// and windows run out of step as they do on a real machine. The same seed gives the same schedule. A
// collective that cannot go on is found, not waited for: if nothing moved during a full round in
// which every unfinished rank was asked and no completion was withheld, nothing ever will.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hvdlite::testing {

// One collective of simulated ranks. counts: allreduce one entry for each part of the buffer; reducescatter and allgather one for
// each rank (elements, bytes); broadcast {bytes}; alltoall ranks*ranks bytes, row = sender; barrier none. inputs, outputs: `parts`
// pointers for each rank, rank by rank; only allreduce may have more than 1 part. A null input contributes the identity.
struct SimulatedStep {
  int kind = 0;
  std::string algorithm;
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  std::vector<std::int64_t> counts;
  int dtype = 0;
  int op = 0;
  double prescale = 1;
  double postscale = 1;
  std::int64_t divisor = 1;
  int root = 0;
  int parts = 1;
  int codec = 0;  // a number of base::CodecKind; of "coded" and "hierarchical"
  int block = 0;  // its elements of a block
};

// The collectives run one after the other, a few at a time. On each host ranks share memory in tiles of tile_bytes.
struct Simulation {
  int ranks = 1;
  std::uint64_t seed = 0;
  int isa = 0;  // negative: another one on each rank
  std::int64_t segment_bytes = 0;
  std::int64_t tile_bytes = 0;
  bool deterministic = false;
  std::vector<int> hosts;  // of each rank; empty: one for all
  std::vector<SimulatedStep> steps;
};
void simulate(const Simulation& run);

// Names of the algorithms of a kind that a knob can force.
std::vector<std::string> algorithms(int kind);

}  // namespace hvdlite::testing
