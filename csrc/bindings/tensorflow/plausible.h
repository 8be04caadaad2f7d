// Checks data whose layout TensorFlow does not promise, before it is used.
// Thread: any. Owns: nothing. Blocks: no. Throws: nothing.
#pragma once

namespace hvdlite::tensorflow {

// Does an address lie in the code of a loaded library?
bool is_code(const void* address);
// Reads the pointer at an address. Returns false if that memory cannot be read.
bool read_pointer(const void* address, const void** pointer);

}  // namespace hvdlite::tensorflow
