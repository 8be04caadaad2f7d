/* hvdlite's native engine behind a plain C ABI: the only header that a binding may include.
 *
 * Every function that returns int gives an HVDLITE_E_* code (0 is success), except hvdlite_abi_version().
 * hvdlite_last_error() gives the text of the last failure on the calling thread; the text is valid until the next failure on
 * this thread. Tensors are passed as pointers, shapes and dtype codes, and no type of a framework is used.
 * (The file has over 400 lines, because a C ABI is best read in one place.) */
#ifndef HVDLITE_HVDLITE_H_
#define HVDLITE_HVDLITE_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HVDLITE_API __attribute__((visibility("default")))
#define HVDLITE_ABI_VERSION 10

enum {
  HVDLITE_OK = 0,
  HVDLITE_E_INVALID_ARGUMENT = 1,
  HVDLITE_E_MISMATCH = 2,
  HVDLITE_E_PEER_LOST = 3,
  HVDLITE_E_TIMEOUT = 4,
  HVDLITE_E_ABORTED = 5,
  HVDLITE_E_NOT_INITIALIZED = 6,
  HVDLITE_E_UNSUPPORTED = 7,
  HVDLITE_E_SYSTEM = 8,
  HVDLITE_E_INTERNAL = 9
};

/* Kinds of operations. */
enum {
  HVDLITE_ALLREDUCE = 0,
  HVDLITE_ALLGATHER = 1,
  HVDLITE_BROADCAST = 2,
  HVDLITE_ALLTOALL = 3,
  HVDLITE_REDUCESCATTER = 4,
  HVDLITE_BARRIER = 5,
  HVDLITE_JOIN = 6,
  HVDLITE_ADD_PROCESS_SET = 7,
  HVDLITE_REMOVE_PROCESS_SET = 8,
  HVDLITE_SEND = 9,
  HVDLITE_RECV = 10
};
enum { HVDLITE_ANY = -1 }; /* of a receive: from any rank, or with any tag */
/* Reduce operators. */
enum {
  HVDLITE_AVERAGE = 0,
  HVDLITE_SUM = 1,
  HVDLITE_ADASUM = 2,
  HVDLITE_MIN = 3,
  HVDLITE_MAX = 4,
  HVDLITE_PRODUCT = 5
};
/* The bits of hvdlite_request.flags. (Dtypes have no enum: their codes are the numbers of hvdlite/dtypes.py.) */
enum {
  HVDLITE_FLAG_ABSENT =
      1, /* allreduce: this rank has no value: it contributes the identity, but takes the result */
  /* float32 and float64 travel between ranks as narrower floats; only for allreduces in GPU memory with Sum or Average */
  HVDLITE_FLAG_WIRE_FLOAT16 = 2,
  HVDLITE_FLAG_WIRE_BFLOAT16 = 4,
  /* The mean is weighted: the sum of weight * input over all ranks, divided by the sum of the weights. Only for allreduces with
   * HVDLITE_AVERAGE. A weight is 0 or more, and ranks may have different weights. The members of a group are submitted in one
   * call and have the same weight. */
  HVDLITE_FLAG_WEIGHTED = 8,
  /* With HVDLITE_FLAG_WEIGHTED: this rank gives notice, for example that it will leave. The notice travels with the weights, so
   * it costs no message. Every rank of the set counts the operation in hvdlite_counters.notices, before the operation ends. */
  HVDLITE_FLAG_NOTICE = 16
};
/* Codecs of allreduces of float32, float16 and bfloat16 in host memory, with HVDLITE_AVERAGE or HVDLITE_SUM
 * (csrc/kernels/codec.h). */
enum {
  HVDLITE_CODEC_NONE = 0,
  HVDLITE_CODEC_INT8 = 1,
  HVDLITE_CODEC_INT4 = 2,
  HVDLITE_CODEC_FP8 = 3
};
enum { HVDLITE_BETWEEN_HOSTS = 0, HVDLITE_BETWEEN_RANKS = 1 };
enum { HVDLITE_DEVICE_CPU = -1 }; /* device: -1 is host memory, n >= 0 is GPU n */

typedef struct hvdlite_engine hvdlite_engine;
typedef struct hvdlite_fabric hvdlite_fabric; /* in-process ranks, for tests */
typedef struct hvdlite_job hvdlite_job;
typedef struct hvdlite_block hvdlite_block; /* memory for a result */

