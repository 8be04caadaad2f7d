// The part of the C ABI about operations: submit, wait, results and the memory they lie in.

#include <span>
#include <utility>
#include <vector>

#include "c_api/c_api.h"

using hvdlite::base::Error;
using hvdlite::engine::alive;
using hvdlite::engine::Batch;
using hvdlite::engine::Completion;
using hvdlite::engine::Engine;
using hvdlite::engine::guarded;
using hvdlite::engine::Output;
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
              is(OpKind::kRemoveProcessSet, HVDLITE_REMOVE_PROCESS_SET));
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
  require(!(half && brain), "a tensor crosses as float16 or as bfloat16, not as both");
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
  view.root = from.root;
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

Submission submission_of(const hvdlite_request& request) {
  return {view_of(request), request.input, request.output};
}

std::vector<Submission> submissions_of(const hvdlite_request* requests, size_t count) {
  std::vector<Submission> submissions;
  submissions.reserve(count);
  for (size_t i = 0; i < count; ++i) submissions.push_back(submission_of(requests[i]));
  return submissions;
}

void submit(Engine& engine, const hvdlite_request* requests, size_t count, bool wake,
            int64_t* handles, std::unique_ptr<Watcher> watcher) {
  if (count == 1) {
    const Submission one = submission_of(requests[0]);
    engine.submit({&one, 1}, wake, handles, std::move(watcher));
    return;
  }
  engine.submit(submissions_of(requests, count), wake, handles, std::move(watcher));
}

// The completion behind a handle of one operation.
Completion& single(const Batch& batch) {
  require(batch.size == 1, "the handle is that of a prepared group: wait for it with wait_many");
  require(batch[0].is_done(), "the operation has not ended yet; wait for it first");
  return batch[0];
}

void throw_failure(const Completion& completion) {
  if (completion.failure) throw Error(completion.failure->code, completion.failure->message);
}

}  // namespace

int hvdlite_submit(hvdlite_engine* engine, const hvdlite_request* requests, size_t count, int wake,
                   int64_t* handles) {
  return guarded([&] { submit(alive(engine), requests, count, wake != 0, handles, nullptr); });
}

int hvdlite_submit_then(hvdlite_engine* engine, const hvdlite_request* requests, size_t count,
                        hvdlite_done_fn then, void* data, int64_t* handles) {
  return guarded([&] {
    require(count > 0, "nothing to submit");
    auto watcher = std::make_unique<Watcher>(Watcher{.then = then, .data = data});
    submit(alive(engine), requests, count, true, handles, std::move(watcher));
  });
}

int hvdlite_prepare(hvdlite_engine* engine, const hvdlite_request* requests, size_t count,
                    int64_t* group) {
  return guarded([&] { *group = alive(engine).prepare(submissions_of(requests, count)); });
}

int hvdlite_submit_prepared(hvdlite_engine* engine, int64_t group, void* const* data,
                            const bool* absent, size_t count, void* stream, int wake,
                            int64_t* handle) {
  return guarded([&] {
    const std::span<const bool> lacking =
        absent != nullptr ? std::span<const bool>(absent, count) : std::span<const bool>();
    *handle = alive(engine).submit_prepared(group, {data, count}, lacking, stream, wake != 0);
  });
}

int hvdlite_release_prepared(hvdlite_engine* engine, int64_t group) {
  return guarded([&] { alive(engine).release_prepared(group); });
}

int hvdlite_order(hvdlite_engine* engine, int64_t handle, void* stream) {
  return guarded([&] { alive(engine).order(handle, stream); });
}

int hvdlite_poll(hvdlite_engine* engine, int64_t handle, int* done) {
  return guarded([&] { *done = alive(engine).poll(handle) ? 1 : 0; });
}

int hvdlite_wait(hvdlite_engine* engine, int64_t handle, double timeout_s, int* done) {
  return guarded([&] {
    const Batch batch = alive(engine).completions(handle);
    *done = engine->engine->wait(batch, base::from_seconds(timeout_s)) ? 1 : 0;
    if (*done == 0) return;
    for (size_t i = 0; i < batch.size; ++i) throw_failure(batch[i]);
  });
}

int hvdlite_outcomes(hvdlite_engine* engine, int64_t handle, int32_t* contributors, size_t capacity,
                     size_t* count) {
  return guarded([&] {
    const Batch batch = alive(engine).completions(handle);
    *count = batch.size;
    for (size_t i = 0; i < batch.size && i < capacity; ++i) {
      require(batch[i].is_done(), "the operations have not ended yet; wait for them first");
      contributors[i] = batch[i].failure ? -1 : batch[i].contributors;
    }
  });
}

int hvdlite_outcome_error(hvdlite_engine* engine, int64_t handle, size_t index) {
  return guarded([&] {
    const Batch batch = alive(engine).completions(handle);
    require(index < batch.size, "a handle has " + std::to_string(batch.size) + " operations");
    require(batch[index].is_done(), "the operation has not ended yet; wait for it first");
    throw_failure(batch[index]);
  });
}

int hvdlite_result_get(hvdlite_engine* engine, int64_t handle, hvdlite_result* out) {
  return guarded([&] {
    const Batch batch = alive(engine).completions(handle);
    const Completion& completion = single(batch);
    static const Output none;
    const Output& output = completion.output ? *completion.output : none;
    *out = {completion.contributors,
            completion.value,
            completion.value,
            static_cast<int32_t>(output.shape.size()),
            output.shape.data(),
            static_cast<int32_t>(output.received_splits.size()),
            output.received_splits.data(),
            static_cast<int64_t>(output.bytes),
            output.data(),
            output.device};
  });
}

hvdlite_block* hvdlite_result_take_block(hvdlite_engine* engine, int64_t handle) {
  hvdlite_block* block = nullptr;
  guarded([&] {
    const Batch batch = alive(engine).completions(handle);
    Completion& completion = single(batch);
    if (!completion.output || completion.output->data() == nullptr) return;
    Output& output = *completion.output;
    block = new hvdlite_block{.memory = std::move(output.block)};
    if (!output.gpu_block) return;
    block->gpu_memory = std::move(output.gpu_block);
    block->event = completion.event;
    block->gpu = completion.event->gpu().shared_from_this();
  });
  return block;
}

int hvdlite_release(hvdlite_engine* engine, int64_t handle) {
  return guarded([&] { alive(engine).release(handle); });
}

int hvdlite_block_create(hvdlite_engine* engine, size_t bytes, hvdlite_block** out) {
  return guarded([&] { *out = new hvdlite_block{.memory = alive(engine).new_output(bytes)}; });
}

void* hvdlite_block_data(const hvdlite_block* block) {
  return block->gpu_memory ? block->gpu_memory.data() : block->memory.data();
}

int32_t hvdlite_block_device(const hvdlite_block* block) {
  return block->gpu ? block->gpu->ordinal() : HVDLITE_DEVICE_CPU;
}

int hvdlite_block_copy(hvdlite_block* block, void* to, size_t bytes, void* stream) {
  return guarded([&] {
    require(block->gpu_memory && block->event, "the block is no result on a GPU");
    require(bytes <= block->gpu_memory.capacity(), "the block has fewer bytes");
    const auto order = static_cast<device::cuda::Stream>(stream);
    if (block->event) block->event->order(order);
    if (bytes > 0) block->gpu->copy(to, block->gpu_memory.data(), bytes, order);
    block->gpu_memory.free_after(block->gpu->record(order));
  });
}

void hvdlite_block_free(hvdlite_block* block) {
  if (block != nullptr && block->lent) hvdlite::engine::take_back(*block);
  delete block;
}
