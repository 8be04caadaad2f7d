// A fake communicator, and the work that its calls make of it.
// Thread: any, the world's lock. Owns: its reference to the segment. Blocks: no, but where a blocking communicator was asked for.
// Throws: nothing.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "driver/memory.h"
#include "nccl/segment.h"
#include "world.h"

namespace fake {

inline constexpr nccl::Result kNcclSystemError = 2;
inline constexpr nccl::Result kNcclInvalidArgument = 4;
inline constexpr nccl::Result kNcclInvalidUsage = 5;
inline constexpr nccl::Result kNcclRemoteError = 6;

// One call. Collective operations are numbered; messages find each other by their order in a mailbox.
struct Part {
  Header header;
  cuda::Address from = 0;
  cuda::Address to = 0;
  int peer = -1;
  std::uint64_t number = 0;
  bool published = false;
  bool done = false;
};

// All calls between ncclGroupStart and ncclGroupEnd on one communicator: one operation of the stream.
struct Group {
  std::shared_ptr<Segment> segment;
  int rank = 0;
  int size = 0;
  std::vector<Part> parts;
  bool aborted = false;
  bool finished = false;
  Result error = 0;
};
// Goes as far as it gets; true when nothing is left to do. Lock held.
bool advance(Group& group);

struct NcclComm {
  std::shared_ptr<Segment> segment;
  nccl::UniqueId id;
  int rank = 0;
  int size = 0;
  Context* context = nullptr;
  bool blocking = false;
  bool ready = false;  // all have joined
  Clock::time_point joined_at;
  bool finalizing = false;
  int polls_left = 0;      // until what was called last is over
  nccl::Result error = 0;  // asynchronous
  std::string text;        // of the error
  std::uint64_t collectives = 0;
  struct Waiting {
    cuda::Stream stream;
    std::shared_ptr<Group> group;
  };
  std::vector<Waiting> waiting;             // called, but not in the stream yet
  std::vector<std::weak_ptr<Group>> begun;  // in the stream
};

NcclComm* find_comm(nccl::Comm handle);  // lock held
nccl::Result refuse(NcclComm* comm, nccl::Result result, const std::string& text);
// What ncclCommGetAsyncError says; each look brings what is under way a step further. Lock held.
nccl::Result look(NcclComm& comm);
// May it be used now? Lock held.
nccl::Result usable(NcclComm& comm);
// A blocking communicator waits here until what was called is over.
nccl::Result settle(Lock& lock, NcclComm& comm);
int random_polls();

}  // namespace fake