/* The knobs that the engine reads, one field for each line of knobs.inc. hvdlite_config_init fills in the defaults. A text that
 * is null counts as the knob's default. If a function gets null in place of the config, all knobs have their defaults. */
typedef struct hvdlite_config {
  /* sizeof(hvdlite_config), as the caller was compiled. An engine refuses a size that is not the library's own. */
  size_t struct_size;
#define HVDLITE_FIELD_count int64_t
#define HVDLITE_FIELD_number double
#define HVDLITE_FIELD_flag int32_t
#define HVDLITE_FIELD_text const char*
#define HVDLITE_FIELD_level int32_t
#define HVDLITE_KNOB(type, name, value) HVDLITE_FIELD_##type name;
#include "hvdlite/knobs.inc"
#undef HVDLITE_KNOB
#undef HVDLITE_FIELD_count
#undef HVDLITE_FIELD_number
#undef HVDLITE_FIELD_flag
#undef HVDLITE_FIELD_text
#undef HVDLITE_FIELD_level
} hvdlite_config;

typedef struct hvdlite_topology {
  int32_t rank, size, local_rank, local_size, cross_rank, cross_size;
  int32_t is_homogeneous;
} hvdlite_topology;

typedef struct hvdlite_request {
  int32_t kind;
  int32_t dtype;
  int32_t op;
  /* broadcast: the root's global rank. send: the receiver's global rank. recv: the sender's global rank, or HVDLITE_ANY.
   * add_process_set: 1 if only the new set's members ask. join: 1 if an Average must not count this rank. allgather: 1 if it
   * may run without the ranks that have joined, even if the knob horovod_rules forbids that. */
  int32_t root;
  int32_t process_set; /* id */
  int32_t device;
  /* How the elements lie in memory. 0: row-major. 1 << 30 and more: row-major, with a dtype that the engine does not know; the
   * number is a hash of the dtype's name (hvdlite/dtypes.py). Other numbers are codes of other layouts
   * (hvdlite/backends/base.py). The engine only checks that all ranks have the same number. */
  int32_t layout;
  int32_t flags;
  /* null or "": the engine names the request by its number among the unnamed requests of its kind on its set. All unnamed
   * requests of one call must have the same set, and the same kind or the kinds send and recv. Their group must be null or "".
   * If group_size is the number of the call's requests, they form one group. Requests of prepared groups need a name. */
  const char* name;
  int32_t ndim;
  const int64_t* shape;
  const void* input; /* may be null with HVDLITE_FLAG_ABSENT or for zero bytes */
  /* allreduce, broadcast, recv: memory of the input's size, or the input itself. allgather, reducescatter of host memory: null,
   * or memory of the size that the result has if the parts of all ranks are equal. If they are equal, this memory gets the
   * result; it may overlap the input only where the result has the same bytes as the input. If output is null or the parts are
   * not equal, the engine allocates the result. Other operations, and allgather and reducescatter of GPU memory: null. */
  void* output;
  double prescale, postscale;
  /* "" or a label. The members of a group are negotiated and fused together, in the order of group_index. */
  const char* group;
  int32_t group_size; /* members of the group, on every rank */
  int32_t group_index;
  /* alltoall: the number of rows for each rank of the set; none: an even split. add_process_set: the global ranks. */
  int32_t num_splits;
  const int64_t* splits;
  /* On a GPU: the CUDA stream in whose order the input is ready, and the output may be written. */
  void* stream;
  /* The id of the open arena in which the input lies; 0: none. The input must also be the output. Only for allreduces with Sum
   * or Average. */
  int64_t arena;
  /* send, recv: a number from 0 on; recv: or HVDLITE_ANY. Only the two ranks ask for the operation. Sends and receives match in
   * the order of their submission. */
  int32_t tag;
  /* With HVDLITE_FLAG_WEIGHTED: this rank's weight; 0: the input has no effect, even if it is not finite. */
  double weight;
  /* How elements travel: HVDLITE_CODEC_*, HVDLITE_BETWEEN_*, and the number of elements that share a scale. */
  int32_t codec, codec_between, codec_block;
} hvdlite_request;

