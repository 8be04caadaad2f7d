// The reference kernels: one element at a time, baseline instructions only.
#define HVD_KERNEL_NAMESPACE scalar
#define HVD_KERNEL_VECTOR_BYTES 0
#include "kernels/kernels_impl.h"

namespace hvdlite::kernels {

constexpr KernelTable kScalarTable = scalar::make_table();

}  // namespace hvdlite::kernels
