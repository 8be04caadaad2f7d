// Pure arithmetic: where the blocks of a codec lie in a buffer of many parts. A block never spans two parts, so the last block
// of a part may be short, and a part's blocks depend on nothing but the part. Encoded blocks follow one another without gaps.
// Thread: plain values, any thread. Owns: nothing but its lists. Blocks: no. Throws: no.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/codec.h"
#include "collectives/chunking.h"
#include "collectives/collective.h"

namespace hvdlite::collectives {

class BlockLayout {
 public:
  BlockLayout(const std::vector<AllreducePart>& parts, const base::Codec& codec);

  std::size_t count() const { return begins_.back(); }  // elements
  const base::Codec& codec() const { return codec_; }

  // The range with both ends moved back to begins of blocks. An end of the range that is the end of the buffer stays.
  Range whole_blocks(const Range& range) const;
  // Bytes of the encoded elements of a range of whole blocks.
  std::size_t encoded_bytes(const Range& range) const;

  // range: of whole blocks. Calls handle(part, offset, n, coded) for each run of the range's elements that lies in one part.
  // The run has n elements and begins at element `offset` of the part. Its encoded blocks begin `coded` bytes after the first
  // encoded block of the range.
  template <typename Handle>
  void walk(const Range& range, Handle handle) const {
    const std::size_t end = range.offset + range.count;
    const std::size_t first_byte = byte_of(range.offset);
    std::size_t position = range.offset;
    for (std::size_t part = part_of_element(position); position < end; ++part) {
      const std::size_t n = std::min(end, begins_[part + 1]) - position;
      if (n == 0) continue;
      handle(part, position - begins_[part], n, byte_of(position) - first_byte);
      position += n;
    }
  }

 private:
  // The part that holds this element. If several parts begin at this element, all but the last of them are empty, and the last
  // one holds it.
  std::size_t part_of_element(std::size_t element) const;
  std::size_t block_begin(std::size_t element) const;
  std::size_t byte_of(std::size_t block_begin) const;

  base::Codec codec_;
  std::vector<std::size_t> begins_;  // of each part, in elements, and the end
  std::vector<std::size_t> bytes_;   // encoded bytes before each part, and all
};

}  // namespace hvdlite::collectives
