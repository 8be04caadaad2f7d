// What the digests of Membership's parts have in common.
// Thread: any. Owns: nothing. Blocks: no. Throws: std::bad_alloc.
#pragma once

#include <string_view>

#include "base/hash.h"
#include "base/thread.h"
#include "engine/model/messages.h"

namespace hvdlite::engine {

inline void add_time(base::Hasher& hasher, base::Clock::time_point time) {
  hasher.add_signed(time.time_since_epoch().count());
}

// By what crosses the wire.
inline void add_message(base::Hasher& hasher, const Message& message) {
  const std::vector<std::byte> bytes = encode(message);
  hasher.add_text({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

template <typename Ranks>
void add_ranks(base::Hasher& hasher, const Ranks& ranks) {
  hasher.add(ranks.size());
  for (const int rank : ranks) hasher.add_signed(rank);
}

}  // namespace hvdlite::engine
