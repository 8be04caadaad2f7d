// The table of mpi_abi.h for one MPI. This file is compiled once for each MPI found at build time, so it includes mpi.h and
// knows that MPI's handles and constants. It needs no other file of hvdlite than mpi_abi.h, and links only to MPI.
//
// What differs between the MPIs, and where it is hidden:
//
//                             Open MPI                       MPICH's family        hidden by
//    handles                  pointers                       ints                  wrap(), unwrap()
//    constants                its own values                 its own values        query_thread(), any_source
//    fault tolerance          in some builds (weak symbols)  not used              revoke, failed_rank: null without it
//
// The life of a request: isend(), irecv() or comm_idup() makes it, and its handle lies in the caller's hvdlite_mpi_request.
// Each test() first asks MPI for its state, which frees nothing (the comment of test() says why):
//
//    MPI_Request_get_status         test()
//    fails                          returns the error; the request stays
//    says: not complete             done 0; some of these polls ask for lost ranks, and return that as an error
//    says: complete, with an error  returns the error; the request stays
//    says: complete                 MPI_Test frees the request; done 1
//
// Threads: this file has no state but a counter for each thread. So two threads may use it at once if MPI allows that.
#include <mpi.h>
#if defined(OPEN_MPI) && OPEN_MPI
#include <mpi-ext.h>
#endif

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <type_traits>

#include "transport/mpi_abi.h"

// Some builds of Open MPI have fault tolerance. These symbols are weak, so that an absent function is null and does not prevent
// loading. MPICH declares the same functions, but its ch4 device does not implement them.
#if defined(OPEN_MPI) && OPEN_MPI && defined(MPIX_ERR_PROC_FAILED)
#define HVDLITE_SHIM_ULFM 1
#pragma weak MPIX_Comm_revoke
#pragma weak MPIX_Comm_is_revoked
#pragma weak MPIX_Comm_get_failed
#else
#define HVDLITE_SHIM_ULFM 0
#endif

namespace {

// An MPI_Comm is a pointer in Open MPI and an int in MPICH; either fits into the opaque bits.
template <typename Opaque, typename Handle>
Opaque wrap(Handle handle) {
  static_assert(sizeof(Handle) <= sizeof(Opaque::bits) && std::is_trivially_copyable_v<Handle>);
  Opaque opaque{0};
  std::memcpy(&opaque.bits, &handle, sizeof(handle));
  return opaque;
}

template <typename Handle, typename Opaque>
Handle unwrap(const Opaque& opaque) {
  static_assert(sizeof(Handle) <= sizeof(Opaque::bits) && std::is_trivially_copyable_v<Handle>);
  Handle handle;
  std::memcpy(&handle, &opaque.bits, sizeof(handle));
  return handle;
}

MPI_Comm comm_of(hvdlite_mpi_comm comm) { return unwrap<MPI_Comm>(comm); }

// A new communicator inherits the error handler of the one from which it was made, and that handler may end the job.
int adopt(MPI_Comm comm, hvdlite_mpi_comm* out) {
  *out = wrap<hvdlite_mpi_comm>(comm);
  return MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
}

// --- the library ---------------------------------------------------------------------------------------------------------

// MPI fixes only the order of its thread levels, not their values.
int query_thread(int* level) {
  int provided = MPI_THREAD_SINGLE;
  const int error = MPI_Query_thread(&provided);
  *level = provided == MPI_THREAD_MULTIPLE     ? 3
           : provided == MPI_THREAD_SERIALIZED ? 2
           : provided == MPI_THREAD_FUNNELED   ? 1
                                               : 0;
  return error;
}

// --- communicators -------------------------------------------------------------------------------------------------------

int comm_from_address(const void* address, hvdlite_mpi_comm* out) {
  MPI_Comm comm;
  std::memcpy(&comm, address, sizeof(comm));
  *out = wrap<hvdlite_mpi_comm>(comm);
  return MPI_SUCCESS;
}

int comm_dup(hvdlite_mpi_comm comm, hvdlite_mpi_comm* out) {
  MPI_Comm result = MPI_COMM_NULL;
  const int error = MPI_Comm_dup(comm_of(comm), &result);
  return error != MPI_SUCCESS ? error : adopt(result, out);
}

// Does not set the error handler, because the duplicate exists only when the request is complete. comm_adopt() sets it then.
int comm_idup(hvdlite_mpi_comm comm, hvdlite_mpi_comm* out, hvdlite_mpi_request* request) {
  // MPI writes the handle to the first bytes of `bits`, from where unwrap() reads it.
  static_assert(sizeof(MPI_Comm) <= sizeof(out->bits));
  *out = wrap<hvdlite_mpi_comm>(MPI_COMM_NULL);
  MPI_Request made = MPI_REQUEST_NULL;
  const int error = MPI_Comm_idup(comm_of(comm), reinterpret_cast<MPI_Comm*>(&out->bits), &made);
  *request = wrap<hvdlite_mpi_request>(made);
  return error;
}

int comm_adopt(hvdlite_mpi_comm comm) {
  return MPI_Comm_set_errhandler(comm_of(comm), MPI_ERRORS_RETURN);
}

int comm_split_shared(hvdlite_mpi_comm comm, int key, hvdlite_mpi_comm* out) {
  MPI_Comm result = MPI_COMM_NULL;
  const int error =
      MPI_Comm_split_type(comm_of(comm), MPI_COMM_TYPE_SHARED, key, MPI_INFO_NULL, &result);
  return error != MPI_SUCCESS ? error : adopt(result, out);
}

int comm_split(hvdlite_mpi_comm comm, int color, int key, hvdlite_mpi_comm* out) {
  MPI_Comm result = MPI_COMM_NULL;
  const int error = MPI_Comm_split(comm_of(comm), color, key, &result);
  return error != MPI_SUCCESS ? error : adopt(result, out);
}

int comm_free(hvdlite_mpi_comm* comm) {
  MPI_Comm handle = comm_of(*comm);
  const int error = MPI_Comm_free(&handle);
  *comm = wrap<hvdlite_mpi_comm>(handle);
  return error;
}

int comm_rank(hvdlite_mpi_comm comm, int* rank) { return MPI_Comm_rank(comm_of(comm), rank); }

int comm_size(hvdlite_mpi_comm comm, int* size) { return MPI_Comm_size(comm_of(comm), size); }

int tag_upper_bound(hvdlite_mpi_comm comm, int* bound) {
  int* value = nullptr;
  int found = 0;
  int error = MPI_Comm_get_attr(comm_of(comm), MPI_TAG_UB, static_cast<void*>(&value), &found);
  if (error == MPI_SUCCESS && found == 0) {  // the standard promises it only for MPI_COMM_WORLD
    error = MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&value), &found);
  }
  *bound = found != 0 ? *value : 32767;  // the smallest bound that the standard allows
  return error;
}

