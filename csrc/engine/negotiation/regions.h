// Which process set uses which region of the window that the ranks of a host share (transport/host_window.h). Books alone: all
// ranks of a host keep the same, for they follow the same changes of sets.
// Thread: the holder of the progress token. Owns: the books. Blocks: no. Throws: std::bad_alloc.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace hvdlite::engine {

class Regions {
 public:
  struct Region {
    int number = 0;
    std::uint64_t departures = 0;  // ranks that have to leave it before it is free
  };
  // One if all members are on one host; two if they are on several, of which one at least has several members; or none.
  struct Grant {
    std::optional<Region> first;
    std::optional<Region> second;
  };

  // count: of the window's regions, 0 without one. host_of: what stands for each rank's host. everywhere: all hosts have windows.
  Regions(int count, std::vector<int> host_of, int rank, bool everywhere);

  // The first free ones for a set of these members.
  Grant take(std::int32_t set, const std::vector<int>& members);
  void give_back(std::int32_t set);

 private:
  struct Use {
    std::int32_t set = -1;
    std::uint64_t users = 0;  // ranks of this host in all sets that have used it
  };
  Region take_one(std::size_t number, std::int32_t set, const std::vector<int>& members);

  std::vector<Use> uses_;
  std::vector<int> host_of_;
  int host_;
  bool everywhere_;
};

}  // namespace hvdlite::engine
