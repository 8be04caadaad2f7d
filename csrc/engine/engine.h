// One rank's engine as callers see it. Any number of engines can live in one process (in tests the ranks of a job are threads
// of one process).
// Thread: any thread may call any public function, also during shutdown() and after it. Call the destructor only after all
// other calls have returned, and never in a forked child. Owns: the transport, the shared state, the cycle and the engine
// thread.
// Blocks: only wait, pause, shutdown (also in the destructor) and publish_failure wait for other ranks; the first request for a
// GPU opens it, which may take seconds. Throws: Error, as each function says. Functions that take a handle (the number of a
// submission), except release(), throw Error(InvalidArgument) for an unknown handle; functions about GPUs throw what
// device/devices.h says.
//
// The progress token: the thread that holds it drives the cycle, that is, it makes the cycle's passes. A caller that waits
// takes the token and drives, so that a blocking operation needs no switch of threads. The engine thread takes the token only
// while no caller waits. A thread that pauses the engine, or makes this rank fail or leave, claims the token: then the driving
// thread gives the token back after its current pass.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>

#include "engine/cycle.h"
#include "engine/intake/check_request.h"
#include "engine/intake/device_memory.h"
#include "engine/intake/interner.h"
#include "engine/intake/prepared.h"
#include "engine/intake/shared_state.h"
#include "transport/transport.h"

namespace hvdlite::engine {

using base::Topology;

// One request of a caller, and the memory of its tensor.
struct Ask {
  RequestView request;
  const void* input = nullptr;
  void* output = nullptr;
};

// One submission of a caller: requests, or a group that was prepared earlier.
struct Submission {
  std::span<const Ask> asks;
  std::int64_t group = 0;  // instead of `asks`: a prepared group, with the four fields below
  // The addresses of the tensors, in the group's order.
  std::span<void* const> data;
  // absent[i]: this rank has no value for data[i], and only takes the result. Empty: this rank has all values.
  std::span<const bool> absent;
  void* stream = nullptr;    // as RequestView::stream
  Weight weight;             // of a group of weighted requests
  bool wake = true;          // wake the engine thread, because no caller is about to wait
  bool pool_thread = false;  // deadlock detection considers the calling thread only while it waits
};

class Engine {
 public:
  // Starts the engine thread. Throws what selection_of() (set_up.h) and the transport throw, and std::system_error if no thread
  // can be started.
  Engine(std::unique_ptr<transport::Transport> transport, Topology topology,
         const base::Config& config, const base::WaitPolicy& waiting);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const Topology& topology() const { return topology_; }

  // Takes all operations of the submission (there must be at least one), or throws and takes none. The watcher is called when
  // all of them have ended; *handle is set before that. Throws Error(InvalidArgument, Unsupported, System) for requests that
  // this rank refuses, for names that are in flight and for an unknown prepared group. After the engine has failed, throws the
  // first failure; after shutdown() and in a forked child, Error(NotInitialized). All operations without a name must be of one
  // kind on one set (sends and receives may be mixed), and have no group label. submit() names them. If they form a group
  // (group_size says so), all these names have one number; if not, each name has a number of its own. The thread that drives
  // calls the watcher after it has given the token back (at shutdown: after the engine is closed), so the watcher may wait for
  // other operations.
  void submit(const Submission& what, std::int64_t* handle,
              std::unique_ptr<Watcher> watcher = nullptr);
  // Checks allreduces that will be submitted together many times, and returns the id of their group. Each needs a name. If a
  // request names an arena, its output is the tensor's place there. A later submission gives the tensor's address again. If
  // this address is not the place in the arena, the operation does not use the arena for the tensor. Throws as submit() does.
  std::int64_t prepare(std::span<const Ask> asks);
  void release_prepared(std::int64_t id) { prepared_.release(id); }
  // Are all operations behind this handle done? If not, makes sure that the engine thread drives them.
  bool poll(std::int64_t handle);
  // Waits until all operations behind these handles are done, and drives the cycle meanwhile. Returns false if that takes
  // longer than `limit`. Otherwise *failed, which must be null before the call, is the first operation that failed, if any has.
  // Throws Error(InvalidArgument) for an unknown handle, and Error(Aborted) if the engine closes before the operations are
  // done.
  bool wait(std::span<const std::int64_t> handles, base::microseconds limit, CompletionPtr* failed);
  // Orders the CUDA stream: its later work comes after the operations behind the handle. Throws Error(InvalidArgument) if one
  // of them is not done. For operations on GPU memory, also throws this rank's failure if there was one, because the operations
  // that the failure interrupted have left garbage in their outputs.
  void order(std::int64_t handle, void* stream) const;
  CompletionArray completions(std::int64_t handle) const { return shared_.handles.find(handle); }
  void release(std::int64_t handle) { shared_.handles.release(handle); }

