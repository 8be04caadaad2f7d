// The collective ops: their definitions and kernels, registered once for the process.
// Thread: the one that loads the library. Owns: nothing. Blocks: no. Throws: nothing.
#pragma once

namespace hvdlite::tensorflow {

void register_collectives();

}  // namespace hvdlite::tensorflow
