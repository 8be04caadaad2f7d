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

bool has_input(std::int32_t kind) { return kind != HVDLITE_BARRIER && kind != HVDLITE_JOIN; }
// Is the output like the input, so that it may take over the input's memory?
bool has_output_like_input(std::int32_t kind) {
  return kind == HVDLITE_ALLREDUCE || kind == HVDLITE_BROADCAST;
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
      tensors_(kernel.requests().size()) {}

KernelCall::~KernelCall() {
  for (const TensorPair& at : tensors_) {
    if (memory_in_use_) break;
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
  what.count = tensors_.size();
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
  const TfStatus status;
  const std::size_t inputs = has_input(kernel_.kind()) ? tensors_.size() : 0;
  if (engine_ == nullptr) set_last_error(status, HVDLITE_E_NOT_INITIALIZED);
  for (std::size_t i = 0; i < inputs && status.ok(); ++i) describe_tensor(requests, i, status);
  if (kernel_.has_splits() && status.ok()) describe_splits(requests, status);
  if (kernel_.is_weighted() && status.ok()) describe_weight(requests, status);
  if (kernel_.is_on_gpu() && status.ok()) place_on_gpu(requests, status);
  if (!status.ok()) api().OpKernelContext_Failure(context_, status);
  return status.ok();
}

// All tensors of an op are on one GPU. The address of any tensor that has bytes tells which GPU.
void KernelCall::place_on_gpu(KernelRequests& requests, TF_Status* status) {
  const hvdlite_request* begin = requests.data();
  const hvdlite_request* end = begin + tensors_.size();
  const auto* some = std::find_if(begin, end, [](const hvdlite_request& request) {
    return std::find(request.shape, request.shape + request.ndim, 0) ==
           request.shape + request.ndim;
  });
  std::int32_t gpu = HVDLITE_DEVICE_CPU;
  const int code = hvdlite_gpu_of_address(engine_, some == end ? nullptr : some->input, &gpu);
  if (code != HVDLITE_OK) return set_last_error(status, code);
  stream_ = gpu_stream_of(context_);
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    requests[i].device = gpu;
    requests[i].stream = stream_;
  }
}

void KernelCall::describe_tensor(KernelRequests& requests, std::size_t index, TF_Status* status) {
  const int place = static_cast<int>(index);
  TensorPair& at = tensors_[index];
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

void KernelCall::describe_splits(KernelRequests& requests, TF_Status* status) {
  api().GetInput(context_, 1, &splits_, status);
  if (api().GetCode(status) != kOk) return;
  if (api().NumDims(splits_) != 1) {
    api().SetStatus(status, kInvalidArgument, "alltoall expects a 1D splits tensor");
  } else if (api().Dim(splits_, 0) == 0) {
    api().SetStatus(status, kInvalidArgument,
                    "Number of entries in splits (0) does not equal number of workers");
  } else {
    requests.set_splits(splits_);
  }
}

// The weight follows the tensors. The engine checks its value.
void KernelCall::describe_weight(KernelRequests& requests, TF_Status* status) {
  TF_Tensor* tensor = nullptr;
  api().GetInput(context_, static_cast<int>(tensors_.size()), &tensor, status);
  if (api().GetCode(status) != kOk) return;
  if (api().NumDims(tensor) == 0) {
    const double weight = *static_cast<const double*>(api().TensorData(tensor));
    for (std::size_t i = 0; i < tensors_.size(); ++i) requests[i].weight = weight;
  } else {
    api().SetStatus(status, kInvalidArgument,
                    "a weight is one number, without dimensions; pass a scalar");
  }
  api().DeleteTensor(tensor);
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
  std::vector<hvdlite_result> results(tensors_.size());
  std::size_t count = 0;
  if (hvdlite_results(engine_, work_, results.data(), results.size(), &count) != HVDLITE_OK) return;
  const TfStatus status;
  for (std::size_t i = 0; i < count; ++i) {
    memory_in_use_ = memory_in_use_ || !memory_is_free(results[i].code);
    if (all_well && status.ok()) give_output(i, results[i], status);
  }
  if (!status.ok()) api().OpKernelContext_Failure(context_, status);
}

void KernelCall::give_output(std::size_t index, const hvdlite_result& result, TF_Status* status) {
  const std::int32_t kind = kernel_.kind();
  if (has_output_like_input(kind) || kind == HVDLITE_BARRIER) return;
  if (kind == HVDLITE_JOIN) {
    give_integers(context_, 0, nullptr, 0, &result.last_joined_rank, status);
    return;
  }
  give_rows(index, result, status);
  if (kind != HVDLITE_ALLTOALL || api().GetCode(status) != kOk) return;
  const std::int64_t count = result.num_received_splits;
  const std::vector<std::int32_t> rows(result.received_splits, result.received_splits + count);
  give_integers(context_, 1, &count, 1, rows.data(), status);
}

// In host memory TensorFlow takes over the engine's output without a copy. In GPU memory the output is copied: TensorFlow frees
// a tensor on a GPU as soon as the tensor's last use is enqueued, and only TensorFlow's own allocator is made for that.
void KernelCall::give_rows(std::size_t index, const hvdlite_result& result, TF_Status* status) {
  const int place = static_cast<int>(index);
  hvdlite_block* block = hvdlite_result_take_block(engine_, work_, index);
  TensorPair& at = tensors_[index];
  const DataType dtype = api().TensorType(at.input);
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
    if (code != HVDLITE_OK) set_last_error(status, code);
  }
  hvdlite_block_free(block);
}

}  // namespace hvdlite::tensorflow
