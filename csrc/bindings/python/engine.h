// The engine as a Python object: the C ABI with Python's rules about ownership, signals and exceptions.
// Thread: any, with the GIL held on entry; released while a call waits. Owns: its native engine.
// Blocks: create_mpi, wait, publish_failure and shutdown. Throws: the classes of hvdlite.errors.
#pragma once

#include <sys/types.h>

#include <string>
#include <unordered_map>
#include <vector>

#include "arena.h"
#include "binding.h"
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

class Engine {
 public:
  static Engine* create_inproc(Fabric& fabric, int rank, nb::handle config);
  static Engine* create_mpi(const char* shim_path, std::uintptr_t comm_address, nb::handle config);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  nb::tuple topology() const;
  std::int64_t submit(const Request& request, bool wake);
  nb::list submit_many(nb::handle requests, bool wake);
  bool poll(std::int64_t handle);
  Result wait(std::int64_t handle);
  void release(std::int64_t handle);
  std::vector<std::int32_t> process_set_ids();
  std::vector<std::int32_t> process_set_ranks(std::int32_t id);
  Arena* create_arena(std::int32_t process_set, std::int64_t nbytes, const char* kind);
  void publish_failure(const char* cause);
  nb::str failure_cause();
  nb::str flight_record();
  nb::dict counters();
  void shutdown();

 private:
  explicit Engine(hvdlite_engine* engine);

  hvdlite_engine* engine_;
  pid_t creator_;
};

}  // namespace hvdlite::python
