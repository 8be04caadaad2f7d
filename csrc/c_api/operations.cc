// The part of the C ABI about operations: submit, wait, results and the memory they lie in.

#include <algorithm>
#include <utility>
#include <vector>

#include "c_api/c_api.h"

using hvdlite::base::Error;
using hvdlite::engine::alive;
using hvdlite::engine::Ask;
using hvdlite::engine::Completion;
using hvdlite::engine::CompletionArray;
using hvdlite::engine::CompletionPtr;
using hvdlite::engine::Engine;
using hvdlite::engine::EngineOutput;
using hvdlite::engine::guarded;
using hvdlite::engine::RequestView;
using hvdlite::engine::require;
using hvdlite::engine::Submission;
using hvdlite::engine::view_of;
using hvdlite::engine::Watcher;
using hvdlite::engine::Wire;
namespace base = hvdlite::base;
namespace device = hvdlite::device;

namespace {

template <typename Enum>
constexpr bool is(Enum code, int number) {
  return static_cast<int>(code) == number;
}
using base::OpKind;
using base::ReduceOp;
static_assert(is(OpKind::kAllreduce, HVDLITE_ALLREDUCE) &&
              is(OpKind::kAllgather, HVDLITE_ALLGATHER) &&
              is(OpKind::kBroadcast, HVDLITE_BROADCAST) &&
              is(OpKind::kAlltoall, HVDLITE_ALLTOALL) &&
              is(OpKind::kReducescatter, HVDLITE_REDUCESCATTER) &&
              is(OpKind::kBarrier, HVDLITE_BARRIER) && is(OpKind::kJoin, HVDLITE_JOIN) &&
              is(OpKind::kAddProcessSet, HVDLITE_ADD_PROCESS_SET) &&
              is(OpKind::kRemoveProcessSet, HVDLITE_REMOVE_PROCESS_SET) &&
              is(OpKind::kSend, HVDLITE_SEND) && is(OpKind::kRecv, HVDLITE_RECV));
using base::Between;
using base::CodecKind;
static_assert(is(CodecKind::kNone, HVDLITE_CODEC_NONE) &&
              is(CodecKind::kInt8, HVDLITE_CODEC_INT8) &&
              is(CodecKind::kInt4, HVDLITE_CODEC_INT4) && is(CodecKind::kFp8, HVDLITE_CODEC_FP8) &&
              is(Between::kHosts, HVDLITE_BETWEEN_HOSTS) &&
              is(Between::kRanks, HVDLITE_BETWEEN_RANKS));
static_assert(hvdlite::engine::kAny == HVDLITE_ANY);
static_assert(is(ReduceOp::kAverage, HVDLITE_AVERAGE) && is(ReduceOp::kSum, HVDLITE_SUM) &&
              is(ReduceOp::kAdasum, HVDLITE_ADASUM) && is(ReduceOp::kMin, HVDLITE_MIN) &&
              is(ReduceOp::kMax, HVDLITE_MAX) && is(ReduceOp::kProduct, HVDLITE_PRODUCT));

template <typename Enum>
Enum checked(std::int32_t code, int limit, const char* what) {
  require(code >= 0 && code < limit, what);
  return static_cast<Enum>(code);
}

Wire wire_of(std::int32_t flags) {
  const bool half = (flags & HVDLITE_FLAG_WIRE_FLOAT16) != 0;
  const bool brain = (flags & HVDLITE_FLAG_WIRE_BFLOAT16) != 0;
  require(!(half && brain), "a tensor can travel as float16 or as bfloat16, not as both");
  return half ? Wire::kFloat16 : brain ? Wire::kBFloat16 : Wire::kSame;
}

}  // namespace

