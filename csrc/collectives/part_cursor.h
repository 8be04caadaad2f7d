// A place in a buffer that consists of many parts. It only moves forward, so a walk over all tiles of the buffer visits each
// part once.
// Thread: the holder of the progress token. Owns: nothing, the parts outlive it. Blocks: no.
// Throws: no.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "collectives/chunking.h"
#include "collectives/collective.h"

namespace hvdlite::collectives {

// The same buffer in fewer parts: parts that follow each other in memory are merged, and empty parts are left out.
std::vector<AllreducePart> merged_parts(const std::vector<AllreducePart>& parts,
                                        std::size_t element_bytes);

class PartCursor {
 public:
  PartCursor(const std::vector<AllreducePart>& parts, std::size_t element_bytes)
      : parts_(&parts), element_bytes_(element_bytes) {}

  // Calls handle(input, output, offset, n) for each run of elements of the range (of the buffer)
  // that lies in one part; offset counts from the range's begin. Ranges must ascend from call to
  // call.
  template <typename Handle>
  void walk(const Range& range, Handle handle) {
    std::size_t position = range.offset;
    const std::size_t end = range.offset + range.count;
    while (position < end) {
      const AllreducePart& part = (*parts_)[part_];
      const std::size_t into = position - begin_;
      if (into >= part.count) {
        begin_ += part.count;
        ++part_;
        continue;
      }
      const std::size_t n = std::min(part.count - into, end - position);
      handle(at(static_cast<const std::byte*>(part.input), into),
             at(static_cast<std::byte*>(part.output), into), position - range.offset, n);
      position += n;
    }
  }

 private:
  template <typename Byte>
  Byte* at(Byte* start, std::size_t elements) const {
    return start == nullptr ? nullptr : start + elements * element_bytes_;
  }

  const std::vector<AllreducePart>* parts_;
  std::size_t element_bytes_;
  std::size_t part_ = 0;
  std::size_t begin_ = 0;  // of that part, in elements
};

}  // namespace hvdlite::collectives
