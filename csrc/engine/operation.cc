#include "engine/operation.h"

#include <cstring>
#include <numeric>

namespace hvdlite::engine {

using base::OpKind;
using base::ReduceOp;

namespace {

void copy(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, bytes);
}

// Rows are dealt out as evenly as possible, the first ranks getting one more (Horovod's rule).
std::vector<std::int64_t> deal_rows(std::int64_t rows, int ranks) {
  std::vector<std::int64_t> dealt(static_cast<std::size_t>(ranks), rows / ranks);
  for (std::int64_t i = 0; i < rows % ranks; ++i) ++dealt[static_cast<std::size_t>(i)];
  return dealt;
}

std::vector<std::size_t> scaled(const std::vector<std::int64_t>& rows, std::size_t factor) {
  std::vector<std::size_t> result;
  result.reserve(rows.size());
  for (const std::int64_t count : rows) result.push_back(static_cast<std::size_t>(count) * factor);
  return result;
}

collectives::Reduction reduction_of(const Agreed& agreed, const collectives::Comm& comm) {
  return reduction_of(*agreed.request, agreed.divisor > 0 ? agreed.divisor : comm.size());
}

std::int64_t total(const std::vector<std::int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), std::int64_t{0});
}

}  // namespace

collectives::Reduction reduction_of(const Request& request, std::int64_t divisor) {
  return {request.dtype, request.op, request.prescale, request.postscale,
          request.op == ReduceOp::kAverage ? divisor : 1};
}

Operation::Operation(FusedOp fused, std::vector<Entry> entries)
    : fused_(std::move(fused)), entries_(std::move(entries)) {
  for (std::size_t i = 0; i < fused_.parts.size(); ++i) {
    bytes_ += fused_.parts[i].request->bytes();
    if (entries_[i].request) entries_[i].completion->contributors = fused_.parts[i].contributors;
  }
}

void Operation::start(collectives::Comm comm, const ProcessSet& set, BufferPool& pool,
                      OutputCache& outputs, const collectives::Selection& selection) {
  Context context{std::move(comm), set, pool, outputs, selection};
  // A value that nobody has needs no data: the handle tells so by contributors == 0.
  const OpKind kind = fused_.first().kind;
  if (fused_.parts.front().contributors == 0 && kind == OpKind::kAllreduce) return;
  switch (kind) {
    case OpKind::kAllreduce:
      start_allreduce(context);
      break;
    case OpKind::kAllgather:
      start_allgather(context);
      break;
    case OpKind::kBroadcast:
      start_broadcast(context);
      break;
    case OpKind::kAlltoall:
      start_alltoall(context);
      break;
    case OpKind::kReducescatter:
      start_reducescatter(context);
      break;
    case OpKind::kBarrier:
      collective_ = collectives::start_barrier(context.comm, selection);
      break;
    case OpKind::kJoin:
    case OpKind::kAddProcessSet:
    case OpKind::kRemoveProcessSet:
      HVD_CHECK(false);  // these move no data: the cycle settles them itself
  }
}

bool Operation::advance() {
  if (collective_ && !collective_->advance()) return false;
  if (packed_) unpack();
  collective_.reset();
  return true;
}

void Operation::start_allreduce(Context& context) {
  const ReduceOp op = fused_.first().op;
  if (collectives::takes_scattered(bytes_, op, context.comm, context.selection)) {
    start_scattered_allreduce(context);
  } else if (fused_.parts.size() > 1) {
    start_fused_allreduce(context);
  } else {
    start_single_allreduce(context);
  }
}

// Straight from and to the tensors; those of a rank that has joined are null. Members that agreed on an arena all have one, and
// none has joined.
void Operation::start_scattered_allreduce(Context& context) {
  collectives::AllreduceArgs args;
  args.parts.reserve(fused_.parts.size());
  for (std::size_t i = 0; i < fused_.parts.size(); ++i) {
    args.parts.push_back({entries_[i].input, entries_[i].output,
                          static_cast<std::size_t>(fused_.parts[i].request->elements())});
  }
  args.reduction = reduction_of(fused_.parts.front(), context.comm);
  if (fused_.first().arena != 0) args.mapped = entries_.front().arena->bases();
  collective_ = collectives::start_allreduce(context.comm, std::move(args), context.selection);
}

void Operation::start_fused_allreduce(Context& context) {
  const Request& first = fused_.first();
  buffer_ = context.pool.get(bytes_);
  packed_ = true;
  std::size_t offset = 0;
  for (std::size_t i = 0; i < fused_.parts.size(); ++i) {
    const std::size_t bytes = fused_.parts[i].request->bytes();
    if (entries_[i].input != nullptr) {
      copy(buffer_.data() + offset, entries_[i].input, bytes);
    } else {
      std::memset(buffer_.data() + offset, 0,
                  bytes);  // the planner fuses absent values into sums only
    }
    offset += bytes;
  }
  collectives::AllreduceArgs args;
  args.parts = {{buffer_.data(), buffer_.data(), bytes_ / base::size_of(first.dtype)}};
  args.reduction = reduction_of(fused_.parts.front(), context.comm);
  collective_ = collectives::start_allreduce(context.comm, args, context.selection);
}

