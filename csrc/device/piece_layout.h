// Describes the pieces of a launch: cuts them into tiles, and writes them into the launch's arguments or into a table.
// Thread: any, no state. Owns: nothing. Blocks: no. Throws: nothing.
#pragma once

#include <cstddef>
#include <span>

#include "cuda/fusion_arguments.h"
#include "device/fusion_plan.h"

namespace hvdlite::device {

// A run of elements of one tensor, and its place in the buffer. Offsets count elements of the buffer's dtype.
struct Piece {
  void* tensor = nullptr;  // pack: null means the identity of the op
  std::size_t offset = 0;  // in the buffer, elements
  std::size_t count = 0;   // elements
  friend bool operator==(const Piece&, const Piece&) = default;
};

// Writes the description of the pieces into `arguments`, without the address of a table. Returns whether all pieces fit into
// `arguments`.
bool describe_pieces(std::span<const Piece> pieces, const FusionPlan& plan, bool unpack,
                     int multiprocessors, hvdlite_kernels::Arguments* arguments);

// The table for pieces that do not fit: its size, and its content. The address `table` is a multiple of 8.
std::size_t table_bytes(const hvdlite_kernels::Arguments& arguments);
void write_table(std::span<const Piece> pieces, const FusionPlan& plan,
                 const hvdlite_kernels::Arguments& arguments, void* table);

}  // namespace hvdlite::device