// --- failures ------------------------------------------------------------------------------------------------------------

#if HVDLITE_SHIM_ULFM
// Open MPI's MPI_Request_get_status ignores failures, so some polls ask the communicator. A revoked communicator counts as a
// loss, because a rank that fails in init() revokes it (Revoking in mpi_env.cc). A communicator that cannot be asked counts as
// healthy, because a wrong report would end the job.
int health(MPI_Comm comm) {
  if (MPIX_Comm_is_revoked == nullptr || MPIX_Comm_get_failed == nullptr) return MPI_SUCCESS;
  int revoked = 0;
  MPIX_Comm_is_revoked(comm, &revoked);
  if (revoked != 0) return MPIX_ERR_REVOKED;
  MPI_Group failed = MPI_GROUP_NULL;
  if (MPIX_Comm_get_failed(comm, &failed) != MPI_SUCCESS) return MPI_SUCCESS;
  int count = 0;
  MPI_Group_size(failed, &count);
  if (failed != MPI_GROUP_EMPTY) MPI_Group_free(&failed);
  return count > 0 ? MPIX_ERR_PROC_FAILED : MPI_SUCCESS;
}

int revoke(hvdlite_mpi_comm comm) { return MPIX_Comm_revoke(comm_of(comm)); }

// Translates the failed processes to ranks of the communicator, and returns the first that the caller does not know. The empty
// group may be MPI's own constant, which must not be freed.
int failed_rank(hvdlite_mpi_comm comm, const int* known, int count) {
  MPI_Group failed = MPI_GROUP_NULL, all = MPI_GROUP_NULL;
  if (MPIX_Comm_get_failed(comm_of(comm), &failed) != MPI_SUCCESS) return -1;
  int size = 0, found = -1;
  MPI_Group_size(failed, &size);
  if (size > 0) MPI_Comm_group(comm_of(comm), &all);
  for (int i = 0; i < size && found < 0; ++i) {
    int rank = MPI_UNDEFINED;
    MPI_Group_translate_ranks(failed, 1, &i, all, &rank);
    if (rank != MPI_UNDEFINED && std::find(known, known + count, rank) == known + count) {
      found = rank;
    }
  }
  if (all != MPI_GROUP_NULL) MPI_Group_free(&all);
  if (failed != MPI_GROUP_EMPTY) MPI_Group_free(&failed);
  return found;
}
#else
int health(MPI_Comm) { return MPI_SUCCESS; }
#endif

// Every poll of a request that is not complete calls this. Each thread counts its polls, and every kPollsBetween-th asks the
// communicator.
int health_now_and_then(MPI_Comm comm) {
  constexpr unsigned kPollsBetween = 16;  // asking the communicator costs as much as a few polls
  thread_local unsigned polls = 0;
  return ++polls % kPollsBetween == 0 ? health(comm) : MPI_SUCCESS;
}

// An error code may carry details, so its class is compared.
int is_loss(int error) {
  int kind = 0;
  if (error == MPI_SUCCESS || MPI_Error_class(error, &kind) != MPI_SUCCESS) return 0;
#if HVDLITE_SHIM_ULFM
  return kind == MPIX_ERR_PROC_FAILED || kind == MPIX_ERR_PROC_FAILED_PENDING ||
         kind == MPIX_ERR_REVOKED;
#else
  return 0;
#endif
}

