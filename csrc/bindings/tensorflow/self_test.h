// Tests two assumptions about this TensorFlow: that kernels may end after their compute has returned (done_callback.h), and that
// the stream found for a GPU is the one in which TensorFlow works (gpu_stream.h).
// Thread: any. Owns: one flag of the process. Blocks: no. Throws: nothing.
#pragma once

namespace hvdlite::tensorflow {

// False until hvdlite_tensorflow_use_async(). Until then kernels wait inside compute, which always works, but occupies a thread
// of TensorFlow for each.
bool async_works();

// HvdliteSelfTest: gives 1 from another thread, after its compute has returned, or 0 if this TensorFlow does not let it.
//
// HvdliteStreamSelfTest, on GPUs: reads a number in GPU memory, of which the caller knows that it will be `expected`, in the order of
// the stream that it finds. It gives
//   1  if it was that number, and the stream had still work to do when it was asked: so this is TensorFlow's;
//   0  if the stream had none: then the number may have been there anyway, and nothing is proved;
//  -1  if there is no stream where it should be; -2 if it was another number.
void register_self_tests();

}  // namespace hvdlite::tensorflow
