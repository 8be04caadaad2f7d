#include "collectives/part_cursor.h"

namespace hvdlite::collectives {

std::vector<AllreducePart> merged_parts(const std::vector<AllreducePart>& parts,
                                        std::size_t element_bytes) {
  const auto follows = [&](const void* first, const void* second, std::size_t count) {
    if (first == nullptr || second == nullptr) return first == second;
    return static_cast<const std::byte*>(first) + count * element_bytes == second;
  };
  std::vector<AllreducePart> result;
  result.reserve(parts.size());
  for (const AllreducePart& part : parts) {
    if (part.count == 0) continue;
    if (!result.empty() && follows(result.back().input, part.input, result.back().count) &&
        follows(result.back().output, part.output, result.back().count)) {
      result.back().count += part.count;
    } else {
      result.push_back(part);
    }
  }
  return result;
}

}  // namespace hvdlite::collectives