  // Memory for a result whose size the caller knows. The memory may outlive the engine.
  OutputCache::Block new_output(std::size_t bytes) const;
  // As new_output(), but in a GPU's memory. Only work that comes later in this stream may use the memory.
  device::Buffer new_gpu_output(int gpu, std::size_t bytes, void* stream);
  // The GPU in whose memory an address lies; -1: host memory. For null: the GPU that matches this rank's place on the host.
  int gpu_of_address(const void* address);
  device::GpuPtr gpu(int ordinal) { return shared_.devices.device(ordinal).gpu; }

  // After pause() no thread drives the engine until resume(). So no thread of the engine calls MPI, and shutdown() and
  // publish_failure() wait. Other ranks need this rank for agreed operations, so pause() first waits until these operations
  // have ended, or nothing has moved for failure_linger seconds (an operation of NCCL moves something only when it ends). The
  // thread that calls pause() must also call resume(). If shutdown() comes first, pause() waits for the end of shutdown() and
  // throws Error(NotInitialized). In a forked child pause() throws this error at once.
  void pause();
  void resume();
  // Waits as pause() does, says goodbye to the other ranks, and ends all operations of this rank. A second call returns at
  // once, and so does a call in a forked child.
  void shutdown();
  // Makes this rank fail: all its operations end with the cause. Waits for FailureDetector::failure_seen_by_all(), but not
  // longer than failure_linger. Does nothing if this rank has failed or shut down already, or is alone, or in a forked child.
  void publish_failure(const std::string& cause);
  std::string failure_cause() const;  // of the first failure; "": there is none
  const FlightRecorder& recorder() const { return shared_.recorder; }
  // As Timeline::start. After a failure or shutdown(), throws as submit() does.
  void start_timeline(const std::string& path, std::size_t max_bytes, bool cycles) {
    require_accepting();
    shared_.timeline.start(path, max_bytes, cycles);
  }
  void stop_timeline() { shared_.timeline.stop(); }
  Watchdog& watchdog() { return shared_.watchdog; }
  void exempt_from_stalls(double seconds) { shared_.stall_exemption.set(seconds); }
  const Counters& counters() const { return shared_.counters; }
  const Usage& usage() const { return shared_.usage; }
  const SetDirectory& sets() const { return shared_.sets; }
  device::Devices& devices() { return shared_.devices; }
  // This rank's part of an arena for a process set: zeros, with its pages reserved. Throws Error(InvalidArgument) for a set
  // without this rank, for 0 bytes and for an unknown kind, Error(Unsupported) if the members cannot share memory of that kind
  // ("memfd" or "shm"), and Error(System) if the machine lacks the memory.
  std::unique_ptr<ArenaDraft> create_arena(std::int32_t set, const std::string& kind,
                                           std::size_t bytes);
  // False in a forked child, where submit, prepare, wait, start_timeline, new_output and create_arena throw
  // Error(NotInitialized).
  bool usable_in_this_process() const;

 private:
  // What a driving thread remembers until something moves.
  struct Stillness {
    std::optional<base::Clock::time_point> since;  // the time of the first pass that did nothing
    bool sleeps = false;  // it has waited for so long that it sleeps between passes
    bool unrung = false;  // the last answer of sleep()
  };

