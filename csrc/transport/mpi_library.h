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
// Throws Error(PeerLost) if MPI's `error` says that a rank is lost, and Error(System) for all other errors. The text is `where`
// and MPI's own text.
[[noreturn]] void refuse(const hvdlite_mpi* mpi, int error, const std::string& where);
// For init(): does nothing if `error` is 0. Otherwise throws as refuse() does. what: the call that has failed.
void check(const hvdlite_mpi* mpi, int error, const char* what);

}  // namespace hvdlite::transport
