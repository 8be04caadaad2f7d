// All loops, and the table of one instruction set (reduce_impl.h).
#include "kernels/codec_impl.h"
#include "kernels/reduce_impl.h"

namespace hvdlite::kernels::HVD_KERNEL_NAMESPACE {

consteval KernelTable make_table() {
  KernelTable table{};
  set_reductions(table);
  table.codecs[static_cast<int>(base::CodecKind::kInt8)] = codec_of<Int8>();
  table.codecs[static_cast<int>(base::CodecKind::kInt4)] = codec_of<Int4>();
  table.codecs[static_cast<int>(base::CodecKind::kFp8)] = codec_of<Fp8>();
  return table;
}

}  // namespace hvdlite::kernels::HVD_KERNEL_NAMESPACE
