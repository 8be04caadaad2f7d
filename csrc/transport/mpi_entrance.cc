// Why MPI_Comm_idup: MPI_Comm_dup may block until all ranks call it. MPI_Comm_idup does not, and open() polls its request.
//
//    MpiEntrance()    loads the shim, and begins the duplicate; with takes_comm there is none
//    open()           polls; when the duplicate is complete, comm_ gets its handle
//    take()           sets the error handler, and makes the transport
//    ~MpiEntrance()   if the duplicate is not complete: leaves its memory to MPI (release() frees nothing)
//
// For the transport each rank is alone on its host, and its pid is 0, which means unknown. So the transport has no control page
// and no window, and no other rank can ring its bell. All messages are MPI's, and JobDriver looks for them at short intervals.
// The ranks introduce themselves in messages (job/job.h).
#include "transport/mpi_entrance.h"

#include <utility>
#include <vector>

#include "transport/mpi_library.h"
#include "transport/mpi_transport.h"

namespace hvdlite::transport {

MpiEntrance::MpiEntrance(const char* shim_path, const void* comm_address, bool takes_comm)
    : mpi_(load_mpi(shim_path)), takes_threads_(transport::takes_threads(mpi_)) {
  check(mpi_, mpi_->comm_from_address(comm_address, &given_), "reading the communicator");
  check(mpi_, mpi_->comm_rank(given_, &rank_), "MPI_Comm_rank");
  if (takes_comm) {
    comm_ = given_;
  } else {
    duplicate_ = std::make_unique<Duplicate>();
    check(mpi_, mpi_->comm_idup(given_, &duplicate_->comm, &duplicate_->request), "MPI_Comm_idup");
  }
}

MpiEntrance::~MpiEntrance() { static_cast<void>(duplicate_.release()); }

// The request belongs to given_, on which MPI_Comm_idup was called. given_ still has the program's error handler, so an error
// may end this process instead of being returned.
bool MpiEntrance::open() {
  if (!duplicate_) return true;
  int done = 0, source = 0, bytes = 0;
  check(mpi_, mpi_->test(&duplicate_->request, given_, &done, &source, &bytes), "MPI_Comm_idup");
  if (done == 0) return false;
  comm_ = duplicate_->comm;
  duplicate_.reset();
  return true;
}

std::unique_ptr<Transport> MpiEntrance::take() {
  check(mpi_, mpi_->comm_adopt(comm_), "MPI_Comm_set_errhandler");
  int size = 0;
  check(mpi_, mpi_->comm_size(comm_, &size), "MPI_Comm_size");
  std::vector<MpiTransport::RankLocation> peers(static_cast<std::size_t>(size));
  for (int rank = 0; rank < size; ++rank) peers[static_cast<std::size_t>(rank)].leader = rank;
  return std::make_unique<MpiTransport>(mpi_, comm_, rank_, std::move(peers), nullptr, nullptr,
                                        false, MpiTransport::Limits{}, MpiTransport::kJobTag);
}

}  // namespace hvdlite::transport
