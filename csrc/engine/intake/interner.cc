// An example with the bucket (row of the table) [a b c d]; a is in way 0, and d in way 3. A hit in way 2 changes the bucket
// into [c b a d]. A miss leaves the bucket as it is. If remember(e) follows the miss, e takes the place of d: [c b a e].
#include "engine/intake/interner.h"

#include <algorithm>

namespace hvdlite::engine {

RequestPtr Interner::find(const RequestView& view, SetId set, std::uint64_t name_hash) {
  Bucket& bucket = bucket_of(name_hash);
  for (std::size_t way = 0; way < kWays; ++way) {
    // The hash is compared first, because almost every other name has another hash, and describes() has to compare texts and
    // lists.
    const Request* known = bucket[way].get();
    if (known == nullptr || known->name_hash != name_hash || !view.describes(*known, set)) continue;
    if (way > 0) std::swap(bucket[way], bucket[0]);
    return bucket[0];
  }
  return nullptr;
}

void Interner::remember(RequestPtr request) {
  Bucket& bucket = bucket_of(request->name_hash);
  const auto free = std::find(bucket.begin(), bucket.end(), nullptr);
  (free != bucket.end() ? *free : bucket.back()) = std::move(request);
}

}  // namespace hvdlite::engine
