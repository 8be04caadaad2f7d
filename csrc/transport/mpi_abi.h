/* The only view of MPI the core has: opaque 64-bit handles and a table of functions.
 *
 * mpi_shim.cc includes mpi.h, is compiled once for each MPI found at build time, and fills the table. The core opens the shim
 * that fits the MPI that mpi4py has loaded. Unless its comment says something else, a function returns 0 or an error code of
 * that MPI (see error_text). The shim sets MPI_ERRORS_RETURN on every communicator that it makes or adopts, so an error there
 * does not abort the job. The caller's communicator keeps its own error handler until it is adopted. Thread: the caller
 * serialises calls, or MPI has the thread level multiple. */
#ifndef HVDLITE_TRANSPORT_MPI_ABI_H_
#define HVDLITE_TRANSPORT_MPI_ABI_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HVDLITE_MPI_ABI_VERSION 6

typedef struct hvdlite_mpi_comm {
  uint64_t bits;
} hvdlite_mpi_comm;
typedef struct hvdlite_mpi_request {
  uint64_t bits;
} hvdlite_mpi_request;

typedef struct hvdlite_mpi {
  int abi_version; /* HVDLITE_MPI_ABI_VERSION */
  int any_source;  /* MPI_ANY_SOURCE */

  int (*initialized)(int* flag);
  int (*finalized)(int* flag);
  int (*query_thread)(int* level); /* 0 single 1 funneled 2 serialized 3 multiple */

  /* From the address of an MPI_Comm (mpi4py: MPI._addressof(comm)). */
  int (*comm_from_address)(const void* address, hvdlite_mpi_comm* out);
  int (*comm_dup)(hvdlite_mpi_comm comm, hvdlite_mpi_comm* out);
  /* comm_idup does not wait for the other ranks. *out becomes the duplicate when test() says that the request is complete;
   * until then *out must stay at its address. comm_adopt sets the error handler of this duplicate, or of a communicator that
   * the shim has not made. */
  int (*comm_idup)(hvdlite_mpi_comm comm, hvdlite_mpi_comm* out, hvdlite_mpi_request* request);
  int (*comm_adopt)(hvdlite_mpi_comm comm);
  int (*comm_split_shared)(hvdlite_mpi_comm comm, int key,
                           hvdlite_mpi_comm* out); /* the ranks of this host */
  int (*comm_split)(hvdlite_mpi_comm comm, int color, int key, hvdlite_mpi_comm* out);
  int (*comm_free)(hvdlite_mpi_comm* comm);
  int (*comm_rank)(hvdlite_mpi_comm comm, int* rank);
  int (*comm_size)(hvdlite_mpi_comm comm, int* size);
  int (*tag_upper_bound)(hvdlite_mpi_comm comm, int* bound);

  /* Messages of `count` bytes, at most INT_MAX; the caller splits longer ones. */
  int (*isend)(const void* data, int count, int peer, int tag, hvdlite_mpi_comm comm,
               hvdlite_mpi_request* out);
  int (*irecv)(void* data, int count, int peer, int tag, hvdlite_mpi_comm comm,
               hvdlite_mpi_request* out);
  /* done 1: the request is complete and freed; for a receive, source and bytes are set. After an error the request is not
   * freed, and its memory must stay valid. comm: the request's communicator. If one of its ranks is lost, test() may report
   * that for any request on it. */
  int (*test)(hvdlite_mpi_request* request, hvdlite_mpi_comm comm, int* done, int* source,
              int* bytes);
  /* Asks MPI to withdraw the request; test() then tells when it is complete or withdrawn. */
  int (*cancel)(hvdlite_mpi_request* request);

  /* Blocking, in init() only. */
  int (*allgather)(const void* mine, int bytes, void* all, hvdlite_mpi_comm comm);
  int (*bcast)(void* data, int bytes, int root, hvdlite_mpi_comm comm);

  /* Fault tolerance (ULFM); null where this MPI has none. */
  int (*revoke)(hvdlite_mpi_comm comm);
  /* Returns a rank of comm that has failed and is not one of the `count` ranks in `known`; -1: there is none. */
  int (*failed_rank)(hvdlite_mpi_comm comm, const int* known, int count);

  /* 1: a process has failed, or the communicator was revoked */
  int (*is_loss)(int error);
  void (*error_text)(int error, char* text, int capacity);
} hvdlite_mpi;

/* The one symbol a shim exports. */
typedef const hvdlite_mpi* (*hvdlite_mpi_table_fn)(void);
__attribute__((visibility("default"))) const hvdlite_mpi* hvdlite_mpi_table(void);

#ifdef __cplusplus
}
#endif
#endif /* HVDLITE_TRANSPORT_MPI_ABI_H_ */
