// The fusion kernels: one launch moves any number of tensors into one buffer, or back, and scales and casts them on the way.
// Compiled by nvcc, by NVRTC, and for tests of the host as plain C++ (HVDLITE_HOST_KERNELS: a call is one thread of the grid).
// Thread: none waits for another: no barriers, no shared memory. Owns: nothing. Blocks: no. Throws: nothing.
//
// A kernel accesses the side with the wider type, source or target, 16 bytes at a time. All these stores are aligned. If the
// loads are not, each vector is cut out of two aligned vectors, which lie inside the piece. csrc/cuda/NOTES.md gives the
// reasons, and the rates to expect.
#include "cuda/fusion_values.h"

#if defined(HVDLITE_HOST_KERNELS)
#define __global__
#define HVD_ARGUMENTS const hvdlite_kernels::Arguments& arguments
#define HVD_BOUNDS
#else
// __grid_constant__ (from CUDA 11.7 on): the kernel reads the arguments where the launch has put them, also by a variable
// index.
#if __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1107
#define HVD_ARGUMENTS const __grid_constant__ hvdlite_kernels::Arguments arguments
#else
#define HVD_ARGUMENTS const hvdlite_kernels::Arguments arguments
#endif
#define HVD_BOUNDS __launch_bounds__(hvdlite_kernels::kThreads)
#endif

namespace hvdlite_kernels {

// The number of vectors that a thread loads before it uses the first of them.
constexpr U32 kInFlight = 4;

// --- vectors -------------------------------------------------------------------------------------

template <U32 kBytes>
struct alignas(kBytes < 16 ? kBytes : 16) Vector {
  static constexpr U32 kWords = kBytes / 4;
  U32 word[kWords];
};

// Loads and stores of vectors, at multiples of their size. All pointers are to the GPU's memory, or to memory mapped there. The
// compiler cannot know this, so the instructions say `global`. ".cs": the data are read only once, and may leave the caches.
#if defined(__CUDA_ARCH__)
#define HVD_LOAD(hint, to, from)                                                 \
  if constexpr (kBytes == 16) {                                                  \
    asm volatile("ld.global" hint ".v4.u32 {%0, %1, %2, %3}, [%4];"              \
                 : "=r"((to)[0]), "=r"((to)[1]), "=r"((to)[2]), "=r"((to)[3])    \
                 : "l"(from));                                                   \
  } else if constexpr (kBytes == 8) {                                            \
    asm volatile("ld.global" hint ".v2.u32 {%0, %1}, [%2];"                      \
                 : "=r"((to)[0]), "=r"((to)[1])                                  \
                 : "l"(from));                                                   \
  } else {                                                                       \
    asm volatile("ld.global" hint ".u32 %0, [%1];" : "=r"((to)[0]) : "l"(from)); \
  }
#else
// Traps on a misaligned address, on which a GPU fails, too.
HVD_DEVICE U8* aligned(const U8* address, U32 bytes) {
  if (reinterpret_cast<U64>(address) % bytes != 0) __builtin_trap();
  return const_cast<U8*>(address);
}
#define HVD_LOAD(hint, to, from) __builtin_memcpy((to), aligned((from), kBytes), kBytes)
#endif

template <U32 kBytes>
HVD_DEVICE void load(Vector<kBytes>& to, const U8* from) {
  HVD_LOAD(".cs", to.word, from);
}

// Loads two neighbouring vectors, of which this thread needs a part. Neighbouring threads need the other parts, so the data may
// stay in the L1 cache.
template <U32 kBytes>
HVD_DEVICE void load_two(Vector<2 * kBytes>& to, const U8* from) {
  HVD_LOAD("", to.word, from);
  HVD_LOAD("", to.word + kBytes / 4, from + kBytes);
}

// The written data may stay in the caches, because NCCL or the optimizer reads them next.
template <U32 kBytes>
HVD_DEVICE void store(U8* to, const Vector<kBytes>& value) {
#if defined(__CUDA_ARCH__)
  const U32* const word = value.word;
  if constexpr (kBytes == 16) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(word[0]), "r"(word[1]),
                 "r"(word[2]), "r"(word[3]));
  } else if constexpr (kBytes == 8) {
    asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(word[0]), "r"(word[1]));
  } else {
    asm volatile("st.global.u32 [%0], %1;" ::"l"(to), "r"(word[0]));
  }
#else
  __builtin_memcpy(aligned(to, kBytes), value.word, kBytes);
#endif
}

