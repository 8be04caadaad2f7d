// The ops, which library.cc registers once for the process.
// Thread: the one that loads the library; async_works(): any. Owns: one flag of the process. Blocks: no. Throws: nothing.
#pragma once

namespace hvdlite::tensorflow {

void register_collectives();

// Ops for size, rank and the like. They are evaluated when a graph runs, since another process may have made the graph, or this
// one before init().
void register_values();

// If Python code in a graph gets an error from hvdlite, the op HvdliteOutcome makes the graph fail with this error. If the
// Python code raised instead, TensorFlow would give most exceptions the status UNKNOWN. Inputs: an error code of hvdlite.h, and
// the error's text as bytes. The op fails with the status of the code; for HVDLITE_OK it gives 0.
void register_outcome();

// Two ops that test assumptions about this TensorFlow.
//
// HvdliteSelfTest: may kernels end after their compute has returned (done_callback.h)? If they may, the op gives 1 from another
// thread after its compute has returned; otherwise the op gives 0.
//
// HvdliteStreamSelfTest, on GPUs: is the stream found for a GPU the one in which TensorFlow works (gpu_stream.h)? It finds the
// stream, and reads a number in GPU memory in the order of this stream. The caller knows that TensorFlow's work will set the
// number to `expected`. The op gives
//   1  if the number was `expected`, and the stream had unfinished work before the read: the stream is TensorFlow's;
//   0  if the number was `expected`, but the stream had no work: the number may have been set earlier, and nothing is proved;
//  -1  if there is no stream at the expected place; -2 if the number was another one.
void register_self_tests();
// False until hvdlite_tensorflow_use_async(). Until then each kernel waits inside compute, which always works, but occupies a
// thread of TensorFlow.
bool async_works();

}  // namespace hvdlite::tensorflow