typedef void (*hvdlite_done_fn)(void* data);
/* One submission: `count` requests, or a prepared group of `count` requests with an address for each of them. */
typedef struct hvdlite_submission {
  const hvdlite_request* requests; /* if group is 0 */
  size_t count;
  int64_t group;     /* 0, or the id that hvdlite_prepare gave */
  void* const* data; /* of a group: the tensors' addresses */
  /* Of a group: null, or a flag for each request: does this rank have no value, and only take the result? */
  const bool* absent;
  void* stream;   /* of a group on a GPU: as a request's stream */
  double weight;  /* of a group of weighted requests */
  int32_t notice; /* bool; of a group of weighted requests: as HVDLITE_FLAG_NOTICE of each */
  /* 0: the caller is about to wait, so the engine's thread need not be woken. It has no effect if `then` is set. */
  int32_t wake;
  /* bool; the calling thread belongs to a framework's pool, and runs a task for whose end a thread of the program waits.
   * Deadlock detection considers the calling thread only while it waits for operations: after the task it may idle in its pool
   * for ever. The flag has no effect if `then` is set. */
  int32_t pool_thread;
  /* Null, or a function that is called once with `then_data` when all operations have ended. The engine's thread calls the
   * function, or a thread that waits, pauses the engine or shuts the engine down: at any time after *work was written, perhaps
   * before hvdlite_submit returns. The function may submit, wait and release. Keep it short: the thread that calls it drives no
   * operations meanwhile. It is not called if the submission fails. */
  hvdlite_done_fn then;
  void* then_data;
} hvdlite_submission;

/* How one operation ended. The texts and lists are valid until the work is released. */
typedef struct hvdlite_result {
  int32_t code;             /* HVDLITE_OK, or why it failed; then contributors is -1 */
  const char* error;        /* the text of the failure; null if there was none */
  int32_t contributors;     /* ranks that gave a value (not absent, not joined) */
  int32_t last_joined_rank; /* join: global rank */
  int32_t process_set;      /* add_process_set: the new id */
  int32_t source, tag;      /* recv: of the received message */
  int32_t ndim; /* shape of the engine-allocated output (allgather, alltoall, reducescatter) */
  const int64_t* shape;
  int32_t num_received_splits;
  const int64_t* received_splits;
  int64_t num_bytes; /* of data */
  void* data;        /* engine-allocated output; hvdlite_result_take_block gives it to the caller */
  int32_t device;    /* of data */
} hvdlite_result;

HVDLITE_API int hvdlite_abi_version(void);
HVDLITE_API const char* hvdlite_version(void);
HVDLITE_API const char* hvdlite_last_error(void);
HVDLITE_API const char* hvdlite_dtype_name(int dtype); /* "float32"; null after the last code */
/* struct_size: sizeof(hvdlite_config). If the library's config has another size, only the field struct_size is set. */
HVDLITE_API void hvdlite_config_init(hvdlite_config* config, size_t struct_size);

/* Engines. hvdlite_engine_create_mpi is collective over the communicator at comm_address (the address of an MPI_Comm);
 * shim_path is the library compiled for the communicator's MPI. An empty path or null fabric is an invalid argument.
 * takes_comm: 0: the engine sends its messages on a duplicate of the communicator. Otherwise it uses the communicator itself;
 * then only one engine and one job may ever send messages on it. hvdlite frees neither the communicator nor the duplicate.
 * hosts: the number of each rank's emulated host; null: one host for all. */
HVDLITE_API int hvdlite_fabric_create(int size, const int32_t* hosts, hvdlite_fabric** out);
HVDLITE_API void hvdlite_fabric_destroy(hvdlite_fabric* fabric);
HVDLITE_API int hvdlite_fabric_kill(hvdlite_fabric* fabric, int rank);
HVDLITE_API int hvdlite_engine_create_inproc(hvdlite_fabric* fabric, int rank,
                                             const hvdlite_config* config, hvdlite_engine** out);
HVDLITE_API int hvdlite_engine_create_mpi(const char* shim_path, const void* comm_address,
                                          int takes_comm, const hvdlite_config* config,
                                          hvdlite_engine** out);
