// One execution of a collective op: from TensorFlow's tensors to the engine's requests, and back.
// Thread: made and started in the kernel's compute; an asynchronous one ends in a thread of the engine. Owns: references to its
// tensors and to the engine, from the start to the end. Blocks: only run(). Throws: std::bad_alloc.
//
// In GPU memory it begins in the order of TensorFlow's stream and has ended when its work is handed to the GPU and TensorFlow's
// stream comes after it: what TensorFlow does next with the result, and with the memory of the input, is in that stream.
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
  // Returns at once; `done` is called at the end.
  static void start(const Kernel& kernel, TF_OpKernelContext* context, DoneCallback done);

  KernelCall(const Kernel& kernel, TF_OpKernelContext* context, DoneCallback done);
  ~KernelCall();
  KernelCall(const KernelCall&) = delete;
  KernelCall& operator=(const KernelCall&) = delete;

 private:
  struct TensorPair {
    TF_Tensor* input = nullptr;   // null where its memory became the output's
    TF_Tensor* output = nullptr;  // until the end null where the engine allocates it
  };

  TensorPair& part(std::size_t index) {
    return more_parts_.empty() ? one_part_ : more_parts_[index];
  }

  // False if the op has failed.
  bool describe(KernelRequests& requests);
  void describe_tensor(KernelRequests& requests, std::size_t index, TF_Status* status);
  bool describe_splits(KernelRequests& requests);
  bool place_on_gpu(KernelRequests& requests);

  // The engine's code. wake: nobody is about to wait; with `then`, that is told of the end.
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
  void* stream_ = nullptr;  // TensorFlow's, where the tensors are in GPU memory
  std::size_t count_;
  bool memory_in_use_ =
      false;  // the transport may still write to the tensors: they are never freed
  TF_Tensor* splits_ = nullptr;
  // One tensor, the usual case, needs no memory beyond the object.
  TensorPair one_part_;
  std::vector<TensorPair> more_parts_;
  std::int64_t work_ = 0;
};

}  // namespace hvdlite::tensorflow
