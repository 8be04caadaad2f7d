#include "collectives/lanes.h"

#include "base/error.h"

namespace hvdlite::collectives {

ReductionJob job_of(const Comm& comm, const AllreduceArgs& args, const Tuning& tuning,
                    std::size_t limit) {
  const AllreducePart& buffer = args.whole();
  const std::size_t grain =
      alignment_grain(buffer.count, comm.size(), base::size_of(args.reduction.dtype));
  const Pieces pieces = Pieces::of_buffer(buffer.count, comm.size(), limit, grain);
  ElementReducer reducer(args.reduction, tuning.isa, buffer.input, buffer.count, pieces.largest());
  return {comm,
          std::move(reducer),
          pieces,
          static_cast<std::byte*>(buffer.output),
          /*gather=*/true,
          tuning.staging};
}

ReductionJob job_of(const Comm& comm, const ReducescatterArgs& args, const Tuning& tuning,
                    std::size_t limit) {
  HVD_CHECK(args.counts.size() == static_cast<std::size_t>(comm.size()));
  const Pieces pieces = Pieces::of_parts(args.counts, limit);
  ElementReducer reducer(args.reduction, tuning.isa, args.input, total_of(args.counts),
                         pieces.largest());
  return {comm,
          std::move(reducer),
          pieces,
          static_cast<std::byte*>(args.output),
          /*gather=*/false,
          tuning.staging};
}

}  // namespace hvdlite::collectives
