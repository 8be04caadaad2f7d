// Ops for size, rank and the like. They are evaluated when a graph runs, since another process may have made the graph, or this
// one before init().
// Thread: the one that loads the library. Owns: nothing. Blocks: no. Throws: nothing.
#pragma once

namespace hvdlite::tensorflow {

void register_values();

}  // namespace hvdlite::tensorflow
