// Reductions as NCCL's ring does them: rank by rank, each partial sum rounded to the type that is sent, starting with another
// rank for each chunk.
// Thread: any. Owns: nothing. Blocks: no. Throws: nothing.
#pragma once

#include <cstddef>
#include <vector>

#include "device/nccl_abi.h"

namespace fake {

std::size_t size_of(int type);
void reduce(const std::vector<const void*>& from, void* to, std::size_t count, int type, int op);

}  // namespace fake