  void require_accepting() const;
  RequestPtr check(const RequestView& view, const SetDirectory::Info& set) {
    return check_request(view, set, shared_.sets, topology_.size, shared_.devices);
  }
  // The checked request, and its copy for submissions in which this rank has no value.
  PreparedGroup::RequestPair pair_of(const RequestView& view, const SetDirectory::Info& set);
  // set: the process set of the first request, if the caller has looked it up; otherwise an Info without members.
  void intern(std::span<const Ask> asks, SetDirectory::Info set, std::span<Entry> entries);
  PreparedGroup::Member prepare_member(const Ask& ask, std::int64_t* arena);
  void fill(const PreparedGroup& group, const Submission& what, std::span<Entry> entries);
  // What launch() gets of a submission, apart from its entries.
  struct Launch {
    bool wake;
    bool pool_thread;
    std::int64_t* handle;
    std::unique_ptr<Watcher> watcher;
  };
  void submit_named(std::span<const Ask> asks, SetDirectory::Info set, Launch launching);
  void submit_unnamed(std::span<const Ask> asks, const Ask& first, Launch launching);
  void submit_group(const Submission& what, Launch launching);
  void launch(std::span<Entry> entries, Launch launching);
  void enqueue(std::span<Entry> entries, bool wake);
  bool push(std::span<Entry> entries);
  bool pass_at_once(bool whole);
  // Has any operation been submitted that has not ended?
  bool has_work() const {
    const Counters& counters = shared_.counters;
    return counters.submitted.load(std::memory_order_relaxed) !=
           counters.completed + counters.failed;
  }
  bool wait_for_all(const CompletionArray& batch, base::Clock::time_point deadline,
                    base::Clock::time_point* ended);
  // Waits until the operation is done (returns true) or until the deadline (returns false). *ended: when the wait ended.
  bool wait_for(const CompletionPtr& completion, base::Clock::time_point deadline,
                base::Clock::time_point* ended);
  void run();
  bool try_take_token() { return !token_.exchange(true, std::memory_order_acquire); }
  void wake_engine_thread();
  void give_token_back();
  static void tell(std::vector<std::unique_ptr<Watcher>> watchers);
  void drive(const CompletionPtr& completion, base::Clock::time_point deadline);
  void drive_until(bool (Engine::*done)(), double seconds);
  bool is_time_for_messages(const Stillness& still);
  bool pass_or_pause(Stillness* still, base::Clock::time_point deadline, base::microseconds limit);
  bool take_token_or_wait();
  bool claimed() const { return claims_.load(std::memory_order_relaxed) > 0; }
  // A failed rank has nothing left to do, and says no goodbye.
  bool drained() { return shared_.failure.happened() || cycle_.drained(); }
  bool said_goodbye() { return shared_.failure.happened() || cycle_.say_goodbye(); }
  bool seen_by_all() { return cycle_.failure_seen_by_all(); }
  bool sleep(std::uint32_t seen, const Outlook& outlook, base::microseconds most);
  void count_unrung_find() {
    shared_.counters.unrung_finds.fetch_add(1, std::memory_order_relaxed);
  }
  void require_usable() const;

  std::unique_ptr<transport::Transport> transport_;
  Topology topology_;
  SharedState shared_;
  std::mutex interning_;
  Interner interner_;
  KnownAddresses known_addresses_;
  PreparedGroups prepared_;
  const base::WaitPolicy waiting_;
  bool bells_reach_all_ = true;
  Cycle cycle_;
  void* fork_canary_ = nullptr;  // a page that reads as zero in a forked child

  std::atomic<std::int64_t> arenas_created_{0};
  std::atomic<bool> token_{false};
  std::atomic<int> claims_{0};  // threads that must get the token before all others
  // The passes of callers since the last thorough pass. Only the token's holder uses this number.
  std::uint32_t passes_ = 0;
  std::atomic<int> waiting_callers_{0};
  std::atomic<bool> stop_{false};
  std::atomic<bool> shut_down_{false};
  std::atomic<bool> closed_{false};  // no operation can end any more
  EventCount kick_;                  // wakes the engine thread, which sleeps while callers drive
  std::thread thread_;
};

}  // namespace hvdlite::engine
