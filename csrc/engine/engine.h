// One rank's engine: what callers see. Any number of engines can live in one process (ranks as threads).
// Thread: every public function may be called by any thread, except shutdown and the destructor: one thread, last.
// Owns: the transport, the shared state, the cycle and the engine thread. Blocks: wait, shutdown and publish_failure only.
// Throws: Error as each function says.
//
// The progress token: whoever holds it drives the cycle. A caller that waits takes it and drives itself, so that a blocking
// operation needs no thread switch; the engine thread takes it only while no caller waits. Who fails or leaves claims it, and
// is given it after the pass that is under way.
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

struct Topology {
  int rank = 0, size = 1, local_rank = 0, local_size = 1, cross_rank = 0, cross_size = 1;
  bool is_homogeneous = true;
};

// What a caller asks for, with the memory it concerns.
struct Ask {
  RequestView request;
  const void* input = nullptr;
  void* output = nullptr;
};

// What a caller submits in one go: requests, or the group that they were prepared as, in place.
struct Submission {
  std::span<const Ask> asks;
  std::int64_t group = 0;  // instead: a prepared group, and with it the four below
  std::span<void* const> data;
  // For which requests this rank has no value, but takes the result; empty: for none.
  std::span<const bool> absent;
  void* stream = nullptr;  // on a GPU
  double weight = 0;       // of weighted requests
  bool wake = true;        // nobody is about to wait
};

