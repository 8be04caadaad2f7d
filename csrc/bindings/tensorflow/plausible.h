// Looks at what TensorFlow does not promise before it is used.
// Thread: any. Owns: nothing. Blocks: no. Throws: nothing.
#pragma once

namespace hvdlite::tensorflow {

// Does an address lie in the code of a loaded library?
bool is_code(const void* address);
// The pointer that lies at an address; false if nothing can be read there.
bool read_pointer(const void* address, const void** pointer);

}  // namespace hvdlite::tensorflow