RequestView hvdlite::engine::view_of(const hvdlite_request& from) {
  RequestView view;
  if (from.name != nullptr) view.name = from.name;
  view.kind = checked<base::OpKind>(from.kind, base::kNumOpKinds, "unknown kind of operation");
  view.dtype = checked<base::DType>(from.dtype, base::kNumDTypes, "unknown dtype");
  view.op = checked<base::ReduceOp>(from.op, static_cast<int>(base::ReduceOp::kProduct) + 1,
                                    "unknown reduce op");
  view.set = from.process_set;
  view.absent = (from.flags & HVDLITE_FLAG_ABSENT) != 0;
  view.wire = wire_of(from.flags);
  view.codec.kind = checked<CodecKind>(from.codec, base::kNumCodecKinds, "unknown codec");
  view.codec.between = checked<Between>(from.codec_between, base::kNumBetweens,
                                        "a codec works between hosts or between ranks");
  view.codec.block = view.codec ? from.codec_block : 0;
  view.weighted = (from.flags & HVDLITE_FLAG_WEIGHTED) != 0;
  view.weight = {from.weight, (from.flags & HVDLITE_FLAG_NOTICE) != 0};
  view.root = from.root;
  view.tag = from.tag;
  view.device = from.device;
  view.layout = from.layout;
  view.prescale = from.prescale;
  view.postscale = from.postscale;
  if (from.group != nullptr) view.group = from.group;
  if (!view.group.empty() || view.name.empty()) {
    view.group_size = from.group_size;
    view.group_index = from.group_index;
  }
  if (from.ndim > 0) view.shape = {from.shape, static_cast<size_t>(from.ndim)};
  view.arena = from.arena;
  view.stream = from.stream;
  if (from.num_splits > 0) view.splits = {from.splits, static_cast<size_t>(from.num_splits)};
  return view;
}

namespace {

Ask ask_of(const hvdlite_request& request) {
  return {view_of(request), request.input, request.output};
}

std::vector<Ask> asks_of(const hvdlite_request* requests, size_t count) {
  std::vector<Ask> asks;
  asks.reserve(count);
  for (size_t i = 0; i < count; ++i) asks.push_back(ask_of(requests[i]));
  return asks;
}

void submit(Engine& engine, const hvdlite_submission& what, std::int64_t* work) {
  require(what.count > 0, "nothing to submit");
  std::unique_ptr<Watcher> watcher;
  if (what.then != nullptr) {
    watcher = std::make_unique<Watcher>(Watcher{.then = what.then, .data = what.then_data});
  }
  Submission native;
  native.wake = what.wake != 0 || watcher;
  native.pool_thread = what.pool_thread != 0;
  if (what.group != 0) {
    native.group = what.group;
    native.data = {what.data, what.count};
    if (what.absent != nullptr) native.absent = {what.absent, what.count};
    native.stream = what.stream;
    native.weight = {what.weight, what.notice != 0};
    return engine.submit(native, work, std::move(watcher));
  }
  if (what.count == 1) {
    const Ask one = ask_of(what.requests[0]);
    native.asks = {&one, 1};
    return engine.submit(native, work, std::move(watcher));
  }
  const std::vector<Ask> many = asks_of(what.requests, what.count);
  native.asks = many;
  engine.submit(native, work, std::move(watcher));
}

Completion& ended(const CompletionArray& batch, size_t index) {
  require(index < batch.size, "a work has no operation of that number");
  require(batch[index].is_done(), "the operation has not ended yet; wait for it first");
  return batch[index];
}

void describe(const EngineOutput& output, hvdlite_result& result) {
  result.ndim = static_cast<int32_t>(output.shape.size());
  result.shape = output.shape.data();
  result.num_received_splits = static_cast<int32_t>(output.received_splits.size());
  result.received_splits = output.received_splits.data();
  result.num_bytes = static_cast<int64_t>(output.bytes);
  result.data = output.data();
  result.device = output.device;
}

hvdlite_result result_of(const Completion& completion) {
  hvdlite_result result{};
  result.contributors = completion.contributors;
  if (const base::Status* const failure = completion.failure.get()) {
    result.code = static_cast<int32_t>(failure->code);
    result.error = failure->message.c_str();
    result.contributors = -1;
  }
  result.last_joined_rank = result.process_set = result.source = completion.value;
  result.tag = completion.contributors;
  result.device = HVDLITE_DEVICE_CPU;
  if (const EngineOutput* const output = completion.output.get()) describe(*output, result);
  return result;
}

// Called before GPU memory that was lent to a caller is freed. The pool of buffers knows what hvdlite does with the memory, but
// not what the user does with it. The user's work is ordered with the legacy default stream, so the memory is free after an
// event in that stream.
void take_back(hvdlite_block& block) noexcept {
  if (!block.gpu->in_own_process()) return block.gpu_memory.abandon();
  try {
    block.gpu_memory.free_after(block.gpu->record(nullptr));
  } catch (...) {
    // The GPU is lost, or a graph is under capture. So the end of the memory's use is unknown.
    block.gpu_memory.abandon();
  }
}

}  // namespace