void Operation::unpack() {
  std::size_t offset = 0;
  for (std::size_t i = 0; i < fused_.parts.size(); ++i) {
    const std::size_t bytes = fused_.parts[i].request->bytes();
    if (entries_[i].output != nullptr) copy(entries_[i].output, buffer_.data() + offset, bytes);
    offset += bytes;
  }
  buffer_ = BufferPool::Buffer();
}

void Operation::start_single_allreduce(Context& context) {
  const Request& request = fused_.first();
  void* output = entries_[0].output;
  if (output == nullptr) {  // joined: the result is nobody's here
    buffer_ = context.pool.get(request.bytes());
    output = buffer_.data();
  }
  collectives::AllreduceArgs args;
  args.parts = {{entries_[0].input, output, static_cast<std::size_t>(request.elements())}};
  args.reduction = reduction_of(fused_.parts.front(), context.comm);
  collective_ = collectives::start_allreduce(context.comm, args, context.selection);
}

void* Operation::allocate_output(Context& context, std::size_t bytes) {
  if (!entries_[0].request) {
    buffer_ = context.pool.get(bytes);
    return buffer_.data();
  }
  auto output = std::make_unique<Output>();
  output->block = context.outputs.get(bytes);
  output->bytes = bytes;
  return (entries_[0].completion->output = std::move(output))->block.data();
}

void Operation::start_allgather(Context& context) {
  const Request& request = fused_.first();
  const std::size_t row_bytes =
      static_cast<std::size_t>(request.row_elements()) * base::size_of(request.dtype);
  collectives::AllgathervArgs args;
  args.bytes = scaled(fused_.sizes, row_bytes);
  const std::int64_t rows = total(fused_.sizes);
  args.input = entries_[0].input;
  args.output = allocate_output(context, static_cast<std::size_t>(rows) * row_bytes);
  if (entries_[0].request) {
    Output& output = *entries_[0].completion->output;
    output.shape = entries_[0].request->shape;
    output.shape[0] = rows;
  }
  collective_ = collectives::start_allgatherv(context.comm, std::move(args), context.selection);
}

void Operation::start_broadcast(Context& context) {
  const Request& request = fused_.first();
  collectives::BroadcastArgs args;
  args.bytes = request.bytes();
  args.root = context.set.index_of(request.root);
  args.data = entries_[0].output;
  if (args.data == nullptr) {
    buffer_ = context.pool.get(args.bytes);
    args.data = buffer_.data();
  } else if (args.root == context.comm.rank()) {
    copy(args.data, entries_[0].input, args.bytes);
  }
  collective_ = collectives::start_broadcast(context.comm, args, context.selection);
}

void Operation::start_alltoall(Context& context) {
  const Request& request = fused_.first();
  const auto ranks = static_cast<std::size_t>(context.comm.size());
  const auto me = static_cast<std::size_t>(context.comm.rank());
  const std::size_t row_bytes =
      static_cast<std::size_t>(request.row_elements()) * base::size_of(request.dtype);
  std::vector<std::int64_t> sent(ranks);
  std::vector<std::int64_t> received(ranks);
  for (std::size_t peer = 0; peer < ranks; ++peer) {
    sent[peer] = fused_.sizes[me * ranks + peer];
    received[peer] = fused_.sizes[peer * ranks + me];
  }
  collectives::AlltoallvArgs args;
  args.send_bytes = scaled(sent, row_bytes);
  args.recv_bytes = scaled(received, row_bytes);
  const std::int64_t rows = total(received);
  args.input = entries_[0].input;
  args.output = allocate_output(context, static_cast<std::size_t>(rows) * row_bytes);
  if (entries_[0].request) {
    Output& output = *entries_[0].completion->output;
    output.shape = entries_[0].request->shape;
    output.shape[0] = rows;
    output.received_splits = std::move(received);
  }
  collective_ = collectives::start_alltoallv(context.comm, std::move(args), context.selection);
}

void Operation::start_reducescatter(Context& context) {
  const Request& request = fused_.first();
  const std::vector<std::int64_t> rows = deal_rows(request.shape[0], context.comm.size());
  const std::int64_t mine = rows[static_cast<std::size_t>(context.comm.rank())];
  const auto row_elements = static_cast<std::size_t>(request.row_elements());
  collectives::ReducescatterArgs args;
  args.counts = scaled(rows, row_elements);
  args.input = entries_[0].input;
  args.output = allocate_output(
      context, static_cast<std::size_t>(mine) * row_elements * base::size_of(request.dtype));
  if (entries_[0].request) {
    Output& output = *entries_[0].completion->output;
    output.shape = request.shape;
    output.shape[0] = mine;
  }
  args.reduction = reduction_of(fused_.parts.front(), context.comm);
  collective_ = collectives::start_reducescatter(context.comm, std::move(args), context.selection);
}

}  // namespace hvdlite::engine
