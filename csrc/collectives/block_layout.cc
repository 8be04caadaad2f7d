#include "collectives/block_layout.h"

#include "kernels/codec.h"

namespace hvdlite::collectives {

BlockLayout::BlockLayout(const std::vector<AllreducePart>& parts, const base::Codec& codec)
    : codec_(codec), begins_{0}, bytes_{0} {
  begins_.reserve(parts.size() + 1);
  bytes_.reserve(parts.size() + 1);
  for (const AllreducePart& part : parts) {
    begins_.push_back(begins_.back() + part.count);
    bytes_.push_back(bytes_.back() + kernels::encoded_bytes(codec, part.count));
  }
}

Range BlockLayout::whole_blocks(const Range& range) const {
  const std::size_t begin = block_begin(range.offset);
  return {begin, block_begin(range.offset + range.count) - begin};
}

std::size_t BlockLayout::encoded_bytes(const Range& range) const {
  return byte_of(range.offset + range.count) - byte_of(range.offset);
}

std::size_t BlockLayout::part_of_element(std::size_t element) const {
  const auto after = std::upper_bound(begins_.begin(), begins_.end(), element);
  return static_cast<std::size_t>(after - begins_.begin()) - 1;
}

std::size_t BlockLayout::block_begin(std::size_t element) const {
  if (element >= count()) return count();
  const std::size_t begin = begins_[part_of_element(element)];
  return element - (element - begin) % static_cast<std::size_t>(codec_.block);
}

std::size_t BlockLayout::byte_of(std::size_t block_begin) const {
  if (block_begin >= count()) return bytes_.back();
  const std::size_t part = part_of_element(block_begin);
  return bytes_[part] + kernels::encoded_bytes(codec_, block_begin - begins_[part]);
}

}  // namespace hvdlite::collectives
