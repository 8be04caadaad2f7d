// How allreduce_hierarchical sees the hosts of a Comm, and what it decides from that: pure functions of what all members know.
// Thread: plain values, any thread. Owns: nothing. Blocks: no. Throws: no.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "collectives/collective.h"
#include "collectives/host_stages.h"

namespace hvdlite::collectives {

// The members of a Comm by host, hosts in the order of their first members.
struct HostMap {
  explicit HostMap(const Comm& comm);

  // Of every host the member with this number; number < fewest.
  std::vector<int> members_with_number(int number) const;

  std::vector<std::vector<int>> hosts;
  int fewest = 0;  // members on a host, of all hosts
  int own = 0;     // this member's host
};

// Rounds and slices of a buffer: few owners for small ones, several rounds for large ones.
SlicePlan plan_slices(std::size_t count, std::size_t element_bytes, const HostMap& map,
                      const Tuning& tuning);

// The allreduce algorithm between the owners of a slice on so many hosts, for partials of so many bytes.
std::string_view algorithm_between_hosts(int hosts, std::size_t partial_bytes, bool same_type,
                                         const Tuning& tuning);

}  // namespace hvdlite::collectives