// While callers drive, the engine thread looks in only this often.
inline constexpr base::microseconds kStandAside{20'000};

class Engine {
 public:
  Engine(std::unique_ptr<transport::Transport> transport, Topology topology,
         const base::Config& config, const base::Waiting& waiting);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  const Topology& topology() const { return topology_; }

  // All or nothing. *handle becomes that of all, before the watcher can be told. Throws Error(InvalidArgument, Unsupported) for what
  // no rank could do, Error(Aborted, PeerLost...) once the engine has failed or shut down.
  // Those without a name are of one kind on one set, and get theirs here: each by its number or, where they form a group (its
  // size given, but no label), all by one. The watcher is told by whoever drives, without the token, so that it may wait.
  void submit(const Submission& what, std::int64_t* handle,
              std::unique_ptr<Watcher> watcher = nullptr);
  // Checks allreduces that will be submitted together many times, and gives their group an id. The memory counts where a
  // request names an arena: it is the tensor's place there, and whenever the tensor lies elsewhere it names none.
  std::int64_t prepare(std::span<const Ask> asks);
  void release_prepared(std::int64_t id) { prepared_.release(id); }
  bool poll(std::int64_t handle) const;
  // True when all operations behind these handles are done; then *failed is the first that failed, or null. A caller drives
  // progress meanwhile.
  bool wait(std::span<const std::int64_t> handles, base::microseconds limit, CompletionPtr* failed);
  // What the CUDA stream does from now on comes after the operations behind the handle, which are done. Throws the engine's
  // failure, if there was one: what it cut short has left garbage.
  void order(std::int64_t handle, void* stream) const;
  Batch completions(std::int64_t handle) const { return shared_.handles.find(handle); }
  void release(std::int64_t handle) { shared_.handles.release(handle); }

  // Memory for a result of a caller's own making; it may outlive the engine.
  OutputCache::Block new_output(std::size_t bytes) const;
  // The same on a GPU, usable in the order of a stream.
  device::Buffer new_gpu_output(int gpu, std::size_t bytes, void* stream);
  // The GPU on which an address is, -1 for host memory; for null the one that this rank would take by its place on the host.
  int gpu_of_address(const void* address);
  device::GpuPtr gpu(int ordinal) { return shared_.devices.device(ordinal).gpu; }

  void shutdown();
  // Fails this rank; what it has in flight ends with the cause, too.
  void publish_failure(const std::string& cause);
  std::string failure_cause() const;
  const FlightRecorder& recorder() const { return shared_.recorder; }
  // A trace of this rank's operations. Error(InvalidArgument) if the file cannot be made.
  void start_timeline(const std::string& path, std::size_t max_bytes, bool cycles) {
    require_accepting();
    shared_.timeline.start(path, max_bytes, cycles);
  }
  void stop_timeline() { shared_.timeline.stop(); }
  // Where the binding's thread waits until another rank asks where this one is.
  Watchdog& watchdog() { return shared_.watchdog; }
  void excuse(double seconds) { shared_.excuse.set(seconds); }
  const Counters& counters() const { return shared_.counters; }
  const Usage& usage() const { return shared_.usage; }
  const SetDirectory& sets() const { return shared_.sets; }
  device::Devices& devices() { return shared_.devices; }
  // This rank's part of an arena for a process set, zero, with its pages reserved. Error(InvalidArgument) for a set that this
  // rank is not in, Error(Unsupported) if its members cannot share memory of that kind ("memfd" or "shm"), Error(System) if
  // the machine has not got the memory.
  std::unique_ptr<ArenaDraft> create_arena(std::int32_t set, const std::string& kind,
                                           std::size_t bytes);
  // False in a forked child, where nothing of the engine may be used.
  bool usable_in_this_process() const;

 private:
  // What a caller that drives knows of the passes since something last moved.
  struct Stillness {
    std::optional<base::Clock::time_point> since;
    bool sleeps = false;  // so long that it sleeps between passes
    bool unrung = false;  // what sleep() said at last
  };

  void require_accepting() const;
  RequestPtr check(const RequestView& view, const SetDirectory::Info& set) {
    return check_request(view, set, shared_.sets, topology_.size, shared_.devices);
  }
  PreparedGroup::Asked ask(const RequestView& view, const SetDirectory::Info& set);
  // set: what is known already of a process set that these are on.
  void intern(std::span<const Ask> asks, SetDirectory::Info set, std::span<Entry> entries);
  PreparedGroup::Member prepare_member(const Ask& ask, std::int64_t* arena);
  void fill(const PreparedGroup& group, const Submission& what, std::span<Entry> entries);
  // What submissions have beside the operations.
  struct Launch {
    bool wake;
    std::int64_t* handle;
    std::unique_ptr<Watcher> watcher;
  };
  void submit_named(std::span<const Ask> asks, SetDirectory::Info set, Launch launching);
  void submit_unnamed(std::span<const Ask> asks, const Ask& first, Launch launching);
  void submit_group(const Submission& what, Launch launching);
  void launch(std::span<Entry> entries, Launch launching);
  void enqueue(std::span<Entry> entries, bool wake);
  bool wait_for_all(const Batch& batch, base::Clock::time_point deadline,
                    base::Clock::time_point* ended);
  // Until the deadline, which is not over; *ended: when it ended, if it is done.
  bool wait_for(const CompletionPtr& completion, base::Clock::time_point deadline,
                base::Clock::time_point* ended);
  void run();
  bool try_take_token() { return !token_.exchange(true, std::memory_order_acquire); }
  void give_token_back();
  static void tell(std::vector<std::unique_ptr<Watcher>> watchers);
  void drive(const CompletionPtr& completion, base::Clock::time_point deadline);
  void drive_until(bool (Engine::*done)(), double seconds);
  bool is_time_for_messages(const Stillness& still);
  bool pass_or_pause(Stillness* still, base::Clock::time_point deadline, base::microseconds limit);
  void take_token_or_wait();
  bool claimed() const { return claims_.load(std::memory_order_relaxed) > 0; }
  // A rank that has failed has nothing left to do and takes no leave.
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
  const base::Waiting waiting_;
  bool bells_reach_all_ = true;
  Cycle cycle_;
  void* fork_canary_ = nullptr;  // a page that reads as zero in a forked child

  std::atomic<std::int64_t> arenas_created_{0};
  std::atomic<bool> token_{false};
  std::atomic<int> claims_{0};  // threads that wait for the token before all others
  std::uint32_t passes_ = 0;    // of callers, since they looked for messages; the token holder's
  std::atomic<int> waiting_callers_{0};
  std::atomic<bool> stop_{false};
  std::atomic<bool> shut_down_{false};
  std::atomic<bool> closed_{false};  // nothing can end any more
  Event kick_;                       // wakes the engine thread while it stands aside for callers
  std::thread thread_;
};

}  // namespace hvdlite::engine