int hvdlite_submit(hvdlite_engine* engine, const hvdlite_submission* what, int64_t* work) {
  return guarded([&] { submit(alive(engine), *what, work); });
}

int hvdlite_prepare(hvdlite_engine* engine, const hvdlite_request* requests, size_t count,
                    int64_t* group) {
  return guarded([&] { *group = alive(engine).prepare(asks_of(requests, count)); });
}

int hvdlite_release_prepared(hvdlite_engine* engine, int64_t group) {
  return guarded([&] { alive(engine).release_prepared(group); });
}

int hvdlite_order(hvdlite_engine* engine, int64_t work, void* stream) {
  return guarded([&] { alive(engine).order(work, stream); });
}

int hvdlite_poll(hvdlite_engine* engine, int64_t work, int* done) {
  return guarded([&] { *done = alive(engine).poll(work) ? 1 : 0; });
}

int hvdlite_wait(hvdlite_engine* engine, const int64_t* works, size_t count, double timeout_s,
                 int* done) {
  return guarded([&] {
    CompletionPtr failed;
    *done = 0;
    *done = alive(engine).wait({works, count}, base::from_seconds(timeout_s), &failed) ? 1 : 0;
    if (*done != 0 && failed) throw Error(failed->failure->code, failed->failure->message);
  });
}

int hvdlite_results(hvdlite_engine* engine, int64_t work, hvdlite_result* results, size_t capacity,
                    size_t* count) {
  return guarded([&] {
    const CompletionArray batch = alive(engine).completions(work);
    *count = batch.size;
    for (size_t i = 0; i < std::min(batch.size, capacity); ++i) {
      results[i] = result_of(ended(batch, i));
    }
  });
}

hvdlite_block* hvdlite_result_take_block(hvdlite_engine* engine, int64_t work, size_t index) {
  hvdlite_block* block = nullptr;
  guarded([&] {
    const CompletionArray batch = alive(engine).completions(work);
    const Completion& completion = ended(batch, index);
    if (!completion.output || completion.output->data() == nullptr) return;
    EngineOutput& output = *completion.output;
    block = new hvdlite_block{.memory = std::move(output.block)};
    if (!output.gpu_block) return;
    block->gpu_memory = std::move(output.gpu_block);
    block->event = completion.event;
    block->gpu = completion.event->gpu().shared_from_this();
  });
  return block;
}

int hvdlite_release(hvdlite_engine* engine, int64_t work) {
  return guarded([&] { alive(engine).release(work); });
}

int hvdlite_block_create(hvdlite_engine* engine, size_t bytes, hvdlite_block** out) {
  return guarded([&] { *out = new hvdlite_block{.memory = alive(engine).new_output(bytes)}; });
}

void* hvdlite_block_data(const hvdlite_block* block) {
  return block->gpu_memory ? block->gpu_memory.data() : block->memory.get();
}

int32_t hvdlite_block_device(const hvdlite_block* block) {
  return block->gpu ? block->gpu->ordinal() : HVDLITE_DEVICE_CPU;
}

int hvdlite_block_copy(hvdlite_block* block, void* to, size_t bytes, void* stream) {
  return guarded([&] {
    require(block->gpu_memory && block->event, "the block is no result on a GPU");
    require(bytes <= block->gpu_memory.capacity(), "the block has fewer bytes");
    const auto order = static_cast<device::cuda::Stream>(stream);
    block->event->order(order);
    if (bytes > 0) block->gpu->copy(to, block->gpu_memory.data(), bytes, order);
    block->gpu_memory.free_after(block->gpu->record(order));
  });
}

int hvdlite_gpu_block_create(hvdlite_engine* engine, int32_t gpu, size_t bytes, void* stream,
                             hvdlite_block** out) {
  return guarded([&] {
    device::Buffer memory = alive(engine).new_gpu_output(gpu, bytes, stream);
    *out = new hvdlite_block{
        .memory = {}, .gpu_memory = std::move(memory), .gpu = alive(engine).gpu(gpu), .lent = true};
  });
}

void hvdlite_block_free(hvdlite_block* block) {
  if (block != nullptr && block->lent) take_back(*block);
  delete block;
}

int hvdlite_gpu_of_address(hvdlite_engine* engine, const void* address, int32_t* gpu) {
  return guarded([&] { *gpu = alive(engine).gpu_of_address(address); });
}
