// The sizes of an allgather, alltoall or reducescatter, as this rank sees them: the rows of each member, and the shape of the
// result.
// Thread: any, but only one at a time. Pure, except that place() stores memory in the entry's completion. Owns: its lists.
// Blocks: place(), as OutputCache does. Throws: std::bad_alloc.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/model/entry.h"
#include "engine/model/output_cache.h"

namespace hvdlite::engine {

struct Extents {
  // For the member with the index `rank` among `ranks` members.
  Extents(const FusedOp& fused, int rank, int ranks);

  // allgather: rows of each member; alltoall: rows that this rank gets from each member; reducescatter: rows that each member
  // gets.
  std::vector<std::int64_t> rows;
  std::vector<std::int64_t> sent;  // alltoall: rows that this rank sends to each
  std::int64_t out_rows = 0;       // of this rank's result
  std::size_t row_elements = 0;
  std::size_t element_bytes = 0;

  // Are all numbers in `rows` equal?
  bool are_even() const {
    return std::ranges::all_of(rows, [&](std::int64_t count) { return count == rows.front(); });
  }
  std::size_t row_bytes() const { return row_elements * element_bytes; }
  std::size_t out_bytes() const { return static_cast<std::size_t>(out_rows) * row_bytes(); }
  std::size_t out_elements() const { return static_cast<std::size_t>(out_rows) * row_elements; }
  // elements() and bytes() convert the numbers of rows in `of`, one for each member, to numbers of elements or bytes.
  std::vector<std::size_t> elements(const std::vector<std::int64_t>& of) const {
    return scaled(of, row_elements);
  }
  std::vector<std::size_t> bytes(const std::vector<std::int64_t>& of) const {
    return scaled(of, row_bytes());
  }
  // Returns the description of the result of this rank's entry. The description has no memory yet.
  std::unique_ptr<EngineOutput> output(const Request& request) const;
  // Returns the memory for the result of this rank's entry: the caller's memory, if the caller has given some and are_even() is
  // true; otherwise new memory from `outputs`, which the entry's completion owns.
  void* place(const Entry& entry, OutputCache& outputs) const;

 private:
  static std::vector<std::size_t> scaled(const std::vector<std::int64_t>& rows, std::size_t factor);
};

}  // namespace hvdlite::engine
