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
    // How many sets have had the region before.
    std::uint64_t generation = 0;
    // The region is free for this set when ranks of this host have left it this many times since the window was made.
    std::uint64_t departures = 0;
  };
  // What a set gets: one region if all members are on one host, two if they are on several hosts (collectives/comm.h says why).
  // It gets none if no host has several members of the set, if too few regions are unused, or if the members are on several
  // hosts and a host of the job has no window.
  struct Grant {
    std::optional<Region> first;
    std::optional<Region> second;
  };

  // count: the number of the window's regions; 0 without a window. host_of: for each rank a number that stands for its host.
  // everywhere: do all hosts of the job have windows?
  Regions(int count, std::vector<int> host_of, int rank, bool everywhere);

  // Gives a set of these members the first unused regions.
  Grant take(std::int32_t set, const std::vector<int>& members);
  void give_back(std::int32_t set);

 private:
  struct Use {
    std::int32_t set = -1;          // -1: none
    std::uint64_t generations = 0;  // how many sets have or had the region
    // The sum of the numbers of members on this host, over all sets that have or had the region.
    std::uint64_t users = 0;
  };
  Region take_one(std::size_t number, std::int32_t set, const std::vector<int>& members);

  std::vector<Use> uses_;
  std::vector<int> host_of_;
  int host_;
  bool everywhere_;
};

}  // namespace hvdlite::engine