// Returns kBytes of the two vectors, from byte `skip` on; 0 < skip < kBytes. After unrolling, all indices are constants,
// because a register has no address.
template <U32 kBytes>
HVD_DEVICE Vector<kBytes> cut(const Vector<2 * kBytes>& both, U32 skip) {
  constexpr U32 kWords = kBytes / 4;
  Vector<2 * kBytes> from = both;
  HVD_UNROLL
  for (U32 step = kWords / 2; step > 0; step /= 2) {
    if (skip / 4 & step) {
      HVD_UNROLL
      for (U32 w = 0; w + step < 2 * kWords; ++w) from.word[w] = from.word[w + step];
    }
  }
  Vector<kBytes> result;
  HVD_UNROLL
  for (U32 w = 0; w < kWords; ++w) {
    result.word[w] = funnel(from.word[w], from.word[w + 1], skip % 4 * 8);
  }
  return result;
}

// --- moves: what becomes of a vector, and of a single unit ----------------------------------------

struct Copy {
  static constexpr U32 kUnits = 16;  // of a vector
  static constexpr U32 kFromBytes = 1;
  static constexpr U32 kToBytes = 1;
  HVD_DEVICE explicit Copy(const Arguments&) {}
  HVD_DEVICE Vector<16> vector(const Vector<16>& from) const { return from; }
  HVD_DEVICE bool unit(const U8* from, U8* to) const {
    *to = *from;
    return false;
  }
  HVD_DEVICE static bool nonfinite(const Vector<16>&) { return false; }
};

template <U32 kBytes, U32 kAll>
HVD_DEVICE U64 get(const Vector<kAll>& from, U32 i) {
  if constexpr (kBytes == 2) return from.word[i / 2] >> (i % 2 * 16) & 0xffffu;
  if constexpr (kBytes == 4) return from.word[i];
  if constexpr (kBytes == 8) return static_cast<U64>(from.word[2 * i + 1]) << 32 | from.word[2 * i];
}

template <U32 kBytes>
HVD_DEVICE U64 read_bits(const U8* at) {
  if constexpr (kBytes == 2) return *reinterpret_cast<const U16*>(at);
  if constexpr (kBytes == 4) return *reinterpret_cast<const U32*>(at);
  if constexpr (kBytes == 8) return *reinterpret_cast<const U64*>(at);
}

template <U32 kBytes>
HVD_DEVICE void write_bits(U8* at, U64 bits) {
  if constexpr (kBytes == 2) *reinterpret_cast<U16*>(at) = static_cast<U16>(bits);
  if constexpr (kBytes == 4) *reinterpret_cast<U32*>(at) = static_cast<U32>(bits);
  if constexpr (kBytes == 8) *reinterpret_cast<U64*>(at) = bits;
}

template <class From, class To>
struct Scale {
  using Number = typename Wide<From, To>::Type;
  static constexpr U32 kFromBytes = From::kBytes;
  static constexpr U32 kToBytes = To::kBytes;
  static constexpr U32 kUnits = 16 / (kFromBytes > kToBytes ? kFromBytes : kToBytes);
  using Input = Vector<kUnits * kFromBytes>;
  using Output = Vector<kUnits * kToBytes>;

  HVD_DEVICE explicit Scale(const Arguments& arguments)
      : factor(static_cast<Number>(arguments.factor)) {}

  HVD_DEVICE Number number(const Input& from, U32 i) const {
    return static_cast<Number>(From::read(get<kFromBytes>(from, i))) * factor;
  }

  HVD_DEVICE Output vector(const Input& from) const {
    Output to;
    HVD_UNROLL
    for (U32 i = 0; i < kUnits; i += 2) {
      if constexpr (kToBytes == 2 && sizeof(Number) == 4) {
        to.word[i / 2] = To::write_two(number(from, i), number(from, i + 1));
      } else if constexpr (kToBytes == 2) {
        to.word[i / 2] =
            static_cast<U32>(To::write(number(from, i)) | To::write(number(from, i + 1)) << 16);
      } else {
        HVD_UNROLL
        for (U32 k = i; k < i + 2; ++k) {
          const U64 bits = To::write(number(from, k));
          to.word[k * kToBytes / 4] = static_cast<U32>(bits);
          if constexpr (kToBytes == 8) to.word[2 * k + 1] = static_cast<U32>(bits >> 32);
        }
      }
    }
    return to;
  }

  HVD_DEVICE bool unit(const U8* from, U8* to) const {
    const Number value = static_cast<Number>(From::read(read_bits<kFromBytes>(from))) * factor;
    const U64 bits = To::write(value);
    write_bits<kToBytes>(to, bits);
    return To::nonfinite(bits);
  }

  HVD_DEVICE static bool nonfinite(const Output& to) {
    bool found = false;
    HVD_UNROLL
    for (U32 i = 0; i < kUnits; ++i) found |= To::nonfinite(get<kToBytes>(to, i));
    return found;
  }

  Number factor;
};

// --- tiles ---------------------------------------------------------------------------------------

