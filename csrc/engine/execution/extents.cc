// An example for three ranks, as rank 1 sees it. An alltoall's `sizes` (FusedOp) are a table: how many rows of its tensor each
// sender (a line) sends to each receiver (a column):
//
//               to 0   to 1   to 2
//    from 0       1      2      3       sent      4 5 6     rank 1's line
//    from 1       4      5      6       rows      2 5 8     rank 1's column
//    from 2       7      8      9       out_rows  15        the sum of the column
//
// An allgather's `sizes` are the numbers of rows of each member, and each member gets all rows. A reducescatter has no `sizes`:
// the inputs of all members have the same shape, and part_of() divides the rows, so 7 rows become 3, 2 and 2.
#include "engine/execution/extents.h"

#include <numeric>

#include "collectives/chunking.h"

namespace hvdlite::engine {

using base::OpKind;

Extents::Extents(const FusedOp& fused, int rank, int ranks)
    : row_elements(static_cast<std::size_t>(fused.first().row_elements())),
      element_bytes(base::size_of(fused.first().dtype)) {
  const auto me = static_cast<std::size_t>(rank);
  const auto size = static_cast<std::size_t>(ranks);
  switch (fused.first().kind) {
    case OpKind::kAllgather:
      rows = fused.sizes;
      break;
    case OpKind::kAlltoall:
      for (std::size_t peer = 0; peer < size; ++peer) {
        sent.push_back(fused.sizes[me * size + peer]);
        rows.push_back(fused.sizes[peer * size + me]);
      }
      break;
    case OpKind::kReducescatter: {
      const auto all = static_cast<std::size_t>(fused.first().shape[0]);
      for (std::size_t peer = 0; peer < size; ++peer) {
        rows.push_back(static_cast<std::int64_t>(collectives::part_of({0, all}, size, peer).count));
      }
      out_rows = rows[me];
      return;
    }
    default:
      HVD_CHECK(false);  // the other kinds have the shape of their input
  }
  out_rows = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
}

// The result has the shape of the input, except for the number of rows. The result of an alltoall also says how many rows have
// come from each member.
std::unique_ptr<EngineOutput> Extents::output(const Request& request) const {
  auto output = std::make_unique<EngineOutput>();
  output->shape = request.shape;
  output->shape[0] = out_rows;
  output->bytes = out_bytes();
  if (request.kind == OpKind::kAlltoall) output->received_splits = rows;
  return output;
}

// A caller that gives memory (only for an allgather or a reducescatter) does not know the other members' rows, and assumes that
// all members have equally many. So the caller's memory fits only if all members do have equally many rows.
void* Extents::place(const Entry& entry, OutputCache& outputs) const {
  if (entry.output != nullptr && are_even()) return entry.output;
  auto made = output(*entry.request);
  made->block = outputs.get(out_bytes());
  return (entry.completion->output = std::move(made))->block.get();
}

std::vector<std::size_t> Extents::scaled(const std::vector<std::int64_t>& rows,
                                         std::size_t factor) {
  std::vector<std::size_t> result;
  result.reserve(rows.size());
  for (const std::int64_t count : rows) result.push_back(static_cast<std::size_t>(count) * factor);
  return result;
}

}  // namespace hvdlite::engine
