/* hvdlite's native engine behind a plain C ABI: the only header a binding may include.
 *
 * Every function returns an HVDLITE_E_* code (0 is success) unless it says otherwise; the text of the last failure on the
 * calling thread is hvdlite_last_error(). Tensors cross as pointers, shapes and dtype codes: no framework type does.
 * (Over 400 lines, because a C ABI is best read in one place.) */
#ifndef HVDLITE_HVDLITE_H_
#define HVDLITE_HVDLITE_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HVDLITE_API __attribute__((visibility("default")))
#define HVDLITE_ABI_VERSION 7

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
enum { HVDLITE_ANY = -1 }; /* of a receive: whichever rank sends it, whichever tag it has */
/* Reduce operators. */
enum {
  HVDLITE_AVERAGE = 0,
  HVDLITE_SUM = 1,
  HVDLITE_ADASUM = 2,
  HVDLITE_MIN = 3,
  HVDLITE_MAX = 4,
  HVDLITE_PRODUCT = 5
};
/* Dtypes have the numbers of hvdlite/dtypes.py. */
enum {
  HVDLITE_FLAG_ABSENT =
      1, /* this rank has no value: it contributes the identity, but takes the result */
  /* float32 and float64 cross between ranks as narrower floats, which is allreduces' in GPU memory only */
  HVDLITE_FLAG_WIRE_FLOAT16 = 2,
  HVDLITE_FLAG_WIRE_BFLOAT16 = 4,
  /* the mean is weighted: sum of weight * input over all ranks / sum of the weights, which are 0 or more and differ between ranks;
   * allreduces with HVDLITE_AVERAGE. The members of a group are submitted in one call and have one weight */
  HVDLITE_FLAG_WEIGHTED = 8
};
/* Codecs of allreduces with HVDLITE_AVERAGE or HVDLITE_SUM of float32, float16 and bfloat16 in host memory (csrc/kernels/codec.h). */
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
 * is null counts as its default. */
typedef struct hvdlite_config {
  size_t struct_size; /* sizeof(hvdlite_config) of the caller */
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
  int32_t
      root; /* broadcast: rank in the global process set; send: that of the receiver; recv: of the sender, or HVDLITE_ANY; add_process_set: 1 if the new set's members alone ask;
               join: 1 if an Average is not to count this rank; allgather: 1 if it runs without
            those that have joined, for any value of join_refuses_others */
  int32_t process_set; /* id */
  int32_t device;
  int32_t layout; /* 0 row-major; other values only have to agree across ranks */
  int32_t flags;
  /* null or "": named by its number among the unnamed ones of its kind on its set. The unnamed requests of one call are of one
   * kind on one set; they form one group if group_size is their number and group is null or "". Not in prepared groups. */
  const char* name;
  int32_t ndim;
  const int64_t* shape;
  const void* input; /* may be null with HVDLITE_FLAG_ABSENT or for zero bytes */
  void*
      output; /* allreduce, broadcast, recv: same bytes as input, which it may be. allgather, reducescatter of host memory: null, or room
                 for equal parts of all ranks, which gets the result if the parts are equal; it may overlap the input only where the
                 result has the same bytes. Otherwise null. Where it is null or the parts differ, the engine allocates */
  double prescale, postscale;
  const char*
      group; /* "" or a label: members are negotiated and fused together, in the order of group_index */
  int32_t group_size; /* members of the group, on every rank */
  int32_t group_index;
  int32_t
      num_splits; /* alltoall: rows for each rank of the set (or 0: even); add_process_set: the global ranks */
  const int64_t* splits;
  void*
      stream; /* on a GPU: the CUDA stream in whose order the input is ready, and the output may be written */
  int64_t
      arena; /* id of the open arena in which input and output (the same) lie; 0: none. Allreduce with Sum or Average only */
  /* send and recv, which two ranks alone ask for and which match in the order of their submission: from 0 on, or HVDLITE_ANY */
  int32_t tag;
  double
      weight; /* with HVDLITE_FLAG_WEIGHTED: of this rank; 0: its input counts nothing, whatever it holds */
  /* How elements travel between hosts or between ranks: HVDLITE_CODEC_*, HVDLITE_BETWEEN_*, and how many elements share a scale */
  int32_t codec, codec_between, codec_block;
} hvdlite_request;

