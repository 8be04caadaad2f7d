// Memory of the fake GPUs: one range of addresses, mapped twice. At the public addresses nobody can read or write, so that host
// code which touches device memory crashes as it would with a GPU; operations use the alias.
// Thread: any, the world's lock. Owns: the memory. Blocks: no. Throws: nothing.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "world.h"

#pragma GCC visibility push(default)  // the other fake libraries call it, too
namespace fake {

enum class Where { kDevice, kPinned, kPageable };
struct Place {
  Where where = Where::kPageable;
  Context* context = nullptr;
  bool inside = true;  // does the range end where the allocation does, or before?
};

// What lies at an address. Lock held.
Place place_of(cuda::Address address, std::size_t bytes);
// Is the address within the range that device memory comes from, allocated or not?
bool looks_like_device(cuda::Address address);
// Where the scheduler's thread finds the memory behind [address, address + bytes): the alias of device memory, the address
// itself of host memory; null if the range is no longer (or never was) allocated, which is said on stderr. Takes the lock.
void* reach(cuda::Address address, std::size_t bytes, const char* what);
void* reach_locked(cuda::Address address, std::size_t bytes, const char* what);  // lock held

// Opens the public addresses of all allocations while a kernel runs; afterwards damaged() tells what it wrote where it must not.
class OpenMemory {
 public:
  OpenMemory();
  ~OpenMemory();
  OpenMemory(const OpenMemory&) = delete;
  OpenMemory& operator=(const OpenMemory&) = delete;

 private:
  struct Range {
    cuda::Address first;
    std::size_t bytes;
  };
  std::vector<Range> ranges_;
};
// A line for each allocation beside which somebody has written. Takes the lock.
std::string damaged();

std::string memory_leaks();  // lock held
void reset_memory();         // lock held
}  // namespace fake
#pragma GCC visibility pop
