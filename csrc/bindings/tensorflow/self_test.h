// Tests two assumptions about this TensorFlow: that kernels may end after their compute has returned (done_callback.h), and
// that the stream found for a GPU is the one in which TensorFlow works (gpu_stream.h).
// Thread: any. Owns: one flag of the process. Blocks: no. Throws: nothing.
#pragma once

namespace hvdlite::tensorflow {

// False until hvdlite_tensorflow_use_async(). Until then kernels wait inside compute, which always works, but occupies a thread
// of TensorFlow for each.
bool async_works();

// HvdliteSelfTest: gives 1 from another thread, after its compute has returned, or 0 if this TensorFlow does not let it.
//
// HvdliteStreamSelfTest, on GPUs: finds the stream, and reads a number in GPU memory in the order of this stream. The caller
// knows that TensorFlow's work will set the number to `expected`. The op gives
//   1  if the number was `expected`, and the stream still had work to do before: the stream is TensorFlow's;
//   0  if the stream had no work: the number may have been set before, and nothing is proved;
//  -1  if there is no stream at the expected place; -2 if the number was another one.
void register_self_tests();

}  // namespace hvdlite::tensorflow