// A part of a piece: units [begin, end) of the piece's `count` units. Between two tiles of a piece there is always a bound of
// aligned vectors at `to`, so only the two ends of the piece have single units. For this the first tile has `lead` more units.
struct Tile {
  const U8* from;  // null: the identity
  U8* to;
  U64 begin;
  U64 end;
  U64 count;
  U32 piece;
};

HVD_DEVICE TablePiece find_piece(const Arguments& arguments, U32 tile, U32* piece) {
  if (arguments.table != 0) {
    const TablePiece* const table = reinterpret_cast<const TablePiece*>(arguments.table);
    *piece = reinterpret_cast<const U32*>(table + arguments.pieces)[tile];
    return table[*piece];
  }
  U32 low = 0;
  for (U32 high = arguments.pieces; high - low > 1;) {
    const U32 middle = (low + high) / 2;
    if (arguments.first_tile[middle] <= tile) {
      low = middle;
    } else {
      high = middle;
    }
  }
  *piece = low;
  return {arguments.tensor[low], arguments.offset[low], arguments.count[low],
          arguments.first_tile[low]};
}

// align: the alignment of the vectors at `to`, a multiple of to_bytes.
HVD_DEVICE Tile find_tile(const Arguments& arguments, U32 number, U32 from_bytes, U32 to_bytes,
                          U32 align) {
  Tile tile;
  const TablePiece piece = find_piece(arguments, number, &tile.piece);
  if (arguments.unpack) {
    tile.from = reinterpret_cast<const U8*>(arguments.buffer + piece.offset * from_bytes);
    tile.to = reinterpret_cast<U8*>(piece.tensor);
  } else {
    tile.from = reinterpret_cast<const U8*>(piece.tensor);
    tile.to = reinterpret_cast<U8*>(arguments.buffer + piece.offset * to_bytes);
  }
  const U32 lead = (0u - static_cast<U32>(reinterpret_cast<U64>(tile.to))) % align / to_bytes;
  const U64 index = number - piece.first_tile;
  const U64 bound = (index + 1) * arguments.tile_units + lead;
  tile.count = piece.count;
  tile.begin = index == 0 ? 0 : bound - arguments.tile_units;
  tile.end = bound < piece.count ? bound : piece.count;
  return tile;
}

// Fills bytes [begin, end). The pattern begins at addresses that are multiples of 8.
HVD_DEVICE void fill(U8* begin, U8* end, U64 pattern, U32 thread) {
  U8* const first = begin + (0u - static_cast<U32>(reinterpret_cast<U64>(begin))) % 16;
  Vector<16> value;
  HVD_UNROLL
  for (U32 w = 0; w < 4; ++w) value.word[w] = static_cast<U32>(pattern >> (w % 2 * 32));
  U8* at = begin + thread;
  if (at < first && at < end) {
    *at = static_cast<U8>(pattern >> (reinterpret_cast<U64>(at) % 8 * 8));
  }
  for (at = first + thread * 16; at + 16 <= end; at += kThreads * 16) store(at, value);
  at = end - reinterpret_cast<U64>(end) % 16 + thread;
  if (at >= first && at < end) {
    *at = static_cast<U8>(pattern >> (reinterpret_cast<U64>(at) % 8 * 8));
  }
}

// `skip`: by how many bytes `from` is beyond an aligned address. Returns whether a written number is infinite or NaN.
template <class Move, bool kCut>
HVD_DEVICE bool move_vectors(const Move& move, const U8* from, U8* to, U32 count, U32 skip,
                             U32 thread) {
  constexpr U32 kFrom = Move::kUnits * Move::kFromBytes;
  constexpr U32 kTo = Move::kUnits * Move::kToBytes;
  bool found = false;
  for (U32 i = thread; i < count; i += kInFlight * kThreads) {
    Vector<kCut ? 2 * kFrom : kFrom> in[kInFlight];
    HVD_UNROLL
    for (U32 u = 0; u < kInFlight; ++u) {
      const U32 k = i + u * kThreads;
      if (k >= count) continue;
      if constexpr (kCut) {
        load_two<kFrom>(in[u], from - skip + static_cast<U64>(k) * kFrom);
      } else {
        load(in[u], from + static_cast<U64>(k) * kFrom);
      }
    }
    HVD_UNROLL
    for (U32 u = 0; u < kInFlight; ++u) {
      const U32 k = i + u * kThreads;
      if (k >= count) continue;
      Vector<kTo> out;
      if constexpr (kCut) {
        out = move.vector(cut<kFrom>(in[u], skip));
      } else {
        out = move.vector(in[u]);
      }
      found |= Move::nonfinite(out);
      store(to + static_cast<U64>(k) * kTo, out);
    }
  }
  return found;
}

HVD_DEVICE void flag(const Arguments& arguments, U32 piece, bool found) {
  if (found && arguments.nonfinite != 0) reinterpret_cast<int*>(arguments.nonfinite)[piece] = 1;
}

