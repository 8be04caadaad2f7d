// Communicators: made without blocking, looked after by ncclCommGetAsyncError, finished or aborted.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "nccl/comm.h"

namespace fake {
namespace {

std::map<const void*, std::unique_ptr<NcclComm>>& comms() {
  static auto& all = *new std::map<const void*, std::unique_ptr<NcclComm>>;
  return all;
}

// Whatever of it is in a stream ends, and means nothing.
void abort_work(NcclComm& comm) {
  for (const auto& begun : comm.begun) {
    if (const auto group = begun.lock()) group->aborted = true;
  }
  notify();
}

std::string leaks() {
  return comms().empty() ? "" : std::to_string(comms().size()) + " NCCL communicators\n";
}

void reset() {
  comms().clear();
  Segment::forget_all();
}

bool owes(const Stream& stream) {
  for (const auto& [handle, comm] : comms()) {
    for (const NcclComm::Waiting& waiting : comm->waiting) {
      Stream* its = nullptr;
      if (find_stream(waiting.stream, comm->context, &its) == 0 && its == &stream) return true;
    }
  }
  return false;
}

Companion companion = {leaks, reset, owes};
[[maybe_unused]] const bool known_to_the_world = (make_known(companion), true);

thread_local std::string t_last_error;

// NCCL tells hosts apart by a hash of the name, or what the user sets instead.
std::string host_name() {
  if (const char* own = std::getenv("NCCL_HOSTID")) return own;
  char name[64] = {};
  gethostname(name, sizeof(name) - 1);
  return name;
}

bool all_joined(NcclComm& comm) {
  for (int rank = 0; rank < comm.size; ++rank) {
    const Member& member = comm.segment->shared().members[rank];
    if (member.joined.load() == 0) return false;
    if (member.size.load() != comm.size) {
      comm.segment->fail(kNcclInvalidArgument, "ranks give different sizes of the communicator");
    }
  }
  return true;
}

void check_duplicates(NcclComm& comm) {
  const char* allowed = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  if (allowed != nullptr && std::strcmp(allowed, "1") == 0) return;
  const Member* members = comm.segment->shared().members;
  for (int i = 0; i < comm.size; ++i) {
    for (int j = 0; j < i; ++j) {
      if (std::memcmp(members[i].uuid, members[j].uuid, sizeof(members[i].uuid)) != 0 ||
          std::strcmp(members[i].host, members[j].host) != 0) {
        continue;
      }
      char text[160];
      std::snprintf(text, sizeof(text),
                    "Duplicate GPU detected : rank %d and rank %d both on one CUDA device", j, i);
      comm.segment->fail(kNcclInvalidUsage, text);
    }
  }
}

nccl::Result join(NcclComm& comm) {
  Member& member = comm.segment->shared().members[comm.rank];
  std::memcpy(member.uuid, &comm.context->device, sizeof(int));
  std::snprintf(member.host, sizeof(member.host), "%s", host_name().c_str());
  member.size.store(comm.size);
  comm.joined_at = Clock::now();
  if (member.joined.exchange(1) != 0) {
    comm.segment->fail(kNcclInvalidUsage,
                       ("rank " + std::to_string(comm.rank) + " joins twice").c_str());
  }
  return nccl::kInProgress;
}

bool work_left(NcclComm& comm) {
  for (const auto& begun : comm.begun) {
    const auto group = begun.lock();  // gone: out of the stream
    if (group != nullptr && !group->finished) return true;
  }
  comm.begun.clear();
  return false;
}

nccl::Result put_into_stream(NcclComm& comm) {
  for (NcclComm::Waiting& waiting : std::exchange(comm.waiting, {})) {
    Stream* stream = nullptr;
    if (find_stream(waiting.stream, comm.context, &stream) != 0 ||
        stream->context != comm.context) {
      return refuse(&comm, 1, "the stream is not one of the communicator's GPU");
    }
    std::shared_ptr<Group> group = waiting.group;
    comm.begun.push_back(group);
    Operation operation;
    operation.what = "an operation of NCCL";
    operation.poll = true;
    operation.ready = [group] { return advance(*group); };
    operation.run = [group] { return group->error; };
    enqueue(*stream, std::move(operation));
  }
  return nccl::kSuccess;
}

}  // namespace

NcclComm* find_comm(nccl::Comm handle) {
  const auto found = comms().find(handle);
  return found == comms().end() ? nullptr : found->second.get();
}

nccl::Result refuse(NcclComm* comm, nccl::Result result, const std::string& text) {
  t_last_error = text;
  if (comm != nullptr) comm->text = text;
  return result;
}

int random_polls() { return static_cast<int>(random_source()() % 4); }

nccl::Result look(NcclComm& comm) {
  const int failed = comm.segment->shared().failed.load();
  if (failed != 0 && comm.error == 0) {
    comm.error = failed;
    comm.text = comm.segment->shared().failure;
  }
  if (comm.error == 0 && comm.context->error != 0) comm.error = 1;  // unhandled cuda error
  if (comm.error != 0) return comm.error;
  if (!comm.ready) {
    const std::chrono::milliseconds least(settings().nccl_start_ms);
    if (!all_joined(comm) || (!comm.blocking && Clock::now() < comm.joined_at + least)) {
      return nccl::kInProgress;
    }
    if (comm.polls_left-- > 0) return nccl::kInProgress;
    check_duplicates(comm);
    Segment::forget_id(comm.id);
    comm.ready = true;
    return look(comm);
  }
  if (comm.polls_left > 0) {
    --comm.polls_left;
    return nccl::kInProgress;
  }
  if (!comm.waiting.empty()) comm.error = put_into_stream(comm);
  if (comm.finalizing && work_left(comm)) return nccl::kInProgress;
  return comm.error;
}

nccl::Result usable(NcclComm& comm) {
  const nccl::Result state = look(comm);
  if (state == nccl::kInProgress) {
    return refuse(&comm, kNcclInvalidArgument,
                  "Attempt to use communicator before the previous operation returned ncclSuccess");
  }
  if (state == 0 && comm.finalizing)
    return refuse(&comm, kNcclInvalidUsage, "the communicator is finalized");
  return state;
}

nccl::Result settle(Lock& lock, NcclComm& comm) {
  if (!comm.blocking) return nccl::kInProgress;
  for (;;) {
    const nccl::Result state = look(comm);
    if (state != nccl::kInProgress) return state;
    world().changed.wait_for(lock, std::chrono::milliseconds(1));
  }
}

}  // namespace fake

