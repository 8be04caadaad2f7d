// The engine as a Python object: the C ABI with Python's rules of ownership, signals and exceptions.
// Thread: any, with the GIL held on entry; released while a call waits. Owns: its native engine. Blocks:
// wait_in_slices, wait_many, blocking plain calls, and shutdown (also in the destructor). Throws: the classes of
// hvdlite.errors, and what Python raises.
#pragma once

#include <sys/types.h>

#include <deque>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "binding.h"
#include "plain_memory.h"
#include "request.h"
#include "result.h"

namespace hvdlite::python {

// No limit to the seconds of a wait.
inline constexpr double kNoLimit = std::numeric_limits<double>::infinity();

// How a wait ended. It keeps the error's text: Python code that runs before the error is raised may change
// hvdlite_last_error().
struct WaitResult {
  int code = HVDLITE_OK;
  std::string message;
  bool ended = false;  // have all operations ended?
};

// A submission of requests. wake: as in hvdlite_submission.
hvdlite_submission submission_of(std::span<const hvdlite_request> requests, bool wake);

class Engine {
 public:
  explicit Engine(hvdlite_engine* engine);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Submits requests as one work, which is then in flight, and returns it: `work`, or, if that is None, a new work that keeps
  // the memory. If there are no requests, the work is returned but nothing is submitted. Throws ValueError if `work` was
  // submitted before. If the function throws, nothing was submitted.
  nb::object submit(nb::handle requests, nb::handle memory, bool wake, nb::handle work);
  std::int64_t prepare(nb::handle requests);
  // Submits a prepared group whose tensors have these addresses, and returns the work. absent: for each tensor, does this rank
  // lack it? Null: it lacks none. streams: the memory is ready in the order of the first stream, and is reused in the order of
  // all streams.
  nb::object submit_prepared(std::int64_t group, std::span<const std::int64_t> pointers,
                             const bool* absent, bool wake, nb::handle streams, nb::handle memory,
                             double weight, bool notice);
  void release_prepared(std::int64_t group);
  bool wait_many(nb::handle works, nb::list outcomes, nb::handle streams);

  // Enables calls with plain tensors (plain_calls.cc). plain_of(value): the Plain (hvdlite/backends/base.py) of the value's
  // type, or None. work_type: a class derived from Work; None: asynchronous calls return None. Call connect() while no call
  // with plain tensors runs.
  void connect(nb::handle plain_of, nb::handle work_type);
  nb::object allreduce(nb::handle tensor, nb::handle average, nb::handle name, nb::handle op,
                       nb::handle prescale, nb::handle postscale, nb::handle process_set,
                       bool in_place, bool blocking);
  nb::object allreduce_group(nb::handle tensors, nb::handle name, nb::handle op,
                             nb::handle prescale, nb::handle postscale, nb::handle process_set,
                             bool in_place, bool wake);
  nb::object broadcast(nb::handle tensor, nb::handle root, nb::handle name, nb::handle process_set,
                       bool in_place, bool blocking);
  // An allgather or a reducescatter, whose output the engine makes. Blocks.
  nb::object new_shape(int kind, nb::handle tensor, nb::handle name, nb::handle op,
                       nb::handle prescale, nb::handle postscale, nb::handle process_set);
  nb::object message(int kind, nb::handle tensor, nb::handle peer, nb::handle tag, nb::handle name,
                     nb::handle process_set, bool blocking);
  // Submits several messages together. operations: tuples with the five items of a hvdlite.point_to_point.P2POp.
  nb::object messages(const std::vector<int>& kinds, nb::handle operations, nb::handle process_set);

  // For Work. Waits in slices until all operations of these works have ended. Between slices Python handles signals; throws
  // what their handlers raise, and TimeoutError after `limit` seconds.
  WaitResult wait_in_slices(const std::int64_t* works, std::size_t count, double limit);
  // Orders these streams after the operations, if those are on a GPU.
  void order(std::int64_t work, nb::handle streams);
  // Keeps a work that was dropped in flight, until its operations have ended and another operation is submitted, or until
  // shutdown.
  void keep_dropped(nb::handle work) noexcept;
  // The number of operations of dropped works.
  std::size_t dropped_in_flight() const;
  hvdlite_engine* get() const { return engine_; }
  // False in a forked child.
  bool is_here() const;

  void shutdown();

 private:
  std::int64_t start(const hvdlite_submission& what);
  void sweep();
  nb::object start_work(const hvdlite_submission& what, nb::object work, nb::object streams);
  std::int64_t run(const hvdlite_submission& what, nb::handle input, nb::handle output);
  nb::object run_plain(hvdlite_request& request, const char* kind, nb::handle name,
                       nb::handle input, bool in_place, bool blocking);
  // What a plain tensor's request refers to until it is submitted.
  struct Operands {
    std::string name;
    const PlainType* type = nullptr;
    nb::object output;
    std::optional<PlainMemory> from, to;
  };
  bool read_input(hvdlite_request& request, Operands& operands, nb::handle input, bool writable);
  bool read_memory(hvdlite_request& request, Operands& operands, nb::handle input, bool in_place);
  static nb::object step_of(const hvdlite_request& request, const Operands& operands,
                            nb::handle input, bool in_place);
  // Null for values that are not plain.
  const PlainType* plain_type_of(nb::handle array);

  hvdlite_engine* engine_;
  pid_t creator_;
  bool has_shut_down_ = false;
  std::vector<nb::object> dropped_;
  nb::object plain_of_, work_type_;
  std::deque<PlainType> plain_types_;  // the types seen so far; pointers to them stay valid
};

}  // namespace hvdlite::python