template <class Move>
HVD_DEVICE void move_tile(const Arguments& arguments, U32 block, U32 thread) {
  constexpr U32 kFrom = Move::kUnits * Move::kFromBytes;
  constexpr U32 kTo = Move::kUnits * Move::kToBytes;
  const Tile tile = find_tile(arguments, block, Move::kFromBytes, Move::kToBytes, kTo);
  if (tile.begin >= tile.end) return;  // the first tile has taken all units of this last tile
  if (tile.from == nullptr) {
    return fill(tile.to + tile.begin * Move::kToBytes, tile.to + tile.end * Move::kToBytes,
                arguments.identity, thread);
  }
  const Move move(arguments);
  // Units [first, last) are moved as vectors. These are the whole vectors of the tile whose loads stay inside the piece.
  U64 first = tile.begin;
  if (first == 0)
    first = (0u - static_cast<U32>(reinterpret_cast<U64>(tile.to))) % kTo / Move::kToBytes;
  const U32 skip =
      static_cast<U32>(reinterpret_cast<U64>(tile.from) + first * Move::kFromBytes) % kFrom;
  if (first * Move::kFromBytes < skip) first += Move::kUnits;
  if (first > tile.end) first = tile.end;
  U32 vectors = static_cast<U32>(tile.end - first) / Move::kUnits;
  const U64 reach = (first + vectors * Move::kUnits) * Move::kFromBytes - skip + kFrom;
  if (skip != 0 && vectors != 0 && reach > tile.count * Move::kFromBytes) --vectors;
  const U64 last = first + static_cast<U64>(vectors) * Move::kUnits;

  const U8* const from = tile.from + first * Move::kFromBytes;
  U8* const to = tile.to + first * Move::kToBytes;
  bool found = skip == 0 ? move_vectors<Move, false>(move, from, to, vectors, 0, thread)
                         : move_vectors<Move, true>(move, from, to, vectors, skip, thread);
  // The units before `first` are less than two vectors, and so are those from `last` on: at most one unit for each thread.
  if (tile.begin + thread < first) {
    const U64 i = tile.begin + thread;
    found |= move.unit(tile.from + i * Move::kFromBytes, tile.to + i * Move::kToBytes);
  }
  if (last + thread < tile.end) {
    const U64 i = last + thread;
    found |= move.unit(tile.from + i * Move::kFromBytes, tile.to + i * Move::kToBytes);
  }
  flag(arguments, tile.piece, found);
}

// One kernel serves all pairs of integers. It is simple rather than fast, because integers are rarely scaled.
HVD_DEVICE void move_integers(const Arguments& arguments, U32 block, U32 thread) {
  const U32 from_bytes = bytes_of_integer(arguments.from);
  const U32 to_bytes = bytes_of_integer(arguments.to);
  const Tile tile = find_tile(arguments, block, from_bytes, to_bytes, to_bytes);
  if (tile.begin >= tile.end) return;
  if (tile.from == nullptr) {
    return fill(tile.to + tile.begin * to_bytes, tile.to + tile.end * to_bytes, arguments.identity,
                thread);
  }
  for (U64 i = tile.begin + thread; i < tile.end; i += kInFlight * kThreads) {
    I64 value[kInFlight] = {};
    HVD_UNROLL
    for (U32 u = 0; u < kInFlight; ++u) {
      const U64 k = i + u * kThreads;
      if (k < tile.end) value[u] = read_integer(tile.from + k * from_bytes, arguments.from);
    }
    HVD_UNROLL
    for (U32 u = 0; u < kInFlight; ++u) {
      const U64 k = i + u * kThreads;
      if (k < tile.end) {
        write_integer(tile.to + k * to_bytes, arguments.to, convert_integer(value[u], arguments));
      }
    }
  }
}

}  // namespace hvdlite_kernels

// --- kernels -------------------------------------------------------------------------------------

extern "C" __global__ void HVD_BOUNDS hvdlite_copy(HVD_ARGUMENTS) {
  hvdlite_kernels::move_tile<hvdlite_kernels::Copy>(arguments, blockIdx.x, threadIdx.x);
}

extern "C" __global__ void HVD_BOUNDS hvdlite_integers(HVD_ARGUMENTS) {
  hvdlite_kernels::move_integers(arguments, blockIdx.x, threadIdx.x);
}

#define HVD_FLOAT_KERNEL(name, from, to)                                             \
  extern "C" __global__ void HVD_BOUNDS name(HVD_ARGUMENTS) {                        \
    using Move = hvdlite_kernels::Scale<hvdlite_kernels::from, hvdlite_kernels::to>; \
    hvdlite_kernels::move_tile<Move>(arguments, blockIdx.x, threadIdx.x);            \
  }
HVDLITE_FLOAT_KERNELS(HVD_FLOAT_KERNEL)
