// Where the pieces of a launch go: cut into tiles, into the launch itself, or into a table.
// Thread: any, no state. Owns: nothing. Blocks: no. Throws: nothing.
#pragma once

#include <cstddef>
#include <span>

#include "cuda/fusion_arguments.h"
#include "device/fusion_plan.h"

namespace hvdlite::device {

// Sets what describes the pieces in `arguments` (all but the table's address), and returns whether they fit into it.
bool describe_pieces(std::span<const Piece> pieces, const FusionPlan& plan, bool unpack,
                     int multiprocessors, hvdlite_kernels::Arguments* arguments);

// The table for what does not fit: its size, and its contents (aligned to 8 bytes).
std::size_t table_bytes(const hvdlite_kernels::Arguments& arguments);
void write_table(std::span<const Piece> pieces, const FusionPlan& plan,
                 const hvdlite_kernels::Arguments& arguments, void* table);

}  // namespace hvdlite::device
