// The MPI that Python has loaded, by the function table of the shim that fits it.
// Thread: any. Owns: nothing; the shim stays loaded. Blocks: no. Throws: Error(System) if MPI or the shim refuses,
// Error(PeerLost) where it says that a rank is lost, Error(Unsupported) for too low a thread level, naming the remedy.
#pragma once

#include "transport/mpi_abi.h"

namespace hvdlite::transport {

const hvdlite_mpi* load_mpi(const char* shim_path);
// May several threads call it at once?
bool takes_threads(const hvdlite_mpi* mpi);
// Throws what MPI says where a function of init has failed.
void check(const hvdlite_mpi* mpi, int error, const char* what);

}  // namespace hvdlite::transport
