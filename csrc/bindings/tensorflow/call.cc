#include "call.h"

#include <algorithm>
#include <memory>

#include "ending.h"
#include "gpu_stream.h"
#include "outputs.h"
#include "requests.h"
#include "status.h"

namespace hvdlite::tensorflow {
namespace {

bool has_input(KernelKind kind) {
  return kind != KernelKind::kBarrier && kind != KernelKind::kJoin;
}
// Is the output like the input, so that it may take over the input's memory?
bool has_output_like_input(KernelKind kind) {
  return kind == KernelKind::kAllreduce || kind == KernelKind::kBroadcast;
}

void free_block(void*, std::size_t, void* block) {
  hvdlite_block_free(static_cast<hvdlite_block*>(block));
}

// Makes a tensor over the block's memory; the tensor owns it. (TensorFlow copies memory that is not aligned enough.)
TF_Tensor* wrap(hvdlite_block* block, DataType dtype, const hvdlite_result& result) {
  return api().NewTensor(dtype, result.shape, result.ndim, hvdlite_block_data(block),
                         static_cast<std::size_t>(result.num_bytes), free_block, block);
}

}  // namespace

KernelCall::KernelCall(const Kernel& kernel, TF_OpKernelContext* context, DoneCallback done)
    : kernel_(kernel),
      context_(context),
      done_(std::move(done)),
      engine_(hvdlite_current_engine()),
      count_(kernel.requests().size()) {
  if (count_ > 1) more_parts_.resize(count_);
}

KernelCall::~KernelCall() {
  for (std::size_t i = 0; i < count_; ++i) {
    const TensorPair& at = part(i);
    if (memory_in_use_) continue;
    if (at.input != nullptr) api().DeleteTensor(at.input);
    if (at.output != nullptr) api().DeleteTensor(at.output);
  }
  if (splits_ != nullptr) api().DeleteTensor(splits_);
  hvdlite_engine_destroy(engine_);
}

void KernelCall::run(const Kernel& kernel, TF_OpKernelContext* context) {
  KernelCall call(kernel, context, DoneCallback());
  KernelRequests requests(kernel, context);
  if (!call.describe(requests)) return;
  if (const int code = call.submit(requests, /*wake=*/false); code != HVDLITE_OK) {
    fail_with_last_error(context, code);
    return;
  }
  call.collect();
}

void KernelCall::start(const Kernel& kernel, TF_OpKernelContext* context, DoneCallback done) {
  auto call = std::make_unique<KernelCall>(kernel, context, std::move(done));
  KernelRequests requests(kernel, context);
  if (!call->describe(requests)) return finish(std::move(call));
  KernelCall* in_flight = call.release();
  const int code = in_flight->submit(requests, /*wake=*/true, &KernelCall::ended);
  if (code == HVDLITE_OK) return;  // the call may have ended and been deleted, so do not touch it
  fail_with_last_error(context, code);
  finish(std::unique_ptr<KernelCall>(in_flight));
}

int KernelCall::submit(KernelRequests& requests, bool wake, hvdlite_done_fn then) {
  hvdlite_submission what{};
  what.requests = requests.data();
  what.count = count_;
  what.wake = wake ? 1 : 0;
  what.then = then;
  what.then_data = this;
  return hvdlite_submit(engine_, &what, &work_);
}

void KernelCall::ended(void* data) {
  std::unique_ptr<KernelCall> call(static_cast<KernelCall*>(data));
  call->collect();
  finish(std::move(call));
}

// TensorFlow may destroy the op's context as soon as `done` is called, so everything is released before.
void KernelCall::finish(std::unique_ptr<KernelCall> call) {
  const DoneCallback done = std::move(call->done_);
  call.reset();
  done();
}

// --- from tensors to requests ---------------------------------------------------------------------------------------

bool KernelCall::describe(KernelRequests& requests) {
  if (engine_ == nullptr) {
    fail_with_last_error(context_, HVDLITE_E_NOT_INITIALIZED);
    return false;
  }
  if (!has_input(kernel_.kind())) return true;
  const TfStatus status;
  for (std::size_t i = 0; i < count_ && status.ok(); ++i) describe_tensor(requests, i, status);
  if (kernel_.has_splits() && status.ok()) {
    api().GetInput(context_, 1, &splits_, status);
    if (status.ok() && !describe_splits(requests)) return false;
  }
  if (kernel_.is_weighted() && status.ok() && !describe_weight(requests, status)) return false;
  if (!status.ok()) api().OpKernelContext_Failure(context_, status);
  return status.ok() && (!kernel_.is_on_gpu() || place_on_gpu(requests));
}

// All tensors of an op are on one GPU. A tensor without bytes has no address to tell the GPU from.
bool KernelCall::place_on_gpu(KernelRequests& requests) {
  const hvdlite_request* begin = requests.data();
  const auto* some = std::find_if(begin, begin + count_, [](const hvdlite_request& request) {
    return std::find(request.shape, request.shape + request.ndim, 0) ==
           request.shape + request.ndim;
  });
  std::int32_t gpu = HVDLITE_DEVICE_CPU;
  const int code =
      hvdlite_gpu_of_address(engine_, some == begin + count_ ? nullptr : some->input, &gpu);
  if (code != HVDLITE_OK) {
    fail_with_last_error(context_, code);
    return false;
  }
  stream_ = gpu_stream_of(context_);
  for (std::size_t i = 0; i < count_; ++i) {
    requests[i].device = gpu;
    requests[i].stream = stream_;
  }
  return true;
}

void KernelCall::describe_tensor(KernelRequests& requests, std::size_t index, TF_Status* status) {
  const int place = static_cast<int>(index);
  TensorPair& at = part(index);
  hvdlite_request& request = requests[index];
  api().GetInput(context_, place, &at.input, status);
  if (api().GetCode(status) != kOk) return;
  requests.set_shape(index, at.input);
  request.input = api().TensorData(at.input);
  if (!has_output_like_input(kernel_.kind())) return;
  // The input's memory can become the output's if nothing else refers to it, not even this call.
  api().DeleteTensor(std::exchange(at.input, nullptr));
  int forwarded = -1;
  at.output = api().ForwardInputOrAllocateOutput(context_, &place, 1, place, request.shape,
                                                 request.ndim, &forwarded, status);
  if (api().GetCode(status) != kOk) return;
  request.output = api().TensorData(at.output);
  if (forwarded < 0) api().GetInput(context_, place, &at.input, status);
}

bool KernelCall::describe_splits(KernelRequests& requests) {
  const char* problem = nullptr;
  if (api().NumDims(splits_) != 1)
    problem = "alltoall expects a 1D splits tensor";
  else if (api().Dim(splits_, 0) == 0)
    problem = "Number of entries in splits (0) does not equal number of workers";
  if (problem != nullptr) {
    fail(context_, kInvalidArgument, problem);
    return false;
  }
  requests.set_splits(splits_);
  return true;
}

// The weight follows the tensors. The engine checks its value.
bool KernelCall::describe_weight(KernelRequests& requests, TF_Status* status) {
  TF_Tensor* tensor = nullptr;
  api().GetInput(context_, static_cast<int>(count_), &tensor, status);
  if (api().GetCode(status) != kOk) return true;
  const bool is_scalar = api().NumDims(tensor) == 0;
  if (is_scalar) {
    const double weight = *static_cast<const double*>(api().TensorData(tensor));
    for (std::size_t i = 0; i < count_; ++i) requests[i].weight = weight;
  } else {
    fail(context_, kInvalidArgument, "a weight is one number, without dimensions; pass a scalar");
  }
  api().DeleteTensor(tensor);
  return is_scalar;
}

// --- from results to tensors ----------------------------------------------------------------------------------------

void KernelCall::collect() {
  const int code = wait_for_end(engine_, work_);
  if (code != HVDLITE_OK) fail_with_last_error(context_, code);
  const int ordered =
      kernel_.is_on_gpu() ? hvdlite_order(engine_, work_, stream_) : int{HVDLITE_OK};
  if (ordered != HVDLITE_OK && code == HVDLITE_OK) fail_with_last_error(context_, ordered);
  memory_in_use_ = !memory_is_free(code) || !memory_is_free(ordered);
  give_outputs(code == HVDLITE_OK && ordered == HVDLITE_OK);
  hvdlite_release(engine_, work_);
}

// A failed call has no outputs. But one of its operations may have left memory in use.
void KernelCall::give_outputs(bool all_well) {
  hvdlite_result one{};
  std::vector<hvdlite_result> more(count_ > 1 ? count_ : 0);
  hvdlite_result* const results = more.empty() ? &one : more.data();
  std::size_t count = 0;
  if (hvdlite_results(engine_, work_, results, count_, &count) != HVDLITE_OK) return;
  const TfStatus status;
  for (std::size_t i = 0; i < count; ++i) {
    memory_in_use_ = memory_in_use_ || !memory_is_free(results[i].code);
    if (all_well && status.ok()) give_output(i, results[i], status);
  }
  if (!status.ok()) api().OpKernelContext_Failure(context_, status);
}

void KernelCall::give_output(std::size_t index, const hvdlite_result& result, TF_Status* status) {
  const KernelKind kind = kernel_.kind();
  if (has_output_like_input(kind) || kind == KernelKind::kBarrier) return;
  if (kind == KernelKind::kJoin) {
    give_integers(context_, 0, nullptr, 0, &result.last_joined_rank, status);
    return;
  }
  give_rows(index, result, status);
  if (kind != KernelKind::kAlltoall || api().GetCode(status) != kOk) return;
  const std::int64_t count = result.num_received_splits;
  const std::vector<std::int32_t> rows(result.received_splits, result.received_splits + count);
  give_integers(context_, 1, &count, 1, rows.data(), status);
}

// TensorFlow takes over the engine's output without a copy. GPU memory is copied: TensorFlow frees GPU memory as soon as its
// last use is enqueued, and only its own allocator handles that.
void KernelCall::give_rows(std::size_t index, const hvdlite_result& result, TF_Status* status) {
  const int place = static_cast<int>(index);
  const DataType dtype = kernel_.dtype(index);
  hvdlite_block* block = hvdlite_result_take_block(engine_, work_, index);
  TensorPair& at = part(index);
  if (block != nullptr && result.num_bytes > 0 && !kernel_.is_on_gpu()) {
    at.output = wrap(block, dtype, result);
    api().SetOutput(context_, place, at.output, status);
    return;
  }
  const auto bytes = static_cast<std::size_t>(result.num_bytes);
  at.output =
      api().AllocateOutput(context_, place, dtype, result.shape, result.ndim, bytes, status);
  if (block == nullptr) return;
  if (bytes > 0 && api().GetCode(status) == kOk) {
    const int code = hvdlite_block_copy(block, api().TensorData(at.output), bytes, stream_);
    if (code != HVDLITE_OK) api().SetStatus(status, status_code_of(code), hvdlite_last_error());
  }
  hvdlite_block_free(block);
}

}  // namespace hvdlite::tensorflow
