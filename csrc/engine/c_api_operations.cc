// The part of the C ABI about operations: submit, wait, results and the memory they lie in.

#include <cstring>
#include <utility>

#include "engine/c_api.h"

using hvdlite::base::Error;
using hvdlite::engine::alive;
using hvdlite::engine::CompletionPtr;
using hvdlite::engine::guarded;
using hvdlite::engine::OutputCache;
using hvdlite::engine::Request;
using hvdlite::engine::require;
using hvdlite::engine::Submission;

struct hvdlite_block {
  OutputCache::Block memory;
};

namespace {

template <typename Enum>
Enum checked(std::int32_t code, int limit, const char* what) {
  require(code >= 0 && code < limit, what);
  return static_cast<Enum>(code);
}

Submission to_submission(const hvdlite_request& from) {
  using namespace hvdlite::base;
  Submission submission;
  Request& request = submission.request;
  require(from.name != nullptr && from.name[0] != '\0', "a request needs a name");
  request.name = from.name;
  request.kind = checked<OpKind>(from.kind, kNumOpKinds, "unknown kind of operation");
  request.dtype = checked<DType>(from.dtype, kNumDTypes, "unknown dtype");
  request.op =
      checked<ReduceOp>(from.op, static_cast<int>(ReduceOp::kProduct) + 1, "unknown reduce op");
  request.set.id = from.process_set;
  request.absent = (from.flags & HVDLITE_FLAG_ABSENT) != 0;
  request.root = from.root;
  request.device = from.device;
  request.layout = from.layout;
  request.prescale = from.prescale;
  request.postscale = from.postscale;
  if (from.group != nullptr) request.group = from.group;
  request.group_size = request.group.empty() ? 0 : from.group_size;
  request.group_index = request.group.empty() ? 0 : from.group_index;
  if (from.ndim > 0) request.shape.assign(from.shape, from.shape + from.ndim);
  if (from.num_splits > 0) request.splits.assign(from.splits, from.splits + from.num_splits);
  submission.input = from.input;
  submission.output = from.output;
  return submission;
}

}  // namespace

int hvdlite_submit(hvdlite_engine* engine, const hvdlite_request* requests, size_t count, int wake,
                   int64_t* handles) {
  return guarded([&] {
    std::vector<Submission> submissions;
    submissions.reserve(count);
    for (size_t i = 0; i < count; ++i) submissions.push_back(to_submission(requests[i]));
    const std::vector<int64_t> given = alive(engine).submit(std::move(submissions), wake != 0);
    std::memcpy(handles, given.data(), count * sizeof(int64_t));
  });
}

int hvdlite_request_hashes(const hvdlite_request* request, uint64_t* name, uint64_t* content) {
  return guarded([&] {
    Request built = to_submission(*request).request;
    built.seal();
    *name = built.name_hash;
    *content = built.content_hash;
  });
}

int hvdlite_poll(hvdlite_engine* engine, int64_t handle, int* done) {
  return guarded([&] { *done = alive(engine).poll(handle) ? 1 : 0; });
}

int hvdlite_wait(hvdlite_engine* engine, int64_t handle, double timeout_s, int* done) {
  return guarded([&] {
    *done = alive(engine).wait(handle, hvdlite::base::from_seconds(timeout_s)) ? 1 : 0;
    if (*done == 0) return;
    const CompletionPtr completion = engine->engine->completion(handle);
    if (!completion->status.ok()) throw Error(completion->status.code, completion->status.message);
  });
}

int hvdlite_result_get(hvdlite_engine* engine, int64_t handle, hvdlite_result* out) {
  return guarded([&] {
    const CompletionPtr completion = alive(engine).completion(handle);
    require(completion->done.load(std::memory_order_acquire) != 0,
            "the operation has not ended yet; wait for it first");
    *out = {completion->contributors,
            completion->value,
            completion->value,
            static_cast<int32_t>(completion->shape.size()),
            completion->shape.data(),
            static_cast<int32_t>(completion->received_splits.size()),
            completion->received_splits.data(),
            static_cast<int64_t>(completion->output_bytes),
            completion->output.data()};
  });
}

hvdlite_block* hvdlite_result_take_block(hvdlite_engine* engine, int64_t handle) {
  hvdlite_block* block = nullptr;
  guarded([&] {
    const CompletionPtr completion = alive(engine).completion(handle);
    if (completion->output.data() == nullptr) return;
    block = new hvdlite_block{std::move(completion->output)};
  });
  return block;
}

int hvdlite_release(hvdlite_engine* engine, int64_t handle) {
  return guarded([&] { alive(engine).release(handle); });
}

int hvdlite_block_create(hvdlite_engine* engine, size_t bytes, hvdlite_block** out) {
  return guarded([&] { *out = new hvdlite_block{alive(engine).new_output(bytes)}; });
}

void* hvdlite_block_data(const hvdlite_block* block) { return block->memory.data(); }

void hvdlite_block_free(hvdlite_block* block) { delete block; }
