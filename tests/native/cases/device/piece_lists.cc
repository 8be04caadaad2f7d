// Tables of pieces in the GPU's memory, and what happens to one that a launch may still read.
#include "device/piece_lists.h"

#include "device/piece_layout.h"
#include "device_test.h"

using namespace device_test;

TEST(a_table_that_the_gpu_may_still_read_is_not_freed) {
  const device::GpuPtr gpu = open_gpu();
  const device::OwnStream stream(gpu);
  std::vector<device::Piece> pieces;
  for (std::size_t place = 0; place < 2 * hvdlite_kernels::kInlinePieces; ++place) {
    pieces.push_back({nullptr, place, 1});
  }
  const device::FusionPlan plan = device::plan_fusion({}, false);
  hvdlite_kernels::Arguments arguments;
  EXPECT(!device::describe_pieces(pieces, plan, false, gpu->multiprocessors(), &arguments));
  {
    device::PieceLists lists(gpu);
    const std::uint64_t table = lists.table(pieces, plan, arguments, stream.get());
    gpu->record(stream.get())->synchronize();
    // The end of the launch cannot be recorded, and the driver does not say whether it has come.
    fail("cuEventRecord", 1, 999);
    fail("cuStreamSynchronize", 1, 999);
    error_of(ErrorCode::kSystem, [&] { lists.used(stream.get()); });
    EXPECT(lists.table(pieces, plan, arguments, stream.get()) != table);
    lists.used(stream.get());
    gpu->record(stream.get())->synchronize();
  }
  EXPECT(calls("cuMemFree") == 1);
}
