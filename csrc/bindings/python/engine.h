// The engine as a Python object: the C ABI with Python's rules about ownership, signals and exceptions.
// Thread: any, with the GIL held on entry; released while a call waits. Owns: its native engine.
// Blocks: create_mpi, wait, wait_into, wait_many, land, run, allreduce_now, broadcast_now, publish_failure and shutdown.
// Throws: the classes of hvdlite.errors.
#pragma once

#include <sys/types.h>

#include <deque>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "arena.h"
#include "binding.h"
#include "plain_memory.h"
#include "request.h"
#include "result.h"

namespace hvdlite::python {

class Fabric {
 public:
  Fabric(int size, nb::handle hosts);
  ~Fabric();
  Fabric(const Fabric&) = delete;
  Fabric& operator=(const Fabric&) = delete;
  void kill(int rank);
  hvdlite_fabric* get() const { return fabric_; }

 private:
  hvdlite_fabric* fabric_ = nullptr;
};

// What a call that ran without the GIL gave.
struct Outcome {
  int code = HVDLITE_OK;
  std::string message;
  bool ended = false;  // of a wait: have all operations ended?
};

// Seconds a wait may take.
inline constexpr double kNoLimit = std::numeric_limits<double>::infinity();

class Engine {
 public:
  static Engine* create_inproc(Fabric& fabric, int rank, nb::handle config);
  static Engine* create_mpi(const char* shim_path, std::uintptr_t comm_address, nb::handle config);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  void make_current();
  nb::tuple topology() const;
  std::int64_t submit(const hvdlite_request& request, bool wake);
  // Adds the handles to the list.
  void submit_many(nb::handle requests, bool wake, nb::list handles);
  Result run(nb::handle request, nb::handle memory, nb::handle keep);
  // The short way (short_way.cc), which works from then on: plain_of tells the Plain of a value's type, keep is called as
  // run's; handle_type is derived from HandleState, or None: then nothing is started. Not while anybody is on it.
  void connect(nb::handle plain_of, nb::handle keep, nb::handle handle_type);
  nb::object allreduce_now(nb::handle tensor, nb::handle average, nb::handle name, nb::handle op,
                           nb::handle prescale, nb::handle postscale, nb::handle process_set,
                           bool in_place);
  nb::object start_allreduce(nb::handle tensor, nb::handle average, nb::handle name, nb::handle op,
                             nb::handle prescale, nb::handle postscale, nb::handle process_set,
                             bool in_place);
  nb::object start_allreduces(nb::handle tensors, nb::handle name, nb::handle op,
                              nb::handle prescale, nb::handle postscale, nb::handle process_set,
                              bool in_place, bool wake);
  nb::object land(nb::handle handle, double limit);
  nb::object broadcast_now(nb::handle tensor, nb::handle root, nb::handle name,
                           nb::handle process_set, bool in_place);
  std::int64_t prepare(nb::handle requests);
  std::int64_t submit_prepared(std::int64_t group, std::span<const std::int64_t> pointers,
                               nb::handle absent, bool wake, std::uintptr_t stream);
  void release_prepared(std::int64_t group);
  bool poll(std::int64_t handle);
  Result wait(std::int64_t handle, double limit, nb::handle streams);
  void wait_into(nb::list outcomes, std::int64_t handle, double limit, nb::handle streams,
                 std::size_t place);
  bool wait_many(nb::handle handles, nb::list outcomes, nb::handle streams);
  void release(std::int64_t handle);
  nb::object new_output(std::size_t bytes);
  GpuMemory new_gpu_output(std::int32_t gpu, std::uintptr_t stream, std::size_t bytes);
  std::int32_t gpu_of_address(std::uintptr_t address);
  std::vector<std::int32_t> process_set_ids();
  std::vector<std::int32_t> process_set_ranks(std::int32_t id);
  Arena* create_arena(std::int32_t process_set, std::int64_t nbytes, const char* kind);
  void start_timeline(const char* path, std::int64_t max_bytes, bool mark_cycles);
  void stop_timeline();
  bool await_question();
  void tell_whereabouts(const char* text);
  void excuse(double seconds);
  void publish_failure(const char* cause);
  nb::str failure_cause();
  nb::str flight_record(std::int64_t ended);
  nb::dict counters();
  nb::tuple lateness();
  void shutdown();

 private:
  explicit Engine(hvdlite_engine* engine);
  Outcome wait_in_slices(const std::int64_t* handles, std::size_t count, double limit = kNoLimit);
  template <typename HandOver>
  Outcome end(std::int64_t handle, double limit, HandOver hand_over);
  Result result_of(std::int64_t handle, const Outcome& outcome, nb::handle streams);
  template <typename Collect>
  auto finish(std::int64_t handle, const Outcome& outcome, Collect collect);
  void order(std::int64_t handle, nb::handle streams);
  nb::object run_now(hvdlite_request& request, const char* kind, nb::handle name, nb::handle input,
                     bool in_place);
  // What a request of the short way needs of one tensor, which has to stay until it is submitted.
  struct Operands {
    const PlainType* type = nullptr;
    nb::object output;
    std::optional<PlainMemory> from, to;
  };
  bool read_memory(hvdlite_request& request, Operands& operands, nb::handle input, bool in_place);
  template <typename Act>
  nb::object with_memory(hvdlite_request& request, const char* kind, nb::handle name,
                         nb::handle input, bool in_place, Act act);
  // Submits one operation and waits for it. Its memory is that of these two.
  void run_through(const hvdlite_request& request, nb::handle input, nb::handle output);
  // Null for values that are not plain.
  const PlainType* plain_type_of(nb::handle array);

  hvdlite_engine* engine_;
  pid_t creator_;
  nb::object plain_of_, keep_, handle_type_;
  std::deque<PlainType> plain_types_;  // those seen so far; they stay where they are
};

}  // namespace hvdlite::python