using fake::Lock;
using fake::NcclComm;
using fake::world;
namespace nccl = hvdlite::device::nccl;

FAKE_EXPORT nccl::Result ncclGetVersion(int* version) {
  FAKE_ENTER("ncclGetVersion");
  *version = fake::settings().nccl_version;
  return nccl::kSuccess;
}

FAKE_EXPORT nccl::Result ncclGetUniqueId(nccl::UniqueId* id) {
  FAKE_ENTER("ncclGetUniqueId");
  return fake::Segment::make_id(id);
}

FAKE_EXPORT const char* ncclGetErrorString(nccl::Result result) {
  constexpr const char* kTexts[] = {
      "no error",
      "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
      "unhandled system error (run with NCCL_DEBUG=INFO for details)",
      "internal error - please report this issue to the NCCL developers",
      "invalid argument (run with NCCL_DEBUG=WARN for details)",
      "invalid usage (run with NCCL_DEBUG=WARN for details)",
      "remote process exited or there was a network error",
      "NCCL operation in progress"};
  return result >= 0 && result < 8 ? kTexts[result] : "unknown result code";
}

FAKE_EXPORT const char* ncclGetLastError(nccl::Comm handle) {
  Lock lock(world().mutex);
  const NcclComm* comm = fake::find_comm(handle);
  return comm != nullptr ? comm->text.c_str() : fake::t_last_error.c_str();
}