typedef void (*hvdlite_done_fn)(void* data);
/* What is submitted in one go: `count` requests, or a prepared group of that many with an address for each of them. */
typedef struct hvdlite_submission {
  const hvdlite_request* requests; /* unless group */
  size_t count;
  int64_t group;     /* 0, or the requests as hvdlite_prepare compiled them */
  void* const* data; /* of a group: where the tensors are */
  const bool*
      absent;   /* of a group: null, or whether this rank lacks a value and only takes the result */
  void* stream; /* of a group on a GPU: as that of a request */
  double weight; /* of a group of weighted requests */
  int32_t
      wake; /* 0: the caller is about to wait, so that no other thread need be woken. Without effect with `then` */
  /* Null, or called once with `then_data` when all have ended: at any time after the number was written (also before hvdlite_submit
   * returns), by the engine's thread or one that waits. It may submit, wait and release; while it runs its thread makes no
   * progress, so it should be short. It is not called if the submission fails. */
  hvdlite_done_fn then;
  void* then_data;
} hvdlite_submission;

/* How one operation ended. The texts and lists are valid until the work is released. */
typedef struct hvdlite_result {
  int32_t code;             /* HVDLITE_OK, or why it failed; then contributors is -1 */
  const char* error;        /* the text of that; null if it did not fail */
  int32_t contributors;     /* ranks that gave a value (not absent, not joined) */
  int32_t last_joined_rank; /* join: global rank */
  int32_t process_set;      /* add_process_set: the new id */
  int32_t source, tag;      /* recv: of what has come */
  int32_t ndim; /* shape of the engine-allocated output (allgather, alltoall, reducescatter) */
  const int64_t* shape;
  int32_t num_received_splits;
  const int64_t* received_splits;
  int64_t num_bytes; /* of data */
  void* data;        /* engine-allocated output; hvdlite_result_take_block hands it over */
  int32_t device;    /* of data */
} hvdlite_result;

HVDLITE_API int hvdlite_abi_version(void);
HVDLITE_API const char* hvdlite_version(void);
HVDLITE_API const char* hvdlite_last_error(void);
HVDLITE_API const char* hvdlite_dtype_name(int dtype); /* "float32"; null past the last code */
HVDLITE_API void hvdlite_config_init(hvdlite_config* config);

/* Engines. hvdlite_engine_create_mpi is collective over the communicator at comm_address (the address of an MPI_Comm);
 * shim_path is the library compiled for that MPI. An empty path or null fabric is an invalid argument. takes_comm: 0: the engine
 * sends its messages on a duplicate; otherwise on the communicator itself, on which nothing else may ever send messages but one
 * job, and no other engine. Nobody frees either. hosts: the number of each rank's host, as if the ranks ran there; null for one
 * host. */
HVDLITE_API int hvdlite_fabric_create(int size, const int32_t* hosts, hvdlite_fabric** out);
HVDLITE_API void hvdlite_fabric_destroy(hvdlite_fabric* fabric);
HVDLITE_API int hvdlite_fabric_kill(hvdlite_fabric* fabric, int rank);
HVDLITE_API int hvdlite_engine_create_inproc(hvdlite_fabric* fabric, int rank,
                                             const hvdlite_config* config, hvdlite_engine** out);
HVDLITE_API int hvdlite_engine_create_mpi(const char* shim_path, const void* comm_address,
                                          int takes_comm, const hvdlite_config* config,
                                          hvdlite_engine** out);
/* The processes of a job where there is no engine: in init() before it is made, and from its shutdown to the end of MPI. Opening is
 * collective over the communicator (takes_comm: as for an engine), but does not wait: hvdlite_job_wait does, here and after each
 * hvdlite_job_gather, and fails
 * where another process does meanwhile. Before the first wait is over nothing else may be called. One thread waits at a time.
 *   wait         looks for at most this many seconds; *done is 1 once all have come
 *   set_limits   seconds, 0 for none: patience for processes that are stopped or silent (and for any in a bounded gather), silence
 *                of another host
 *   gather       begins an allgather of bytes, which `wait` ends; hvdlite_job_value then gives the bytes of a rank, until the next
 *   tell         why this process ends, to those that wait here
 *   kill_stopped ends the processes of this host that are stopped
 *   close        before MPI ends; nothing else may be called after it but hvdlite_job_destroy */
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

