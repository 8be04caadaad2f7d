// Whether kernels may end after their compute has returned (done_callback.h says what is in doubt).
// Thread: any. Owns: one flag of the process. Blocks: no. Throws: nothing.
#pragma once

namespace hvdlite::tensorflow {

// False until hvdlite_tensorflow_use_async: until then the kernels wait inside compute, which is always right, but takes one of
// TensorFlow's threads each.
bool async_works();

// HvdliteSelfTest: gives 1 from another thread, after its compute has returned, or 0 if this TensorFlow does not let it.
void register_self_test();

}  // namespace hvdlite::tensorflow