FAKE_EXPORT nccl::Result ncclCommInitRankConfig(nccl::Comm* handle, int ranks, nccl::UniqueId id,
                                                int rank, nccl::Config* config) {
  FAKE_ENTER("ncclCommInitRankConfig");
  Lock lock(world().mutex);
  if (handle == nullptr || ranks < 1 || ranks > fake::kMaxRanks || rank < 0 || rank >= ranks) {
    return fake::refuse(nullptr, fake::kNcclInvalidArgument, "Invalid rank or size");
  }
  if (config != nullptr && config->magic != 0xcafebeef) {
    return fake::refuse(nullptr, fake::kNcclInvalidArgument,
                        "ncclConfig_t argument not initialized");
  }
  auto comm = std::make_unique<NcclComm>();
  if (fake::current(&comm->context) != 0) {
    return fake::refuse(nullptr, 1, "Cuda failure: no current context");
  }
  comm->segment = fake::Segment::open(id);
  if (comm->segment == nullptr) {
    return fake::refuse(nullptr, fake::kNcclSystemError, "nobody answers at this unique id");
  }
  comm->id = id;
  comm->rank = rank;
  comm->size = ranks;
  comm->blocking = config == nullptr || config->blocking != 0;
  comm->polls_left = fake::random_polls();
  fake::join(*comm);
  NcclComm& made = *comm;
  *handle = reinterpret_cast<nccl::Comm>(comm.get());
  fake::comms()[comm.get()] = std::move(comm);
  return fake::settle(lock, made);
}

FAKE_EXPORT nccl::Result ncclCommGetAsyncError(nccl::Comm handle, nccl::Result* error) {
  FAKE_ENTER("ncclCommGetAsyncError");
  Lock lock(world().mutex);
  NcclComm* comm = fake::find_comm(handle);
  if (comm == nullptr) return fake::kNcclInvalidArgument;
  *error = fake::look(*comm);
  return nccl::kSuccess;
}

FAKE_EXPORT nccl::Result ncclCommFinalize(nccl::Comm handle) {
  FAKE_ENTER("ncclCommFinalize");
  Lock lock(world().mutex);
  NcclComm* comm = fake::find_comm(handle);
  if (comm == nullptr) return fake::kNcclInvalidArgument;
  if (const nccl::Result error = fake::usable(*comm)) return error;
  comm->finalizing = true;
  comm->polls_left = fake::random_polls();
  return fake::settle(lock, *comm);
}

// Waits for the communicator's work, which may be for ever.
FAKE_EXPORT nccl::Result ncclCommDestroy(nccl::Comm handle) {
  const int injected = fake::enter("ncclCommDestroy");
  Lock lock(world().mutex);
  NcclComm* comm = fake::find_comm(handle);
  if (comm == nullptr) return fake::kNcclInvalidArgument;
  comm->blocking = true;
  comm->finalizing = true;
  const nccl::Result error = fake::settle(lock, *comm);
  fake::abort_work(*comm);  // after an error there may be some
  fake::comms().erase(handle);
  return injected != 0 ? injected : error;
}

FAKE_EXPORT nccl::Result ncclCommAbort(nccl::Comm handle) {
  const int injected = fake::enter("ncclCommAbort");
  Lock lock(world().mutex);
  NcclComm* comm = fake::find_comm(handle);
  if (comm == nullptr) return fake::kNcclInvalidArgument;
  fake::abort_work(*comm);
  fake::comms().erase(handle);
  return injected;
}

// --- for tests ---------------------------------------------------------------------------------------------------------

// The communicators of this rank (-1: of all ranks) in this process report this error from now on.
FAKE_EXPORT void fake_nccl_error(int rank, int code, const char* text) {
  Lock lock(world().mutex);
  for (auto& [handle, comm] : fake::comms()) {
    if (rank >= 0 && comm->rank != rank) continue;
    comm->error = code;
    comm->text = text;
  }
}
