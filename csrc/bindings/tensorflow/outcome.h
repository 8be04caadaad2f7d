// The op HvdliteOutcome makes an error that Python code in a graph got from hvdlite the error of the graph. TensorFlow itself
// gives most exceptions of Python code in a graph the status UNKNOWN.
// Thread: the one that loads the library. Owns: nothing. Blocks: no. Throws: nothing.
#pragma once

namespace hvdlite::tensorflow {

// Inputs: an error code of hvdlite.h, and the error's text as bytes. The op fails with the status of the code; for HVDLITE_OK
// it gives 0.
void register_outcome();

}  // namespace hvdlite::tensorflow