/* Leaves the job: says goodbye to the peers, waits up to the linger time for pending operations, stops the thread. */
HVDLITE_API int hvdlite_engine_shutdown(hvdlite_engine* engine);
/* Gives a reference back: the one from creating the engine or from hvdlite_current_engine. The last one frees it, and shuts it
 * down if that is still to do. */
HVDLITE_API void hvdlite_engine_destroy(hvdlite_engine* engine);
/* The engine of this process, for kernels that a framework calls without an engine. It ends with its shutdown. The
 * reference must be given back; null (with the text for the user as last error) if there is none. */
HVDLITE_API hvdlite_engine* hvdlite_current_engine(void);
HVDLITE_API void hvdlite_set_current_engine(hvdlite_engine* engine);
HVDLITE_API int hvdlite_engine_topology(const hvdlite_engine* engine, hvdlite_topology* out);

/* Submits all or nothing. What is in flight from then on is one work, which *work > 0 names until it is released. */
HVDLITE_API int hvdlite_submit(hvdlite_engine* engine, const hvdlite_submission* what,
                               int64_t* work);
/* *done becomes 1 when all its operations have ended, well or badly. */
HVDLITE_API int hvdlite_poll(hvdlite_engine* engine, int64_t work, int* done);
/* Waits up to timeout_s seconds for all operations of all these works, driving progress; *done 0 after a timeout. Once they have
 * ended it returns the code of the first that failed. */
HVDLITE_API int hvdlite_wait(hvdlite_engine* engine, const int64_t* works, size_t count,
                             double timeout_s, int* done);
/* Of a work that has ended: *count operations, and how each ended, in the order of the submission (room for capacity). */
HVDLITE_API int hvdlite_results(hvdlite_engine* engine, int64_t work, hvdlite_result* results,
                                size_t capacity, size_t* count);
/* The output that the engine allocated for one of them, once; null if there is none or it was taken. */
HVDLITE_API hvdlite_block* hvdlite_result_take_block(hvdlite_engine* engine, int64_t work,
                                                     size_t index);
/* Needed once for each work, after its end. */
HVDLITE_API int hvdlite_release(hvdlite_engine* engine, int64_t work);

/* GPU memory. An operation on it is done when its work has been handed to the GPU, in a stream of the engine's own: all
 * users of the result have to come after it. order makes all that `stream` does from now on do so, without waiting; every work
 * with GPU memory needs it, once done and before release, for the stream that uses the results and for the
 * one in whose order the memory will be reused. For host memory it does nothing. */
HVDLITE_API int hvdlite_order(hvdlite_engine* engine, int64_t work, void* stream);

/* Prepared groups: allreduces in place that are submitted together many times. prepare checks them once and gives
 * an id. Their memory is ignored, but for those that name an arena: output is the tensor's place there, and a tensor that is
 * submitted from elsewhere is reduced like any other. The id is valid until it is released, the engine shuts down or the process
 * set is removed. */
HVDLITE_API int hvdlite_prepare(hvdlite_engine* engine, const hvdlite_request* requests,
                                size_t count, int64_t* group);
HVDLITE_API int hvdlite_release_prepared(hvdlite_engine* engine, int64_t group);

/* Memory for results, which the engine makes or a caller asks for; it may outlive the engine. Large blocks are recycled:
 * free gives them back, from any thread, and up to output_cache_bytes of them are kept until shutdown. */
HVDLITE_API int hvdlite_block_create(hvdlite_engine* engine, size_t bytes, hvdlite_block** out);
HVDLITE_API void* hvdlite_block_data(const hvdlite_block* block);
HVDLITE_API void hvdlite_block_free(hvdlite_block* block);
HVDLITE_API int32_t hvdlite_block_device(const hvdlite_block* block); /* a GPU's number; -1: host */
/* Of GPU memory: copies bytes from its beginning to `to` in the order of `stream`; the block may be freed at once. */
HVDLITE_API int hvdlite_block_copy(hvdlite_block* block, void* to, size_t bytes, void* stream);
/* Memory on a GPU, usable in the order of `stream`. Once freed it is used again after what the legacy default stream has been
 * given until then, and with it all streams but those that were made to take no part in its order (CU_STREAM_NON_BLOCKING). */
