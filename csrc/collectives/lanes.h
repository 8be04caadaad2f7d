// Operations whose rounds of pieces (chunking.h) run in lanes: the rings, the direct algorithms and allreduce_coded.
//
// A lane runs one round of pieces at a time, on a channel of its own. Of L lanes, lane i runs the rounds i, i + L, i + 2L, ...
// one after the other. So the transfers of one lane overlap with the additions of the others, and the staging memory does not
// grow with the buffer.
//
// Thread: the holder of the progress token. Owns: staging. Blocks: no. Throws: what Transport throws.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "collectives/chunking.h"
#include "collectives/collective.h"
#include "collectives/reducer.h"
#include "collectives/staging.h"

namespace hvdlite::collectives {

inline constexpr std::size_t kMostLanes = 4;
static_assert(kMostLanes <= kPartChannels);

// The data that all lanes of one reduction share. It outlives the lanes.
struct ReductionJob {
  Comm comm;
  ElementReducer reducer;
  Pieces pieces;
  std::byte* output;
  bool gather;  // allreduce: hand the finished pieces out
  std::shared_ptr<StagingCache> cache;

  std::size_t lanes() const { return std::min(pieces.rounds(), kMostLanes); }
  // Where the result of a piece belongs.
  std::byte* place(const Range& piece) const {
    return output + (piece.offset - pieces.chunk_offset(comm.rank())) * reducer.result_bytes();
  }
};

// Job: a struct like ReductionJob, with at least comm, cache and lanes(). Lane(job, channel, memory): memory has
// Lane::staging_bytes(job) bytes. Lane::advance(): true once all rounds of the lane are done.
template <typename Lane, typename Job>
class InLanes : public Collective {
 public:
  explicit InLanes(Job job)
      : job_(std::move(job)), staging_(job_.cache, job_.lanes(), Lane::staging_bytes(job_)) {
    lanes_.reserve(job_.lanes());
    for (std::size_t lane = 0; lane < job_.lanes(); ++lane) {
      lanes_.emplace_back(job_, static_cast<int>(lane), staging_.take());
    }
  }

  bool advance() override {
    bool done = true;
    for (Lane& lane : lanes_) done = lane.advance() && done;
    return done;
  }

 protected:
  Job job_;

 private:
  Staging staging_;
  std::vector<Lane> lanes_;
};

// The reduction of a single rank.
class ReductionAlone final : public Collective {
 public:
  explicit ReductionAlone(ReductionJob job) : job_(std::move(job)) {}
  bool advance() override {
    if (!std::exchange(done_, true)) job_.reducer.finish_alone(job_.output);
    return true;
  }

 private:
  ReductionJob job_;
  bool done_ = false;
};

// limit: the most elements of a piece.
ReductionJob job_of(const Comm& comm, const AllreduceArgs& args, const Tuning& tuning,
                    std::size_t limit);
ReductionJob job_of(const Comm& comm, const ReducescatterArgs& args, const Tuning& tuning,
                    std::size_t limit);

template <typename Lane, typename Args>
std::unique_ptr<Collective> reduce_in_lanes(const Comm& comm, const Args& args,
                                            const Tuning& tuning) {
  ReductionJob job =
      job_of(comm, args, tuning, Lane::piece_limit(args.reduction, comm.size(), tuning));
  if (comm.size() == 1) return std::make_unique<ReductionAlone>(std::move(job));
  return std::make_unique<InLanes<Lane, ReductionJob>>(std::move(job));
}

}  // namespace hvdlite::collectives
