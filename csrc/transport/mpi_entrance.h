// Makes a transport for control messages between the ranks of an MPI communicator, without waiting for any rank. JobDriver uses
// it.
// Thread: one at a time. Owns: the duplicate of a communicator until take(). If it is destroyed before open() has returned
// true, it leaks the duplicate, because MPI may still write the duplicate's handle. Blocks: never. Throws: what load_mpi()
// throws (mpi_library.h), and Error(System, PeerLost) if MPI refuses.
#pragma once

#include <memory>

#include "transport/mpi_abi.h"
#include "transport/transport.h"

namespace hvdlite::transport {

class MpiEntrance {
 public:
  // comm_address: the address of an MPI_Comm. All ranks of the communicator must make an MpiEntrance. takes_comm: the transport
  // uses the communicator itself instead of a duplicate.
  MpiEntrance(const char* shim_path, const void* comm_address, bool takes_comm);
  ~MpiEntrance();
  MpiEntrance(const MpiEntrance&) = delete;
  MpiEntrance& operator=(const MpiEntrance&) = delete;

  // Returns true when messages can be sent. A duplicate of the communicator is complete only when all ranks have called this.
  // Call it until it returns true.
  bool open();
  // Call it once, when open() has returned true. The transport knows no names, treats each rank as alone on its host, and has
  // no shared memory.
  std::unique_ptr<Transport> take();
  // Does MPI allow one thread to use this communicator while another thread uses another communicator?
  bool takes_threads() const { return takes_threads_; }

 private:
  // MPI writes both members until open() has returned true, so they stay at their address.
  struct Duplicate {
    hvdlite_mpi_comm comm = {};
    hvdlite_mpi_request request = {};
  };

  const hvdlite_mpi* mpi_;
  bool takes_threads_;
  hvdlite_mpi_comm given_ = {};
  hvdlite_mpi_comm comm_ = {};            // set when it can be used
  std::unique_ptr<Duplicate> duplicate_;  // null: it is complete, or none is made
  int rank_ = 0;
};

}  // namespace hvdlite::transport
