// The CUDA stream in which TensorFlow's own kernels run on the GPU of an op.
// Thread: the kernel's. Owns: nothing. Blocks: no. Throws: nothing.
//
// TensorFlow's C API has no function for it (TF_GetStream is for devices that are plug-ins). TensorFlow's C++ kernels call
// OpKernelContext::eigen_device<Eigen::GpuDevice>(), which every build exports. This file looks the function up by its symbol,
// so it need not know the layout of the context. The function returns Eigen's GpuDevice, whose first member points to a
// StreamInterface. Its first virtual function after the two of the destructor returns a reference to the stream. TensorFlow and
// Eigen do not promise this layout. So hvdlite uses the layout only if the knob tensorflow_gpu_streams is on, and
// hvdlite/tensorflow/library.py runs the op HvdliteStreamSelfTest (self_test.cc) on each GPU before any collective relies on
// the layout.
#pragma once

#include "tf_api.h"

namespace hvdlite::tensorflow {

// Does this TensorFlow have that function?
bool has_gpu_streams();
// The stream of the op's GPU. Checks at each step that the data can be what is expected; if they cannot, returns null.
void* checked_gpu_stream_of(TF_OpKernelContext* context);
// The same without checks, after the self-test has passed. The context must be of a kernel on a GPU.
void* gpu_stream_of(TF_OpKernelContext* context);

}  // namespace hvdlite::tensorflow
