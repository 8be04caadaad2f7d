// The calls that move data. Each is a group of its own, unless the thread has opened one.
#include "nccl/comm.h"
#include "nccl/reduce.h"

namespace fake {
namespace {

struct Called {
  nccl::Comm comm;
  cuda::Stream stream;
  Part part;
};

thread_local int t_depth = 0;
thread_local std::vector<Called> t_called;

std::size_t bytes_of(const Part& part, std::uint64_t times) {
  return part.header.count * times * size_of(part.header.type);
}

bool on_gpu(cuda::Address address, std::size_t bytes, const Context* context) {
  if (bytes == 0) return true;
  const Place place = place_of(address, bytes);
  if (settings().host_memory && place.where == Where::kPinned) return true;
  return place.where == Where::kDevice && place.inside && place.context == context;
}

nccl::Result check(NcclComm& comm, const Part& part) {
  const Header& h = part.header;
  const auto ranks = static_cast<std::uint64_t>(comm.size);
  if (size_of(h.type) == 0)
    return refuse(&comm, kNcclInvalidArgument, "invalid type " + std::to_string(h.type));
  if (h.op < 0 || h.op > nccl::kAvg)
    return refuse(&comm, kNcclInvalidArgument, "invalid reduction operation");
  if (h.root < 0 || h.root >= comm.size) return refuse(&comm, kNcclInvalidArgument, "invalid root");
  const bool message = h.kind == Kind::kSend || h.kind == Kind::kRecv;
  if (message && (part.peer < 0 || part.peer >= comm.size)) {
    return refuse(&comm, kNcclInvalidArgument, "invalid peer " + std::to_string(part.peer));
  }
  const bool reads = h.kind != Kind::kRecv && (h.kind != Kind::kBroadcast || h.root == comm.rank);
  const bool writes = h.kind != Kind::kSend && (h.kind != Kind::kReduce || h.root == comm.rank);
  const std::size_t from = bytes_of(part, h.kind == Kind::kReduceScatter ? ranks : 1);
  const std::size_t to = bytes_of(part, h.kind == Kind::kAllGather ? ranks : 1);
  if (from > kRoom || to > kRoom)
    return refuse(&comm, 3, "the fake NCCL moves at most 256 MiB at a time");
  if (reads && !on_gpu(part.from, from, comm.context)) {
    return refuse(&comm, kNcclInvalidArgument, "the source is no memory of the communicator's GPU");
  }
  if (writes && !on_gpu(part.to, to, comm.context)) {
    return refuse(&comm, kNcclInvalidArgument,
                  "the destination is no memory of the communicator's GPU");
  }
  return nccl::kSuccess;
}

// One group of work for each communicator that was called.
nccl::Result start(Lock& lock, std::vector<Called> calls) {
  nccl::Result result = nccl::kSuccess;
  while (!calls.empty()) {
    const nccl::Comm handle = calls.front().comm;
    NcclComm& comm = *find_comm(handle);
    if (const nccl::Result error = usable(comm)) return error;
    auto group = std::make_shared<Group>();
    group->segment = comm.segment;
    group->rank = comm.rank;
    group->size = comm.size;
    const cuda::Stream stream = calls.front().stream;
    std::vector<Called> others;
    for (Called& call : calls) {
      if (call.comm != handle) {
        others.push_back(call);
        continue;
      }
      if (call.stream != stream)
        return refuse(&comm, kNcclInvalidUsage, "one group, one stream (in the fake)");
      const bool message =
          call.part.header.kind == Kind::kSend || call.part.header.kind == Kind::kRecv;
      if (!message) call.part.number = ++comm.collectives;
      group->parts.push_back(call.part);
    }
    calls = std::move(others);
    comm.waiting.push_back({stream, std::move(group)});
    comm.polls_left = random_polls();
    // Nothing of it is in the stream before the communicator is asked and says that it is done.
    const nccl::Result state = comm.polls_left == 0 ? look(comm) : settle(lock, comm);
    if (state != nccl::kSuccess) result = state;
  }
  return result;
}

nccl::Result call(nccl::Comm handle, cuda::Stream stream, Kind kind, const void* from, void* to,
                  std::size_t count, int type, int op, int root, int peer) {
  Lock lock(world().mutex);
  NcclComm* comm = find_comm(handle);
  if (comm == nullptr) return refuse(nullptr, kNcclInvalidArgument, "this is no communicator");
  if (const nccl::Result error = usable(*comm)) return error;
  Part part;
  part.header = {kind, count, type, op, root};
  part.from = reinterpret_cast<cuda::Address>(from);
  part.to = reinterpret_cast<cuda::Address>(to);
  part.peer = peer;
  if (const nccl::Result error = check(*comm, part)) return error;
  if (t_depth > 0) {
    t_called.push_back({handle, stream, part});
    return nccl::kSuccess;
  }
  return start(lock, {{handle, stream, part}});
}

}  // namespace
}  // namespace fake

