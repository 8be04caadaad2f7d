// Requests seen before, by name: a tensor that is submitted again with the same content shares the checked Request of the
// last time, so that a step costs neither allocations nor copies of text.
// Thread: any, one at a time (the caller locks). Owns: the requests it remembers. Blocks: no. Throws: std::bad_alloc.
//
//                 bucket = name_hash modulo the number of buckets
//   ┌────────┬────────┬────────┬────────┐
//   │ way 0  │ way 1  │ way 2  │ way 3  │   a hit moves to way 0, a new request comes into way 3 and drives out what was there
//   └────────┴────────┴────────┴────────┘
//
// So names that come once pass through way 3 and leave the others alone (those of unnamed operations are not even looked for). A
// hit is a request that equals what is asked field by field; the hash only says where to look.
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

  // The request that equals the view on this process set; null if it is not remembered.
  RequestPtr find(const RequestView& view, SetId set, std::uint64_t name_hash);
  void remember(RequestPtr request);

 private:
  using Bucket = std::array<RequestPtr, kWays>;
  Bucket& bucket_of(std::uint64_t name_hash) { return buckets_[name_hash % kBuckets]; }

  std::vector<Bucket> buckets_ = std::vector<Bucket>(kBuckets);
};

}  // namespace hvdlite::engine