/* The processes of a job while there is no engine: in init() before the engine is made, and from its shutdown to the end of
 * MPI. hvdlite_job_open is collective over the communicator (takes_comm: as for an engine), but does not wait. Call
 * hvdlite_job_wait after it, and after each hvdlite_job_gather. A wait fails if another process fails meanwhile. Before the
 * first wait has ended, call no other function of the job. Only one thread may wait at a time.
 *   wait         waits for at most this many seconds; *done is 1 when all processes have sent their part
 *   set_limits   in seconds; 0: no limit. patience: how long to wait for processes that are stopped or silent, and in a bounded
 *                gather for any process. silence: how long another host may send no message
 *   gather       begins an allgather of bytes, which `wait` ends; hvdlite_job_value then gives the bytes of a rank, until the
 *                next gather
 *   tell         tells the waiting processes why this process ends
 *   kill_stopped ends the stopped processes of this host
 *   close        is called before MPI ends; after it only close and hvdlite_job_destroy may be called */
HVDLITE_API int hvdlite_job_open(const char* shim_path, const void* comm_address, int takes_comm,
                                 hvdlite_job** out);
HVDLITE_API int hvdlite_job_wait(hvdlite_job* job, double seconds, int* done);
HVDLITE_API int hvdlite_job_set_limits(hvdlite_job* job, double patience, double silence);
HVDLITE_API int hvdlite_job_gather(hvdlite_job* job, const void* data, int64_t bytes, int bounded);
HVDLITE_API int hvdlite_job_value(hvdlite_job* job, int32_t rank, const void** data,
                                  int64_t* bytes);
HVDLITE_API int hvdlite_job_tell(hvdlite_job* job, const char* cause);
HVDLITE_API int hvdlite_job_kill_stopped(hvdlite_job* job);
HVDLITE_API void hvdlite_job_close(hvdlite_job* job);
HVDLITE_API void hvdlite_job_destroy(hvdlite_job* job);

/* Waits until the operations that all ranks have agreed on have ended, or no data have moved for the linger time (the knob
 * failure_linger). From this function's return to hvdlite_engine_resume no thread of the engine calls MPI. The thread that
 * pauses must also resume. Do not pause after the beginning of a shutdown. */
HVDLITE_API int hvdlite_engine_pause(hvdlite_engine* engine);
HVDLITE_API int hvdlite_engine_resume(hvdlite_engine* engine);
/* Leaves the job: waits as hvdlite_engine_pause does, says goodbye to the other ranks, ends the operations that are left
 * (HVDLITE_E_ABORTED), and stops the engine's thread. Does nothing after an earlier call. */
HVDLITE_API int hvdlite_engine_shutdown(hvdlite_engine* engine);
/* Releases a reference, from hvdlite_engine_create_* or hvdlite_current_engine. Releasing the last reference frees the engine,
 * and shuts it down if it still runs. Does nothing for null and in a forked child. */
HVDLITE_API void hvdlite_engine_destroy(hvdlite_engine* engine);
/* The engine of this process, for kernels that a framework calls without an engine. If there is no engine, or it has shut down:
 * null, and hvdlite_last_error() gives a text for the user. The caller must release the reference. */
HVDLITE_API hvdlite_engine* hvdlite_current_engine(void);
/* Sets the engine of this process; null: there is none. Takes a reference of its own, which a shutdown of the engine or the
 * next call of this function releases. */
HVDLITE_API void hvdlite_set_current_engine(hvdlite_engine* engine);
HVDLITE_API int hvdlite_engine_topology(const hvdlite_engine* engine, hvdlite_topology* out);

/* Submits all operations or none. They form one work; its number, *work > 0, is valid until the work is released. */
HVDLITE_API int hvdlite_submit(hvdlite_engine* engine, const hvdlite_submission* what,
                               int64_t* work);
/* Sets *done to 1 if all operations of the work have ended, with or without a failure, and otherwise to 0. */
HVDLITE_API int hvdlite_poll(hvdlite_engine* engine, int64_t work, int* done);
/* Waits up to timeout_s seconds for all operations of all these works, and drives progress. When all have ended, sets *done to
 * 1 and returns the code of the first operation that failed. Otherwise sets *done to 0: after a timeout, and if the engine shuts
 * down before all have ended (then it returns HVDLITE_E_ABORTED). */
HVDLITE_API int hvdlite_wait(hvdlite_engine* engine, const int64_t* works, size_t count,
                             double timeout_s, int* done);