// MPI's text may be longer than the caller's memory. Then it is cut.
void error_text(int error, char* text, int capacity) {
  char buffer[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  const bool is_known = MPI_Error_string(error, buffer, &length) == MPI_SUCCESS;
  std::snprintf(text, static_cast<std::size_t>(capacity), "%s",
                is_known ? buffer : "unknown MPI error");
}

// --- point to point ------------------------------------------------------------------------------------------------------

int isend(const void* data, int count, int peer, int tag, hvdlite_mpi_comm comm,
          hvdlite_mpi_request* out) {
  MPI_Request request = MPI_REQUEST_NULL;
  const int error = MPI_Isend(data, count, MPI_BYTE, peer, tag, comm_of(comm), &request);
  *out = wrap<hvdlite_mpi_request>(request);
  return error;
}

int irecv(void* data, int count, int peer, int tag, hvdlite_mpi_comm comm,
          hvdlite_mpi_request* out) {
  MPI_Request request = MPI_REQUEST_NULL;
  const int error = MPI_Irecv(data, count, MPI_BYTE, peer, tag, comm_of(comm), &request);
  *out = wrap<hvdlite_mpi_request>(request);
  return error;
}

// Polls with MPI_Request_get_status, which frees nothing. MPI_Test would not do: Open MPI's MPI_Test frees a failed request,
// and may abort when the request's completion arrives later. So a failed request is left alone, and the caller keeps its
// buffer.
int test(hvdlite_mpi_request* request, hvdlite_mpi_comm comm, int* done, int* source, int* bytes) {
  *done = 0;
  MPI_Request handle = unwrap<MPI_Request>(*request);
  MPI_Status status;
  status.MPI_ERROR = MPI_SUCCESS;
  int flag = 0;
  int error = MPI_Request_get_status(handle, &flag, &status);
  if (error != MPI_SUCCESS) return error;
  if (flag == 0) return health_now_and_then(comm_of(comm));
  if (status.MPI_ERROR != MPI_SUCCESS) return status.MPI_ERROR;
  error = MPI_Test(&handle, done, &status);
  *request = wrap<hvdlite_mpi_request>(handle);
  if (error != MPI_SUCCESS || *done == 0) return error;
  *source = status.MPI_SOURCE;
  error = MPI_Get_count(&status, MPI_BYTE, bytes);
  if (*bytes == MPI_UNDEFINED) *bytes = 0;  // a cancelled receive
  return error;
}

int cancel(hvdlite_mpi_request* request) {
  MPI_Request handle = unwrap<MPI_Request>(*request);
  return handle == MPI_REQUEST_NULL ? MPI_SUCCESS : MPI_Cancel(&handle);
}

// --- blocking, in init() -------------------------------------------------------------------------------------------------

// `all` gets the bytes of all ranks, in the order of their ranks.
int allgather(const void* mine, int bytes, void* all, hvdlite_mpi_comm comm) {
  return MPI_Allgather(mine, bytes, MPI_BYTE, all, bytes, MPI_BYTE, comm_of(comm));
}

int bcast(void* data, int bytes, int root, hvdlite_mpi_comm comm) {
  return MPI_Bcast(data, bytes, MPI_BYTE, root, comm_of(comm));
}

// --- the table -----------------------------------------------------------------------------------------------------------

#if !(defined(OPEN_MPI) && OPEN_MPI) && !defined(MPICH_VERSION)
#error "mpi.h is neither Open MPI's nor one of MPICH's family"
#endif

// What this MPI does not have stays null: callers ask `revoke == nullptr` instead of knowing the MPI.
hvdlite_mpi make_table() {
  hvdlite_mpi table{};
  table.abi_version = HVDLITE_MPI_ABI_VERSION;
  table.any_source = MPI_ANY_SOURCE;
  table.initialized = MPI_Initialized;
  table.finalized = MPI_Finalized;
  table.query_thread = query_thread;
  table.comm_from_address = comm_from_address;
  table.comm_dup = comm_dup;
  table.comm_idup = comm_idup;
  table.comm_adopt = comm_adopt;
  table.comm_split_shared = comm_split_shared;
  table.comm_split = comm_split;
  table.comm_free = comm_free;
  table.comm_rank = comm_rank;
  table.comm_size = comm_size;
  table.tag_upper_bound = tag_upper_bound;
  table.isend = isend;
  table.irecv = irecv;
  table.test = test;
  table.cancel = cancel;
  table.allgather = allgather;
  table.bcast = bcast;
#if HVDLITE_SHIM_ULFM
  table.revoke = MPIX_Comm_revoke != nullptr ? revoke : nullptr;
  table.failed_rank = MPIX_Comm_get_failed != nullptr ? failed_rank : nullptr;
#endif
  table.is_loss = is_loss;
  table.error_text = error_text;
  return table;
}

}  // namespace

const hvdlite_mpi* hvdlite_mpi_table(void) {
  static const hvdlite_mpi table = make_table();
  return &table;
}
