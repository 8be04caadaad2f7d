// Which process set uses which region of the window that the ranks of a host share (transport/host_window.h). This is only
// a table. All ranks of a host have equal tables, because they follow the same changes of sets.
// Thread: the holder of the progress token. Owns: the table. Blocks: no. Throws: std::bad_alloc.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace hvdlite::engine {

class Regions {
 public:
  struct Region {
    int number = 0;
    std::uint64_t departures = 0;  // ranks that have to leave the region before it is free
  };
  // One region if all members are on one host. Two if they are on several hosts and at least one host has several members.
  // Otherwise none.
  struct Grant {
    std::optional<Region> first;
    std::optional<Region> second;
  };

  // count: the window's regions; 0 without a window. host_of: a number for each rank's host. everywhere: do all hosts have
  // windows?
  Regions(int count, std::vector<int> host_of, int rank, bool everywhere);

  // Gives a set of these members the first free regions.
  Grant take(std::int32_t set, const std::vector<int>& members);
  void give_back(std::int32_t set);

 private:
  struct Use {
    std::int32_t set = -1;
    std::uint64_t users = 0;  // ranks of this host in all sets that have used the region
  };
  Region take_one(std::size_t number, std::int32_t set, const std::vector<int>& members);

  std::vector<Use> uses_;
  std::vector<int> host_of_;
  int host_;
  bool everywhere_;
};

}  // namespace hvdlite::engine