HVDLITE_API int hvdlite_gpu_block_create(hvdlite_engine* engine, int32_t gpu, size_t bytes,
                                         void* stream, hvdlite_block** out);
/* The GPU in whose memory an address lies; -1: host memory. For null (a tensor of no bytes) the one that this rank would take by
 * its place on the host. Error(Unsupported) where there is no GPU. */
HVDLITE_API int hvdlite_gpu_of_address(hvdlite_engine* engine, const void* address, int32_t* gpu);

/* What GPU support this process has, opened at run time as the candidates say (as in hvdlite_config). *version: 13000 for CUDA
 * 13.0, 22703 for NCCL 2.27.3. Error(Unsupported) with the reason if there is none. */
HVDLITE_API int hvdlite_cuda_version(const char* cuda_library, int32_t* version, int32_t* gpus);
HVDLITE_API int hvdlite_nccl_version(const char* nccl_library, int32_t* version);

/* Copies GPU memory to the host in the order of `stream`, and waits for that. *busy: had the stream still work to do when it was
 * asked? For a binding that has to find out whether a stream is the one it takes it for. */
HVDLITE_API int hvdlite_gpu_read(const char* cuda_library, const void* from, void* to, size_t bytes,
                                 void* stream, int* busy);

/* Process sets as all ranks know them: *count ranks of a set are copied to ranks (room for capacity). */
HVDLITE_API int hvdlite_process_set_ranks(hvdlite_engine* engine, int32_t id, int32_t* ranks,
                                          int32_t capacity, int32_t* count);
HVDLITE_API int hvdlite_process_set_ids(hvdlite_engine* engine, int32_t* ids, int32_t capacity,
                                        int32_t* count);

/* Arenas: memory of each member of a process set (all on one host) that the others map, so that tensors in it are reduced
 * where they lie. Making one: each member creates its part, the parts' addresses (HVDLITE_ARENA_ADDRESS_BYTES opaque bytes)
 * are exchanged by the caller, each member opens all of them, in the order of the set's ranks. If all could, requests may name
 * the arena by its id, the same on all members; if one could not, all close theirs. hide comes after all members' attempts to
 * open. A request names an arena on each rank for itself: if one rank's does not, or names another place in it, the tensor is
 * reduced like any other. A part outlives close and its engine; destroy frees it, when no operation is in flight there. */
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
/* A copy that leaves nothing of `to` in the caches, for large memory that is not read soon. They do not overlap. */
HVDLITE_API void hvdlite_stream_copy(void* to, const void* from, int64_t bytes);
/* 64 bits that tell memory of other content from this, on machines of one byte order. */
HVDLITE_API uint64_t hvdlite_digest(const void* memory, int64_t bytes);

/* Failures. publish tells all peers why this rank is about to end (its exception text), ends all that this rank has in flight
 * with the same text (HVDLITE_E_ABORTED), and waits, at most the linger time, until the peers know. The first cause this rank
 * knows is copied as text; empty if none. */
HVDLITE_API int hvdlite_publish_failure(hvdlite_engine* engine, const char* cause);
HVDLITE_API const char* hvdlite_failure_cause(hvdlite_engine* engine);
/* The operations of this rank that have not ended as lines of text, and where there are none, the last `ended` ones. Where that
 * leaves some out, the last line names a file of flight_recorder_folder that has them all. A negative `ended` gives all that it
 * remembers, without a file. Free with hvdlite_free. */
HVDLITE_API char* hvdlite_flight_record(hvdlite_engine* engine, int64_t ended);
HVDLITE_API void hvdlite_free(void* text);
/* An error of this rank, as the engine logs its own: one write(2) of one line, with the time. Any thread, without an engine too. */
HVDLITE_API void hvdlite_log_error(int rank, int size, const char* subsystem, const char* text);

