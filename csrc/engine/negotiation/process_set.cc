#include "engine/negotiation/process_set.h"

#include <algorithm>

namespace hvdlite::engine {

int ProcessSet::index_of(int rank) const {
  const auto found = std::lower_bound(members->begin(), members->end(), rank);
  return found != members->end() && *found == rank ? static_cast<int>(found - members->begin())
                                                   : -1;
}

}  // namespace hvdlite::engine
