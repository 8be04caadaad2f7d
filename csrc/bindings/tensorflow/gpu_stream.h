// The CUDA stream in which TensorFlow's own kernels run on the GPU of an op.
// Thread: the kernel's. Owns: nothing. Blocks: no. Throws: nothing.
//
// TensorFlow's C API does not tell it (TF_GetStream is for devices that are plug-ins). Its kernels in C++ ask
// OpKernelContext::eigen_device<Eigen::GpuDevice>(), which every build exports: it is looked up by its symbol, and knows how the
// context is laid out. What it returns is Eigen's: the first member of GpuDevice points to a StreamInterface, whose first virtual
// function after the two of its destructor returns a reference to the stream. Nobody promises that. So it is opt-in, and
// hvdlite/tensorflow/library.py has the op HvdliteStreamSelfTest (self_test.cc) prove it on each GPU before any collective relies
// on it.
#pragma once

#include "tf_api.h"

namespace hvdlite::tensorflow {

// Does this TensorFlow have that function?
bool has_gpu_streams();
// Checks at each step that the data can be what is expected. Returns null if not.
void* checked_gpu_stream_of(TF_OpKernelContext* context);
// The same without checks, after the self-test has passed. The context must be of a kernel on a GPU.
void* gpu_stream_of(TF_OpKernelContext* context);

}  // namespace hvdlite::tensorflow
