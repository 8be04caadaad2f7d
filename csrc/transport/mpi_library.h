// The MPI that Python has loaded, as the function table of the matching shim.
// Thread: any. Owns: nothing; the shim stays loaded. Blocks: no. Throws: Error(System) if MPI or the shim refuses,
// Error(PeerLost) if MPI reports a lost rank, Error(Unsupported) for too low a thread level, with the remedy.
#pragma once

#include <string>

#include "transport/mpi_abi.h"

namespace hvdlite::transport {

const hvdlite_mpi* load_mpi(const char* shim_path);
// May several threads call MPI at the same time?
bool takes_threads(const hvdlite_mpi* mpi);
// Throws an error of MPI: Error(PeerLost) if it reports a lost rank. The text is `where` and what MPI says.
[[noreturn]] void refuse(const hvdlite_mpi* mpi, int error, const std::string& where);
// Throws MPI's error text after a failed function of init().
void check(const hvdlite_mpi* mpi, int error, const char* what);

}  // namespace hvdlite::transport
