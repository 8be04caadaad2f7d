// What the parts of the stress program share: a round, and calls of the C ABI.
// Thread: any. Owns: nothing. Blocks: wait() until the operation has ended. Throws: nothing; what must not be ends the process.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hvdlite/hvdlite.h"

namespace stress {

enum Kind {
  kAllreduce = HVDLITE_ALLREDUCE,
  kAllgather = HVDLITE_ALLGATHER,
  kBroadcast = HVDLITE_BROADCAST,
  kBarrier = HVDLITE_BARRIER,
  kJoin = HVDLITE_JOIN,
  kAddProcessSet = HVDLITE_ADD_PROCESS_SET,
  kSend = HVDLITE_SEND,
  kRecv = HVDLITE_RECV
};
inline constexpr int kFloat32 = 10;
inline constexpr int kSum = HVDLITE_SUM;

enum class Ending { kJoin, kFailure, kLeave };

// One operation of the plan that all ranks share: thread t of every member submits it.
struct Step {
  Kind kind;
  int count;
  bool in_pair;  // on the process set {0, 1}
};

// Engines of one job; of `plan` and `gpu_plan` the entry t is what thread t of every rank does.
struct Round {
  int size = 2;
  Ending ending = Ending::kJoin;
  std::vector<std::vector<Step>> plan;
  std::vector<std::vector<Step>> gpu_plan;  // empty: a round without GPUs
  std::vector<hvdlite_engine*> engines;

  int members(const Step& step) const { return step.in_pair ? 2 : size; }
};

// The sum of what the first `members` ranks give: 1, 2, 3 and so on.
inline float sum_of(int members) { return static_cast<float>(members * (members + 1)) / 2; }

[[noreturn]] void die(const std::string& what);
inline void expect(bool condition, const char* what) {
  if (!condition) die(what);
}

hvdlite_request request_for(Kind kind, const std::string& name, int process_set,
                            const int64_t& count, const void* input, void* output);
// The handle; -1 if it was refused.
int64_t submit(hvdlite_engine* engine, const hvdlite_request& request);
int64_t submit(hvdlite_engine* engine, const hvdlite_submission& what);
int64_t submit(hvdlite_engine* engine, Kind kind, const std::string& name, int process_set,
               int64_t count, const void* input, void* output);
// The operation's code once it has ended.
int wait(hvdlite_engine* engine, int64_t work);
// Of a work of one operation.
hvdlite_result result_of(hvdlite_engine* engine, int64_t work);

// The thread that sends and receives (stress_messages.cc).
void message_caller(const Round& round, int rank, unsigned seed);

}  // namespace stress
