// The objects of the fake driver: GPUs with their contexts, streams with their queues, events, modules, and one thread that
// executes what is in the queues.
// Thread: any; one lock for all of it. Owns: all objects; never destroyed, as a driver is not. Blocks: as the driver does.
// Throws: nothing; an impossible state ends the process with a line on stderr.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "control.h"
#include "device/cuda_abi.h"

#pragma GCC visibility push(default)  // the other fake libraries call it, too
namespace fake {

namespace cuda = hvdlite::device::cuda;
using cuda::Result;
using Clock = std::chrono::steady_clock;

inline constexpr Result kInvalidValue = 1;
inline constexpr Result kInvalidDevice = 101;
inline constexpr Result kInvalidImage = 200;
inline constexpr Result kInvalidContext = 201;
inline constexpr Result kInvalidHandle = 400;
inline constexpr Result kNotFound = 500;
inline constexpr Result kIllegalAddress = 700;
inline constexpr Result kCaptureUnsupported = 900;
inline constexpr Result kCaptureImplicit = 906;

// One cuEventRecord.
struct Record {
  std::atomic<bool> done{false};
  Clock::time_point when;
};
using RecordPtr = std::shared_ptr<Record>;

// What a stream does next. Both parts run on the scheduler's thread.
struct Operation {
  const char* what = "";
  // Asked with the lock held as long as the operation is the first in its stream; empty: always ready.
  std::function<bool()> ready;
  // Without the lock. An error sticks to the context.
  std::function<Result()> run;
  // Does ready() change without the world changing? Then it is asked again and again.
  bool poll = false;
  std::uint64_t number = 0;  // in the order of all calls
};

struct Context;

struct Stream {
  Context* context = nullptr;
  unsigned flags = 0;
  int priority = 0;
  bool legacy = false;
  bool destroyed = false;
  bool implicit = false;  // default streams: nobody creates or destroys them
  bool held = false;      // nothing in it begins until a test lets it
  int capture_status = 0;
  std::deque<Operation> queue;
};

struct Event {
  Context* context = nullptr;
  unsigned flags = 0;
  RecordPtr latest;
};

struct Context {
  int device = 0;
  int retained = 0;
  Result error = 0;  // sticky
  std::size_t allocated = 0;
  Stream legacy;
  std::map<std::thread::id, Stream> per_thread;
};

// Another fake library that keeps things; its functions are called with the lock held. It makes itself known while it is being
// loaded, when it holds the loader's lock, which whoever holds the world's may have to wait for: hence a list without a lock.
struct Companion {
  std::string (*leaks)();
  void (*reset)();
  // Was it called for this stream, without having enqueued its work yet? Null: never.
  bool (*owes)(const Stream& stream) = nullptr;
  const Companion* next = nullptr;
};

struct World {
  std::mutex mutex;
  std::condition_variable changed;
  bool initialised = false;
  long process = 0;
  std::map<int, Context> contexts;
  std::map<const void*, std::unique_ptr<Stream>> streams;
  std::map<const void*, std::unique_ptr<Event>> events;
  std::map<const void*, std::string> modules;  // the image's text
  std::uint64_t operations = 0;                // numbered so far
  bool executing = false;                      // an operation runs right now
  const Context* executing_in = nullptr;
  bool started = false;                               // the scheduler's thread
  std::atomic<const Companion*> companions{nullptr};  // none is ever taken away
};

using Lock = std::unique_lock<std::mutex>;
World& world();
// For ever; takes no lock.
void make_known(Companion& companion);

// An injected error, or 0: those that a GPU does not recover from stick to the current context. Takes the lock.
Result fail(int code);

// The calling thread's context (null if it has none), or why a call that needs one fails. Lock held.
Result current(Context** context);
// For calls that could disturb the capture of a stream into a graph: 900 while there is one and the thread has not said that
// it knows (cuThreadExchangeStreamCaptureMode). Lock held.
Result unsafe_in_capture();
// The stream behind a handle, 0, 1 and 2 included. Lock held; `context` is the current one.
Result find_stream(cuda::Stream handle, Context* context, Stream** stream);
// At the end of a stream's queue. Lock held.
void enqueue(Stream& stream, Operation operation);
// Sleeps until all that is in this stream now is done; the context's error, if there is one.
Result drain(Lock& lock, Stream& stream);
// Sleeps until all streams of the context have done what they have now.
Result drain_all(Lock& lock, Context& context);
// Wakes the scheduler and whoever waits.
void notify();

// Every stream of the world with something in its queue (or not). Lock held.
std::vector<Stream*> all_streams();
}  // namespace fake
#pragma GCC visibility pop
