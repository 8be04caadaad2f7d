// The arguments of a fusion kernel: one struct, by value, in the launch itself. This header is compiled for the host and for
// GPUs. So it includes nothing, and its structs have the same layout for every compiler.
// Thread: plain values. Owns: nothing. Blocks: no. Throws: nothing.
//
// A kernel moves units: bytes where bits are copied, single numbers where something is computed (a complex number is two). The
// units of a piece are cut into tiles of `tile_units`; block b of the grid moves tile b. Up to kInlinePieces pieces travel in
// the launch, which costs no copy to the GPU; more lie in a table in the GPU's memory.
#pragma once

namespace hvdlite_kernels {

using U8 = unsigned char;
using U16 = unsigned short;
using U32 = unsigned int;
using U64 = unsigned long long;
using I64 = long long;

constexpr U32 kThreads = 256;  // of a block
// Drivers before 530 take at most 4096 bytes of parameters.
constexpr U32 kInlinePieces = 192;

// A row of the table. After the last row the table has one U32 for each tile: the number of the tile's piece.
struct TablePiece {
  U64 tensor;  // address; 0: fill the buffer with the identity (pack), leave out (unpack, no tiles)
  U64 offset;  // of the piece in the buffer, units
  U64 count;   // units
  U64 first_tile;  // tiles of all pieces before
};

struct Arguments {
  U64 buffer;     // address
  U64 nonfinite;  // address of an int for each piece, 0: no check
  U64 table;      // address, 0: the pieces are in this struct
  double factor;
  I64 divisor;   // of integers; floats have it in the factor
  U64 identity;  // repeated until it is 8 bytes
  U32 pieces;
  U32 tiles;
  U32 tile_units;
  U8 unpack;
  U8 from;  // DType codes, for the kernel of the integers
  U8 to;
  U8 unused;
  // A piece without tiles has the same first tile as the next piece.
  U64 tensor[kInlinePieces];
  U32 offset[kInlinePieces];
  U32 count[kInlinePieces];
  U32 first_tile[kInlinePieces];
};
static_assert(sizeof(TablePiece) == 32, "the host writes what the kernels read");
static_assert(sizeof(Arguments) == 64 + 20 * kInlinePieces && sizeof(Arguments) <= 4096,
              "the host writes what the kernels read");

}  // namespace hvdlite_kernels

// The kernels by name. The first list has a kernel for each pair of floats, as X(name, from, to). The second list has all
// kernels, as X(name) or X(name, from, to).
#define HVDLITE_FLOAT_KERNELS(X)                   \
  X(hvdlite_float16_float16, float16, float16)     \
  X(hvdlite_float16_bfloat16, float16, bfloat16)   \
  X(hvdlite_float16_float32, float16, float32)     \
  X(hvdlite_float16_float64, float16, float64)     \
  X(hvdlite_bfloat16_float16, bfloat16, float16)   \
  X(hvdlite_bfloat16_bfloat16, bfloat16, bfloat16) \
  X(hvdlite_bfloat16_float32, bfloat16, float32)   \
  X(hvdlite_bfloat16_float64, bfloat16, float64)   \
  X(hvdlite_float32_float16, float32, float16)     \
  X(hvdlite_float32_bfloat16, float32, bfloat16)   \
  X(hvdlite_float32_float32, float32, float32)     \
  X(hvdlite_float32_float64, float32, float64)     \
  X(hvdlite_float64_float16, float64, float16)     \
  X(hvdlite_float64_bfloat16, float64, bfloat16)   \
  X(hvdlite_float64_float32, float64, float32)     \
  X(hvdlite_float64_float64, float64, float64)
#define HVDLITE_KERNEL_LIST(X) \
  X(hvdlite_copy)              \
  X(hvdlite_integers)          \
  HVDLITE_FLOAT_KERNELS(X)
