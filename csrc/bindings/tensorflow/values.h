// Ops for size, rank and so on, evaluated when a graph runs: it may have been made by another process, or before init().
// Thread: the one that loads the library. Owns: nothing. Blocks: no. Throws: nothing.
#pragma once

namespace hvdlite::tensorflow {

void register_values();

}  // namespace hvdlite::tensorflow
