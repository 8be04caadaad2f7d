// An example with one host, two regions, and sets A = {0, 1, 2}, B = {0, 1}, C = {1, 2}:
//
//    step          region 0           region 1           granted
//    take(A)       A, users 3         none, users 0      region 0, free after 0 departures
//    take(B)       A, users 3         B, users 2         region 1, free after 0 departures
//    give_back(A)  none, users 3      B, users 2
//    take(C)       C, users 5         B, users 2         region 0, free after 3 departures
//
// give_back(A) says only that the next set may get the region. Ranks carry out the removal of A at different times, and a rank
// that has not done so perhaps still reads the ledger of A there. When a rank no longer needs the region, it adds 1 to the
// region's departures in the window (~SharedChannel). So C uses the region after 3 departures, and it does not matter which
// rank is the last.
#include "engine/negotiation/regions.h"

#include <algorithm>
#include <map>
#include <utility>

namespace hvdlite::engine {

Regions::Regions(int count, std::vector<int> host_of, int rank, bool everywhere)
    : uses_(static_cast<std::size_t>(count)),
      host_of_(std::move(host_of)),
      host_(host_of_[static_cast<std::size_t>(rank)]),
      everywhere_(everywhere) {}

Regions::Grant Regions::take(std::int32_t set, const std::vector<int>& members) {
  // How many members each host has.
  std::map<int, int> members_on;
  int most = 0;
  for (const int member : members) {
    most = std::max(most, ++members_on[host_of_[static_cast<std::size_t>(member)]]);
  }
  const bool on_several = members_on.size() > 1;
  if (most < 2 || (on_several && !everywhere_)) return {};
  // Always the first unused ones, because all ranks must choose the same regions and exchange no message about the choice.
  std::vector<std::size_t> unused;
  for (std::size_t i = 0; i < uses_.size(); ++i) {
    if (uses_[i].set < 0) unused.push_back(i);
  }
  if (unused.size() < (on_several ? 2 : 1)) return {};
  Grant grant;
  grant.first = take_one(unused[0], set, members);
  if (on_several) grant.second = take_one(unused[1], set, members);
  return grant;
}

Regions::Region Regions::take_one(std::size_t number, std::int32_t set,
                                  const std::vector<int>& members) {
  Use& use = uses_[number];
  const Region region = {static_cast<int>(number), use.generations++, use.users};
  use.set = set;
  // Only ranks of this host use this window, so only these will count their departures in it.
  use.users += static_cast<std::uint64_t>(std::ranges::count_if(
      members, [&](int member) { return host_of_[static_cast<std::size_t>(member)] == host_; }));
  return region;
}

void Regions::give_back(std::int32_t set) {
  for (Use& use : uses_) {
    if (use.set == set) use.set = -1;
  }
}

}  // namespace hvdlite::engine