/* For a work that has ended: fills `results`, which has room for `capacity` of them, in the order of the submission. *count is
 * the number of operations. */
HVDLITE_API int hvdlite_results(hvdlite_engine* engine, int64_t work, hvdlite_result* results,
                                size_t capacity, size_t* count);
/* Gives the caller the output that the engine allocated for the operation at this place; null if there is none, if it was
 * taken, or if the work has not ended or is unknown. */
HVDLITE_API hvdlite_block* hvdlite_result_take_block(hvdlite_engine* engine, int64_t work,
                                                     size_t index);
/* Releases a work that has ended. Call it once for each work. */
HVDLITE_API int hvdlite_release(hvdlite_engine* engine, int64_t work);

/* GPU memory. An operation on GPU memory has ended when its copies and kernels are enqueued in a stream of the engine. Whatever
 * uses the result must come after them. hvdlite_order makes `stream` wait for them; the calling thread does not wait. Call it
 * for every work with GPU memory, between the end of its operations and hvdlite_release: for the stream that uses the results,
 * and for the stream in whose order the memory will be reused. For host memory it does nothing. */
HVDLITE_API int hvdlite_order(hvdlite_engine* engine, int64_t work, void* stream);

/* Prepared groups: allreduces in place that are submitted together many times. hvdlite_prepare checks them once and gives an
 * id. It ignores their memory, except for requests that name an arena: for these, output is the tensor's place in the arena. A
 * tensor that is later submitted from another place is reduced as if it named no arena. The id is valid until it is released,
 * the engine shuts down or the process set is removed. */
HVDLITE_API int hvdlite_prepare(hvdlite_engine* engine, const hvdlite_request* requests,
                                size_t count, int64_t* group);
HVDLITE_API int hvdlite_release_prepared(hvdlite_engine* engine, int64_t group);

/* Memory for results, which the engine or a caller allocates; it may outlive the engine. Large blocks are reused: after
 * hvdlite_block_free, which any thread may call, the engine keeps up to output_cache_bytes of them until shutdown. */
HVDLITE_API int hvdlite_block_create(hvdlite_engine* engine, size_t bytes, hvdlite_block** out);
HVDLITE_API void* hvdlite_block_data(const hvdlite_block* block);
HVDLITE_API void hvdlite_block_free(hvdlite_block* block);
HVDLITE_API int32_t hvdlite_block_device(const hvdlite_block* block); /* a GPU's number; -1: host */
/* For a result in GPU memory (hvdlite_result_take_block): copies the first `bytes` bytes to `to`, in the order of `stream`. The
 * block may be freed as soon as this returns. */
HVDLITE_API int hvdlite_block_copy(hvdlite_block* block, void* to, size_t bytes, void* stream);
/* Memory on a GPU, usable in the order of `stream`. After hvdlite_block_free the engine reuses the memory in the order of the
 * legacy default stream: after all that is enqueued, at the time of hvdlite_block_free, in the legacy default stream and in
 * streams without CU_STREAM_NON_BLOCKING. */
HVDLITE_API int hvdlite_gpu_block_create(hvdlite_engine* engine, int32_t gpu, size_t bytes,
                                         void* stream, hvdlite_block** out);
/* The GPU in whose memory an address lies; -1: host memory. For null (a tensor of no bytes): the GPU that matches this rank's
 * place on the host. HVDLITE_E_UNSUPPORTED if there is no GPU. */
HVDLITE_API int hvdlite_gpu_of_address(hvdlite_engine* engine, const void* address, int32_t* gpu);

/* The GPU support of this process. The arguments list the candidates for each library, as the fields of hvdlite_config do.
 * *version: 13000 for CUDA 13.0, 22703 for NCCL 2.27.3. HVDLITE_E_UNSUPPORTED: there is no library that the engine can use, or
 * no GPU; the error's text has the reason. */
HVDLITE_API int hvdlite_cuda_version(const char* cuda_library, int32_t* version, int32_t* gpus);
HVDLITE_API int hvdlite_nccl_version(const char* nccl_library, int32_t* version);

/* Copies GPU memory to the host in the order of `stream`, and waits for the copy. *busy: did the stream have unfinished work
 * before the copy? A binding uses it to test whether it has found the right stream. */
