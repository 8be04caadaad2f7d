// A collective is a resumable state machine: construct it, and call advance() until it returns true. It never waits.
// Thread: the holder of the progress token. Owns: its staging buffers. Blocks: never. Throws: what Transport throws; after a
// throw the object must be retained (kept), not destroyed, while the transport may still touch its buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/codec.h"
#include "base/error.h"
#include "base/types.h"
#include "collectives/comm.h"
#include "collectives/staging.h"
#include "collectives/tile_stores.h"
#include "kernels/kernels.h"

namespace hvdlite::collectives {

// The elements that this rank has sent coded: their bytes before and after the coding.
struct CodedBytes {
  std::size_t before = 0;
  std::size_t after = 0;
};

class Collective {
 public:
  Collective() = default;
  Collective(const Collective&) = delete;
  Collective& operator=(const Collective&) = delete;
  virtual ~Collective() = default;
  // Does all that can be done without waiting. Returns true when finished, and in all later calls.
  virtual bool advance() = 0;
  // Do other ranks store their part of the result directly into this rank's output?
  virtual bool result_is_open() const { return false; }
  // What was sent coded until now. allreduce_hierarchical counts an exchange between hosts when it is complete.
  virtual CodedBytes coded_bytes() const { return {}; }
};

// Knobs an algorithm may read; the same on all ranks unless said otherwise.
struct Tuning {
  // May differ between ranks: results do not depend on it.
  kernels::Isa isa = kernels::Isa::kScalar;
  std::size_t segment_bytes = 256 * 1024;  // bytes of one pipelined segment
  // In shared memory: how often advance() polls again before it returns false; 0 if ranks share processors. May differ between
  // ranks.
  int spin = 0;
  // In shared memory: the number of steps (SharedCollective::step) after which advance() lets other operations advance.
  int max_steps = 64;
  // In shared memory: an operation writes its results past the caches if the results of all ranks of the host together have at
  // least this many bytes, and if their memory was not just read as input. 0: never.
  std::size_t streaming_bytes = 0;
  // May differ between ranks.
  TileStores tile_stores = TileStores::kAuto;
  // True: the order of additions must not depend on where an element lies in the buffer. Only allreduce_hierarchical reads it.
  bool deterministic = false;
  // The cache from which staging takes its memory. Copies of a Tuning share this cache.
  std::shared_ptr<StagingCache> staging = std::make_shared<StagingCache>();
};

// How elements are combined: result = T(postscale / divisor * (op over ranks of prescale * A(x_r))), rounded once. x_r is the
// element of rank r, T is dtype, and A is the accumulator's type (reducer.h).
struct Reduction {
  base::DType dtype = base::DType::kFloat32;
  base::ReduceOp op = base::ReduceOp::kSum;
  double prescale = 1.0;
  double postscale = 1.0;
  std::int64_t divisor = 1;
  // Ranks have different prescales, so each rank scales its own contribution (reducer.h).
  bool own_prescale = false;
  // Each input is a partial (reducer.h): the op over the x_r of some ranks, of type A, with prescale applied. Such an input
  // must not be null, and it may be the output only if T is A.
  bool from_partials = false;
  // How elements travel. Only the algorithms coded and hierarchical use it, and only for Sum and Average of types whose
  // accumulator is float32.
  base::Codec codec = {};
};

// Consecutive elements of a buffer. The parts of a buffer may lie in different places in memory. input and output hold count
// elements each and are either the same pointer (in place) or do not overlap. A null input contributes the identity of the op
// (an absent or joined rank). A null output: this rank drops the result.
struct AllreducePart {
  const void* input = nullptr;
  void* output = nullptr;
  std::size_t count = 0;
};

// The buffer consists of the parts, one after the other. All ranks cut it into parts of the same sizes. Only algorithms that
// are `scattered` (registry.h) take more than one part, or a null output.
struct AllreduceArgs {
  std::vector<AllreducePart> parts;
  Reduction reduction;
  // Used if the outputs lie in an arena, at the same place on all members: for each member, the address in this process of that
  // member's part of the arena. Otherwise empty. In an arena every input is null or the same pointer as its output, and
  // prescale does not change the identity of the op.
  std::vector<std::byte*> mapped;

  std::size_t count() const {
    std::size_t total = 0;
    for (const AllreducePart& part : parts) total += part.count;
    return total;
  }
  const AllreducePart& whole() const {
    HVD_CHECK(parts.size() == 1);
    return parts.front();
  }
};

// Each input consists of a part for each rank, in rank order: part r has counts[r] elements. Rank r receives part r, reduced.
struct ReducescatterArgs {
  const void* input = nullptr;  // sum(counts) elements; null contributes the identity
  void* output = nullptr;       // counts[rank] elements; does not overlap input
  std::vector<std::size_t> counts;
  Reduction reduction;
};

// Rank r's bytes[r] bytes end up at offset bytes[0] + ... + bytes[r-1] of every output.
struct AllgathervArgs {
  const void* input = nullptr;  // bytes[rank] bytes; may be their place in output
  void* output = nullptr;
  std::vector<std::size_t> bytes;
};

struct BroadcastArgs {
  void* data = nullptr;
  std::size_t bytes = 0;
  int root = 0;  // place in the Comm, not a global rank
};

// Part j of the input (send_bytes[j] bytes, parts back to back) goes to rank j. The output has the parts for this rank
// (recv_bytes) in the order of the ranks. Input and output do not overlap.
struct AlltoallvArgs {
  const void* input = nullptr;
  void* output = nullptr;
  std::vector<std::size_t> send_bytes;
  std::vector<std::size_t> recv_bytes;
};

}  // namespace hvdlite::collectives
