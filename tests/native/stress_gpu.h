// The stress program's fake GPUs (tests/native/fake_gpu), and callers whose tensors lie there. Rank r has GPU r.
// Thread: any. Owns: the library of the fake driver; a rank's memory and streams. Blocks: callers until their operations have
// ended and, to look at results, until a stream has. Throws: nothing; what must not be ends the process.
#pragma once

#include <random>
#include <string>
#include <thread>

#include "stress.h"

namespace stress {

inline constexpr int kGpuThreadsPerRank = 2;

// What lets an engine find the fakes instead of NVIDIA's libraries; the texts live as long as the process.
void use_fake_gpus(hvdlite_config& config);

// The fakes' state for one round: as many GPUs as ranks, delays and order of the streams by a seed. The end finds out whether the
// engines, which are destroyed by then, have left anything there.
class GpuRound {
 public:
  GpuRound(int gpus, unsigned seed);
  ~GpuRound();
  GpuRound(const GpuRound&) = delete;
  GpuRound& operator=(const GpuRound&) = delete;
};

// Allreduces, broadcasts and allgathers of the plan's thread, in a stream of its own, whose results another stream reads.
void gpu_caller(const Round& round, int rank, int thread, int pair_set, unsigned seed);
// A prepared group, submitted again and again without ever waiting for the GPU; one of the ranks is absent in turn.
void gpu_group_caller(const Round& round, int rank);

// Allreduces one after the other until one fails, so that the engine ends under them.
class LateCaller {
 public:
  LateCaller(const Round& round, int rank);
  // Once the engine has shut down: waits for the thread's end.
  ~LateCaller() { thread_.join(); }
  LateCaller(const LateCaller&) = delete;
  LateCaller& operator=(const LateCaller&) = delete;

 private:
  std::thread thread_;
};

}  // namespace stress