HVDLITE_API int hvdlite_gpu_read(const char* cuda_library, const void* from, void* to, size_t bytes,
                                 void* stream, int* busy);

/* Process sets. Copies the ranks of a set, or the ids of all sets, to an array with room for `capacity` numbers. *count is the
 * number of ranks or ids, even if the array has room for fewer. */
HVDLITE_API int hvdlite_process_set_ranks(hvdlite_engine* engine, int32_t id, int32_t* ranks,
                                          int32_t capacity, int32_t* count);
HVDLITE_API int hvdlite_process_set_ids(hvdlite_engine* engine, int32_t* ids, int32_t capacity,
                                        int32_t* count);

/* Arenas: memory of each member of a process set (all on one host) that the other members map, so that tensors in it are
 * reduced in place. To make an arena, each member creates its part. The callers exchange the parts' addresses
 * (HVDLITE_ARENA_ADDRESS_BYTES opaque bytes each), and each member opens all of them, in the order of the set's ranks. If all
 * members could open them, requests may name the arena by its id, which is the same on all members; if one member could not,
 * all close the arena. Call hide, which removes the part's name from the file system, when all members have tried to open the
 * parts. If one rank's request does not name the arena, or names another place in it, the tensor is reduced as if no rank named
 * an arena. A part outlives close and its engine; destroy frees it. Call destroy only when no operation uses the part. */
#define HVDLITE_ARENA_ADDRESS_BYTES 192
typedef struct hvdlite_arena hvdlite_arena;
/* kind: memfd or shm. */
HVDLITE_API int hvdlite_arena_create(hvdlite_engine* engine, int32_t process_set, const char* kind,
                                     int64_t bytes, hvdlite_arena** out);
HVDLITE_API void hvdlite_arena_address(const hvdlite_arena* arena, void* address);
HVDLITE_API int hvdlite_arena_open(hvdlite_arena* arena, const void* addresses, int32_t count);
HVDLITE_API void hvdlite_arena_hide(hvdlite_arena* arena);
HVDLITE_API int64_t hvdlite_arena_id(const hvdlite_arena* arena); /* 0 while it is not open */
HVDLITE_API void* hvdlite_arena_data(const hvdlite_arena* arena);
HVDLITE_API int64_t hvdlite_arena_bytes(const hvdlite_arena* arena);
HVDLITE_API void hvdlite_arena_close(hvdlite_arena* arena);
HVDLITE_API void hvdlite_arena_destroy(hvdlite_arena* arena);
/* A copy that does not bring `to` into the caches, for large memory that is not read soon. The two must not overlap. */
HVDLITE_API void hvdlite_stream_copy(void* to, const void* from, int64_t bytes);
/* A 64-bit digest of the memory's content. It depends on the machine's byte order. */
HVDLITE_API uint64_t hvdlite_digest(const void* memory, int64_t bytes);

/* Failures. hvdlite_publish_failure tells all other ranks why this rank is about to end (the text of its exception), ends all
 * operations of this rank with the same text (HVDLITE_E_ABORTED), and waits, at most the linger time, until the other ranks
 * have confirmed it. It does nothing after an earlier failure or a shutdown. hvdlite_failure_cause gives the first cause of
 * failure that this rank knows, "" if there is none; the text is valid until this thread calls it again. */
HVDLITE_API int hvdlite_publish_failure(hvdlite_engine* engine, const char* cause);
HVDLITE_API const char* hvdlite_failure_cause(hvdlite_engine* engine);
/* A text with one line for each operation of this rank that has not ended; if there are none, one line for each of the last
 * operations that have ended, at most `ended` lines. If the text leaves operations out, its last line names a file in
 * flight_recorder_folder that has all. A negative `ended` gives all recorded operations, without a file. Free the text with
 * hvdlite_free. Null if there was no memory. */
HVDLITE_API char* hvdlite_flight_record(hvdlite_engine* engine, int64_t ended);
HVDLITE_API void hvdlite_free(void* text);
/* Logs a warning or an error of this rank in the engine's format: one line with the time, by one write(2). Any thread may call
 * it, also without an engine. level: 3 for a warning, 4 for an error, as in hvdlite_config. */
HVDLITE_API void hvdlite_log(int level, int rank, int size, const char* subsystem,
                             const char* text);