namespace nccl = hvdlite::device::nccl;
using fake::Kind;
using fake::cuda::Stream;

FAKE_EXPORT nccl::Result ncclGroupStart() {
  FAKE_ENTER("ncclGroupStart");
  ++fake::t_depth;
  return nccl::kSuccess;
}

FAKE_EXPORT nccl::Result ncclGroupEnd() {
  const int injected = fake::enter("ncclGroupEnd");
  if (fake::t_depth == 0)
    return fake::refuse(nullptr, fake::kNcclInvalidUsage, "ncclGroupEnd: not in a group call");
  if (--fake::t_depth > 0) return injected;
  const std::vector<fake::Called> called = std::move(fake::t_called);
  fake::t_called.clear();
  if (injected != 0) return injected;
  fake::Lock lock(fake::world().mutex);
  return fake::start(lock, called);
}

FAKE_EXPORT nccl::Result ncclAllReduce(const void* send, void* recv, std::size_t count, int type,
                                       int op, nccl::Comm comm, Stream stream) {
  FAKE_ENTER("ncclAllReduce");
  return fake::call(comm, stream, Kind::kAllReduce, send, recv, count, type, op, 0, -1);
}

FAKE_EXPORT nccl::Result ncclBroadcast(const void* send, void* recv, std::size_t count, int type,
                                       int root, nccl::Comm comm, Stream stream) {
  FAKE_ENTER("ncclBroadcast");
  return fake::call(comm, stream, Kind::kBroadcast, send, recv, count, type, 0, root, -1);
}

FAKE_EXPORT nccl::Result ncclReduce(const void* send, void* recv, std::size_t count, int type,
                                    int op, int root, nccl::Comm comm, Stream stream) {
  FAKE_ENTER("ncclReduce");
  return fake::call(comm, stream, Kind::kReduce, send, recv, count, type, op, root, -1);
}

FAKE_EXPORT nccl::Result ncclAllGather(const void* send, void* recv, std::size_t count, int type,
                                       nccl::Comm comm, Stream stream) {
  FAKE_ENTER("ncclAllGather");
  return fake::call(comm, stream, Kind::kAllGather, send, recv, count, type, 0, 0, -1);
}

FAKE_EXPORT nccl::Result ncclReduceScatter(const void* send, void* recv, std::size_t count,
                                           int type, int op, nccl::Comm comm, Stream stream) {
  FAKE_ENTER("ncclReduceScatter");
  return fake::call(comm, stream, Kind::kReduceScatter, send, recv, count, type, op, 0, -1);
}

FAKE_EXPORT nccl::Result ncclSend(const void* data, std::size_t count, int type, int peer,
                                  nccl::Comm comm, Stream stream) {
  FAKE_ENTER("ncclSend");
  return fake::call(comm, stream, Kind::kSend, data, nullptr, count, type, 0, 0, peer);
}

FAKE_EXPORT nccl::Result ncclRecv(void* data, std::size_t count, int type, int peer,
                                  nccl::Comm comm, Stream stream) {
  FAKE_ENTER("ncclRecv");
  return fake::call(comm, stream, Kind::kRecv, nullptr, data, count, type, 0, 0, peer);
}
