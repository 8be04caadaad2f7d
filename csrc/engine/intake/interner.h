// Remembers checked requests by name. An operation that is submitted again with the same fields shares the Request of the last
// time, so the engine does not check the fields again, makes no new Request and copies no text. If the check fills in or
// sorts a field (check_request.h), the Request differs from what the caller gave, so find() does not find it the next time.
// Thread: any, one at a time (the caller locks). Owns: the requests that it remembers. Blocks: no. Throws: std::bad_alloc.
//
//                 a bucket (row of the table); its number is name_hash modulo the number of buckets
//   ┌────────┬────────┬────────┬────────┐
//   │ way 0  │ way 1  │ way 2  │ way 3  │   a hit and way 0 change places; a new request takes a free way, or else way 3
//   └────────┴────────┴────────┴────────┘
//
// So a name that is used once evicts at most the request in way 3. (A request that the caller did not name is not remembered.)
// A hit must equal the new request in every field; the hash only says where to look. This is a set-associative cache, as
// processors have.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "engine/model/request.h"

namespace hvdlite::engine {

class Interner {
 public:
  static constexpr std::size_t kBuckets = 4096;
  static constexpr std::size_t kWays = 4;

  // The remembered request that has this process set and the fields of the view; null if there is none. name_hash: the
  // hash_of_name() of the set and the view's name.
  RequestPtr find(const RequestView& view, SetId set, std::uint64_t name_hash);
  // The request must be sealed. Call remember() only if find() has returned null, because remember() does not look for an equal
  // request.
  void remember(RequestPtr request);

 private:
  using Bucket = std::array<RequestPtr, kWays>;
  Bucket& bucket_of(std::uint64_t name_hash) { return buckets_[name_hash % kBuckets]; }

  std::vector<Bucket> buckets_ = std::vector<Bucket>(kBuckets);
};

}  // namespace hvdlite::engine