/* Totals since the engine was made, one field for each line of counters.inc. */
typedef struct hvdlite_counters {
#define HVDLITE_COUNTER(source, name) int64_t name;
#include "hvdlite/counters.inc"
#undef HVDLITE_COUNTER
} hvdlite_counters;
HVDLITE_API int hvdlite_get_counters(hvdlite_engine* engine, hvdlite_counters* out);
/* For each rank of the job (`count` ranks): how many operations that rank was the last to ask for, and for how many nanoseconds
 * the calling rank waited for that rank. */
HVDLITE_API int hvdlite_get_lateness(hvdlite_engine* engine, int64_t* operations,
                                     int64_t* nanoseconds, int32_t count);

/* A trace of this rank's operations in Chrome's format (csrc/engine/observe/timeline.h), from now until stop or another start.
 * When the file has max_bytes / 2 bytes, it is renamed to path.old, and a new file begins. mark_cycles: bool. */
HVDLITE_API int hvdlite_timeline_start(hvdlite_engine* engine, const char* path, int64_t max_bytes,
                                       int mark_cycles);
HVDLITE_API int hvdlite_timeline_stop(hvdlite_engine* engine);

/* Other ranks that wait for this rank for too long ask where its program is. One thread of the binding waits for such a
 * question in a loop: if *asked is 1, it must call hvdlite_watchdog_tell with one line of text; if *asked is 0, the engine has
 * shut down. */
HVDLITE_API int hvdlite_watchdog_wait(hvdlite_engine* engine, int* asked);
HVDLITE_API int hvdlite_watchdog_tell(hvdlite_engine* engine, const char* text);
/* For `seconds` from now on the other ranks wait for this rank without a warning, and do not give up. 0 ends the exemption. */
HVDLITE_API int hvdlite_stall_exempt(hvdlite_engine* engine, double seconds);

/* --- the fusion kernels of a GPU without an engine, for hvdlite.bench ---------------------------------------------------- */
/* The kernels of one GPU, in a stream of their own. The libraries are lists of candidates, as in the knobs; kernel_cache: a
 * folder, or "". Memory from hvdlite_fusion_memory is valid until close. */
typedef struct hvdlite_fusion hvdlite_fusion;
typedef struct hvdlite_fusion_move {
  int32_t unpack, from, to, op;
  double factor;
  int64_t divisor;
  int64_t pieces;
  void* const* tensors; /* for null tensors see csrc/device/piece_layout.h */
  const int64_t* offsets;
  const int64_t* counts;
  void* buffer;
  int32_t* nonfinite; /* in the GPU's memory, or null */
  /* Launches use the sets of tensors and buffers in turn. The strides are the bytes from one set to the next. */
  int32_t launches, sets;
  int64_t tensor_stride, buffer_stride;
} hvdlite_fusion_move;
HVDLITE_API int hvdlite_fusion_open(const char* cuda_library, const char* nvrtc_library,
                                    const char* kernel_cache, int32_t gpu, hvdlite_fusion** out);
HVDLITE_API void hvdlite_fusion_close(hvdlite_fusion* fusion);
HVDLITE_API const char* hvdlite_fusion_gpu(const hvdlite_fusion* fusion);    /* "NVIDIA H200" */
HVDLITE_API const char* hvdlite_fusion_origin(const hvdlite_fusion* fusion); /* of the kernels */
HVDLITE_API int64_t hvdlite_fusion_uploads(const hvdlite_fusion* fusion);
HVDLITE_API int hvdlite_fusion_memory(hvdlite_fusion* fusion, int64_t bytes, void** out);
/* hvdlite_fusion_run and hvdlite_fusion_copy wait until all launches are done. Times are means over the launches, in
 * microseconds. gpu_us: between two events of the stream. host_us: until the host has enqueued the launch. Null: not
 * measured. */
HVDLITE_API int hvdlite_fusion_run(hvdlite_fusion* fusion, const hvdlite_fusion_move* move,
                                   double* gpu_us, double* host_us);
HVDLITE_API int hvdlite_fusion_copy(hvdlite_fusion* fusion, void* to, const void* from,
                                    int64_t bytes, int32_t launches, int32_t sets, int64_t stride,
                                    double* gpu_us, double* host_us);

#ifdef __cplusplus
}
#endif
#endif /* HVDLITE_HVDLITE_H_ */
