// One execution of a collective op: makes the engine's requests from TensorFlow's tensors, and tensors from the results.
// Thread: the kernel's compute makes and starts it; a thread that drives the engine ends an asynchronous one. Owns: references
// to its tensors and to the engine, from start to end. Blocks: only run(). Throws: std::bad_alloc.
//
// If its tensors are in GPU memory, an execution begins in the order of TensorFlow's stream. It ends when its copies and
// kernels are enqueued and TensorFlow's stream is ordered after them. TensorFlow uses the result, and reuses the input's
// memory, in this stream.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "done_callback.h"
#include "kernel.h"

namespace hvdlite::tensorflow {

class KernelRequests;

class KernelCall {
 public:
  // Returns at the end.
  static void run(const Kernel& kernel, TF_OpKernelContext* context);
  // Returns at once. `done` is called at the end, perhaps before this returns.
  static void start(const Kernel& kernel, TF_OpKernelContext* context, DoneCallback done);

  KernelCall(const Kernel& kernel, TF_OpKernelContext* context, DoneCallback done);
  ~KernelCall();
  KernelCall(const KernelCall&) = delete;
  KernelCall& operator=(const KernelCall&) = delete;

 private:
  struct TensorPair {
    TF_Tensor* input = nullptr;   // null if the output took over its memory
    TF_Tensor* output = nullptr;  // null until the end if the engine allocates it
  };

  // Returns false if the op has failed.
  bool describe(KernelRequests& requests);
  void describe_tensor(KernelRequests& requests, std::size_t index, TF_Status* status);
  void describe_splits(KernelRequests& requests, TF_Status* status);
  void describe_weight(KernelRequests& requests, TF_Status* status);
  void place_on_gpu(KernelRequests& requests, TF_Status* status);

  // Returns the engine's code. wake: wake the engine thread, because no thread is about to wait. then: is called at the end.
  int submit(KernelRequests& requests, bool wake, hvdlite_done_fn then = nullptr);
  void collect();
  void give_outputs(bool all_well);
  void give_output(std::size_t index, const hvdlite_result& result, TF_Status* status);
  void give_rows(std::size_t index, const hvdlite_result& result, TF_Status* status);

  static void ended(void* call);
  static void finish(std::unique_ptr<KernelCall> call);

  const Kernel& kernel_;
  TF_OpKernelContext* context_;
  DoneCallback done_;
  hvdlite_engine* engine_;
  void* stream_ = nullptr;  // TensorFlow's, if the tensors are in GPU memory
  // True: the transport may still write to the tensors, so they are never freed.
  bool memory_in_use_ = false;
  TF_Tensor* splits_ = nullptr;
  std::vector<TensorPair> tensors_;
  std::int64_t work_ = 0;
};

}  // namespace hvdlite::tensorflow
