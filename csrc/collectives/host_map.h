// Which members of a process set are on which host. All ranks have the same map, except for `own`.
// Thread: plain values, any thread. Owns: nothing but its lists. Blocks: no. Throws: no.
#pragma once

#include <algorithm>
#include <cstddef>
#include <unordered_map>
#include <vector>

namespace hvdlite::collectives {

// Members are places in the set; hosts come in the order of their first members.
class HostMap {
 public:
  // host_of: for each member, a number that identifies its host. rank: this rank's place in the set; -1: it is no member.
  HostMap(const std::vector<int>& host_of, int rank) {
    std::unordered_map<int, std::size_t> places;
    for (std::size_t member = 0; member < host_of.size(); ++member) {
      const auto [place, is_new] = places.emplace(host_of[member], hosts_.size());
      if (is_new) hosts_.emplace_back();
      hosts_[place->second].push_back(static_cast<int>(member));
      if (static_cast<int>(member) == rank) own_ = static_cast<int>(place->second);
    }
  }

  int hosts() const { return static_cast<int>(hosts_.size()); }
  int own() const { return own_; }  // this rank's host; -1: it is no member
  // The number of members on the host that has the fewest.
  int fewest() const {
    const auto smallest = std::ranges::min_element(hosts_, {}, &std::vector<int>::size);
    return static_cast<int>(smallest->size());
  }

  const std::vector<int>& members_on(int host) const {
    return hosts_[static_cast<std::size_t>(host)];
  }
  // The member with this number on every host; number < fewest().
  std::vector<int> members_with_number(int number) const {
    std::vector<int> members;
    members.reserve(hosts_.size());
    for (const std::vector<int>& host : hosts_) {
      members.push_back(host[static_cast<std::size_t>(number)]);
    }
    return members;
  }

 private:
  std::vector<std::vector<int>> hosts_;
  int own_ = -1;
};

}  // namespace hvdlite::collectives