typedef struct hvdlite_counters {
  int64_t submitted, completed, failed;
  int64_t control_messages_sent, control_bytes_sent;
  int64_t fused_ops, cache_hits, cache_misses;
  int64_t agreed_in_memory; /* operations agreed on in the ledger, without the coordinator */
  int64_t data_bytes_sent;
  int64_t arena_ops;    /* fused operations on tensors that lay in an arena on all members */
  int64_t riding_ops;   /* allreduces whose payload came with the announcement */
  int64_t open_results; /* allreduces whose result other ranks stored where it lies */
  int64_t nccl_ops;     /* fused operations on GPU memory through NCCL */
  int64_t staged_ops;   /* and through host memory */
  /* Bytes of the elements that this rank has sent coded, and of their codes */
  int64_t coded_bytes_before, coded_bytes_after;
  /* How the engine waits: passes; sleeps at the doorbell, and for how many microseconds at most altogether; those that a ring
   * ended; and waits that found something at their time limit which they should have been woken for. */
  int64_t passes, sleeps, sleep_limits_us, rung_sleeps, unrung_finds;
  /* What operations cost (csrc/engine/observe/usage.h); docs/stats.md defines each. Times in nanoseconds. */
  int64_t time_ns; /* since the engine was made */
  int64_t bytes, bus_bytes;
  int64_t negotiating_ns, waiting_ns, moving_ns;
  int64_t exposed_ns, exposed_moving_ns;
} hvdlite_counters;
HVDLITE_API int hvdlite_get_counters(hvdlite_engine* engine, hvdlite_counters* out);
/* Of each rank of the job, of which there are `count`: how many operations it was the last to ask for, and the nanoseconds that
 * this rank waited until it did. */
HVDLITE_API int hvdlite_get_lateness(hvdlite_engine* engine, int64_t* operations,
                                     int64_t* nanoseconds, int32_t count);

/* A trace of this rank's operations in Chrome's format (csrc/engine/observe/timeline.h), from now until stop or another start.
 * The file, of at most max_bytes / 2, has a predecessor path.old of the same size. mark_cycles: bool. */
HVDLITE_API int hvdlite_timeline_start(hvdlite_engine* engine, const char* path, int64_t max_bytes,
                                       int mark_cycles);
HVDLITE_API int hvdlite_timeline_stop(hvdlite_engine* engine);

/* Other ranks that wait for this one for too long ask where its program is. One thread of the binding waits for that in a loop:
 * *asked is 1 when it shall call hvdlite_watchdog_tell with one line of text, 0 when the engine has shut down. */
HVDLITE_API int hvdlite_watchdog_wait(hvdlite_engine* engine, int* asked);
HVDLITE_API int hvdlite_watchdog_tell(hvdlite_engine* engine, const char* text);
/* For `seconds` from now on the other ranks wait for this one without a warning, and do not give up; 0: no longer. */
HVDLITE_API int hvdlite_stall_exempt(hvdlite_engine* engine, double seconds);

/* --- the GPU's fusion kernels by themselves, for hvdlite.bench ----------------------------------------------------------- */
/* The kernels of one GPU, in a stream of their own. Libraries as the knobs name them;
 * kernel_cache: a folder or "". Memory lives until close. */
typedef struct hvdlite_fusion hvdlite_fusion;
typedef struct hvdlite_fusion_move {
  int32_t unpack, from, to, op;
  double factor;
  int64_t divisor;
  int64_t pieces;
  void* const* tensors; /* null ones: device/fusion_kernels.h */
  const int64_t* offsets;
  const int64_t* counts;
  void* buffer;
  int32_t* nonfinite; /* in the GPU's memory, or null */
  /* Launches take the sets of tensors and buffers in turn; those of the next set lie this many bytes further on. */
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
/* Both wait until all launches are done. Times are those of one launch in microseconds: between events of the stream, and of
 * the host until it was handed over; null: not measured. */
HVDLITE_API int hvdlite_fusion_run(hvdlite_fusion* fusion, const hvdlite_fusion_move* move,
                                   double* gpu_us, double* host_us);
HVDLITE_API int hvdlite_fusion_copy(hvdlite_fusion* fusion, void* to, const void* from,
                                    int64_t bytes, int32_t launches, int32_t sets, int64_t stride,
                                    double* gpu_us, double* host_us);

#ifdef __cplusplus
}
#endif
#endif /* HVDLITE_HVDLITE_H_ */
