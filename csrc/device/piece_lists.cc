// The life of a table:
//
//    table(): not found ──► upload(): written to page-locked memory, copied to the GPU ──► front of lists_ ──► used()
//    table(): found     ──► moved to the front of lists_                                                   ──► used()
//    lists_ has too many tables or bytes ──► the table at the back is dropped ──► memory_ keeps its memory
//
// table() compares the pieces with those of one table after the other. Most comparisons end at once, because the number of the
// pieces or the first address differs. A training step that repeats the same k tables finds each among the first k. This holds
// for up to kKeptLists tables that have up to kKeptBytes together. If each step needs more tables, in the same order, a table
// is dropped before its pieces come again, and each step uploads all tables.
//
// An example: a step packs and unpacks one list of 1000 pieces. The first step uploads two tables, one for each direction. Each
// later step finds both. If the program gives new gradient tensors in each step, their addresses differ. Then each step uploads
// two tables, and drops two old ones when lists_ is full.
//
// A table belongs to one stream. The copy to the GPU and all launches that read the table are ordered in that stream, so no
// event is needed between them. `memory.free_after` is the event after the copy, and later the one after the last launch. So a
// dropped table's memory is used again only after the GPU has read it.
//
// The two pools are this object's own. So their limits count only the memory of tables, and not the buffers of operations.
#include "device/piece_lists.h"

#include <algorithm>
#include <utility>

namespace hvdlite::device {

using hvdlite_kernels::Arguments;

namespace {

constexpr std::size_t kKeptLists = 64;
// A table that alone has more bytes is kept until the next new one comes.
constexpr std::size_t kKeptBytes = std::size_t{16} << 20;

}  // namespace

// A table, and the pieces that it describes. The content of the table depends on the pieces, units, tile_units and unpack. It
// does not depend on the types, the factor or the identity, so one table serves conversions that differ only in these.
struct PieceLists::List {
  std::vector<Piece> pieces;
  cuda::Stream stream;
  std::uint32_t units;
  std::uint32_t tile_units;
  bool unpack;
  Buffer memory;

  bool serves(std::span<const Piece> wanted, const FusionPlan& plan, const Arguments& arguments,
              cuda::Stream wanted_stream) const {
    return stream == wanted_stream && units == plan.units && tile_units == arguments.tile_units &&
           unpack == (arguments.unpack != 0) && std::ranges::equal(pieces, wanted);
  }
};

PieceLists::PieceLists(GpuPtr gpu)
    : gpu_(std::move(gpu)),
      memory_(std::make_shared<BufferPool>(gpu_, BufferPool::Kind::kDevice, kKeptBytes)),
      pinned_(std::make_shared<BufferPool>(gpu_, BufferPool::Kind::kPinned, kKeptBytes)) {}

PieceLists::~PieceLists() = default;

std::uint64_t PieceLists::table(std::span<const Piece> pieces, const FusionPlan& plan,
                                const Arguments& arguments, cuda::Stream stream) {
  const auto found = std::find_if(lists_.begin(), lists_.end(), [&](const List& list) {
    return list.serves(pieces, plan, arguments, stream);
  });
  if (found != lists_.end()) {
    lists_.splice(lists_.begin(), lists_, found);
  } else {
    lists_.push_front(upload(pieces, plan, arguments, stream));
    bytes_ += lists_.front().memory.capacity();
    // The first table stays in any case, because the launch needs it now.
    while (lists_.size() > 1 && (lists_.size() > kKeptLists || bytes_ > kKeptBytes)) {
      bytes_ -= lists_.back().memory.capacity();
      lists_.pop_back();
    }
  }
  return reinterpret_cast<std::uintptr_t>(lists_.front().memory.data());
}

// If record() fails, no event says when the launch has ended. So the table leaves lists_. Its memory returns to the pool if the
// stream's work has ended, and is abandoned otherwise.
void PieceLists::used(cuda::Stream stream) {
  Buffer& memory = lists_.front().memory;
  try {
    memory.free_after(gpu_->record(stream));
  } catch (...) {
    bytes_ -= memory.capacity();
    if (!has_ended(stream)) memory.abandon();
    lists_.pop_front();
    throw;
  }
}

// Waits for the stream's work. False: the wait failed, so the work may still use memory.
bool PieceLists::has_ended(cuda::Stream stream) const {
  bool ended = false;
  gpu_->clean_up([&](const cuda::Functions& call) {
    ended = call.StreamSynchronize(stream) == cuda::kSuccess;
  });
  return ended;
}

// Writes the table to page-locked memory, from which the copy is asynchronous. If a call of the driver fails, the copy may be
// under way. In this case both buffers are abandoned, unless the stream's work has ended.
PieceLists::List PieceLists::upload(std::span<const Piece> pieces, const FusionPlan& plan,
                                    const Arguments& arguments, cuda::Stream stream) {
  const std::size_t bytes = table_bytes(arguments);
  Buffer pinned = pinned_->get(bytes, stream);
  // The pool orders the stream after the launches that read the former table in this memory. So the copy does not overwrite
  // that table too early.
  Buffer memory = memory_->get(bytes, stream);
  write_table(pieces, plan, arguments, pinned.data());
  try {
    gpu_->copy(memory.data(), pinned.data(), bytes, stream);
    const EventPtr copied = gpu_->record(stream);
    pinned.free_after(copied);
    memory.free_after(copied);
  } catch (...) {
    if (!has_ended(stream)) {
      pinned.abandon();
      memory.abandon();
    }
    throw;
  }
  ++uploads_;
  return {{pieces.begin(), pieces.end()}, stream,           plan.units, arguments.tile_units,
          arguments.unpack != 0,          std::move(memory)};
}

}  // namespace hvdlite::device
