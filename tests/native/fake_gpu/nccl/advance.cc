// How a group of calls gets done, as far as the other ranks are.
#include <cstdio>
#include <cstring>

#include "nccl/comm.h"
#include "nccl/reduce.h"

namespace fake {
namespace {

const char* name_of(Kind kind) {
  constexpr const char* kNames[] = {"ncclAllReduce", "ncclBroadcast",     "ncclReduce",
                                    "ncclAllGather", "ncclReduceScatter", "ncclSend",
                                    "ncclRecv"};
  return kNames[static_cast<int>(kind)];
}

std::string describe(const Header& h) {
  return std::string(name_of(h.kind)) + "(count " + std::to_string(h.count) + ", type " +
         std::to_string(h.type) + ", op " + std::to_string(h.op) + ", root " +
         std::to_string(h.root) + ")";
}

// Bytes at an address of the GPU; null, and an error of the group, where there is nothing (any more).
char* memory(Group& group, cuda::Address address, std::size_t bytes, const char* what) {
  if (bytes == 0) return nullptr;
  void* found = reach_locked(address, bytes, what);
  if (found == nullptr) group.error = kIllegalAddress;
  return static_cast<char*>(found);
}

void copy(void* to, const void* from, std::size_t bytes) {
  if (to != nullptr && from != nullptr && bytes > 0) std::memcpy(to, from, bytes);
}

// What this rank gives: elements.
std::size_t given(const Group& group, const Part& part) {
  const auto ranks = static_cast<std::size_t>(group.size);
  switch (part.header.kind) {
    case Kind::kBroadcast:
      return part.header.root == group.rank ? part.header.count : 0;
    case Kind::kReduceScatter:
      return part.header.count * ranks;
    default:
      return part.header.count;
  }
}

void publish(Group& group, Part& part) {
  Published& slot = group.segment->shared().members[group.rank].published[part.number % 2];
  const std::size_t bytes = given(group, part) * size_of(part.header.type);
  copy(group.segment->contribution(group.rank, part.number),
       memory(group, part.from, bytes, name_of(part.header.kind)), bytes);
  slot.header = part.header;
  slot.number.store(part.number, std::memory_order_release);
  part.published = true;
}

bool all_published(Group& group, const Part& part) {
  for (int rank = 0; rank < group.size; ++rank) {
    const Published& slot = group.segment->shared().members[rank].published[part.number % 2];
    if (slot.number.load(std::memory_order_acquire) != part.number) return false;
  }
  return true;
}

bool agree(Group& group, const Part& part) {
  for (int rank = 0; rank < group.size; ++rank) {
    const Header& other = group.segment->shared().members[rank].published[part.number % 2].header;
    if (other == part.header) continue;
    group.segment->fail(kNcclInvalidUsage,
                        ("operation " + std::to_string(part.number) + ": rank " +
                         std::to_string(group.rank) + " calls " + describe(part.header) +
                         ", rank " + std::to_string(rank) + " " + describe(other))
                            .c_str());
    return false;
  }
  return true;
}

void take(Group& group, const Part& part) {
  const Header& h = part.header;
  const std::size_t bytes = h.count * size_of(h.type);
  const auto from = [&](int rank) { return group.segment->contribution(rank, part.number); };
  const auto ranks = static_cast<std::size_t>(group.size);
  if (h.kind == Kind::kReduce && h.root != group.rank) return;
  char* to =
      memory(group, part.to, h.kind == Kind::kAllGather ? bytes * ranks : bytes, name_of(h.kind));
  if (to == nullptr) return;
  if (h.kind == Kind::kBroadcast) return copy(to, from(h.root), bytes);
  if (h.kind == Kind::kAllGather) {
    for (int rank = 0; rank < group.size; ++rank) {
      copy(to + static_cast<std::size_t>(rank) * bytes, from(rank), bytes);
    }
    return;
  }
  const std::size_t skip =
      h.kind == Kind::kReduceScatter ? static_cast<std::size_t>(group.rank) * bytes : 0;
  std::vector<const void*> all;
  for (int rank = 0; rank < group.size; ++rank) all.push_back(from(rank) + skip);
  reduce(all, to, h.count, h.type, h.op);
}

bool advance_collective(Group& group, Part& part) {
  if (!part.published) publish(group, part);
  if (!all_published(group, part)) return false;
  if (!agree(group, part)) return false;
  take(group, part);
  return true;
}

bool advance_send(Group& group, Part& part) {
  Mailbox& box = group.segment->shared().mail[group.rank][part.peer];
  const std::uint64_t sent = box.sent.load(std::memory_order_relaxed);
  if (box.received.load(std::memory_order_acquire) != sent) return false;
  const std::size_t bytes = part.header.count * size_of(part.header.type);
  copy(group.segment->mail(group.rank, part.peer), memory(group, part.from, bytes, "ncclSend"),
       bytes);
  box.header = part.header;
  box.sent.store(sent + 1, std::memory_order_release);
  return true;
}

bool advance_recv(Group& group, Part& part) {
  Mailbox& box = group.segment->shared().mail[part.peer][group.rank];
  const std::uint64_t received = box.received.load(std::memory_order_relaxed);
  if (box.sent.load(std::memory_order_acquire) == received) return false;
  if (box.header.count != part.header.count || box.header.type != part.header.type) {
    group.segment->fail(kNcclInvalidUsage,
                        ("rank " + std::to_string(part.peer) + " calls " + describe(box.header) +
                         ", rank " + std::to_string(group.rank) + " " + describe(part.header))
                            .c_str());
    return false;
  }
  const std::size_t bytes = part.header.count * size_of(part.header.type);
  copy(memory(group, part.to, bytes, "ncclRecv"), group.segment->mail(part.peer, group.rank),
       bytes);
  box.received.store(received + 1, std::memory_order_release);
  return true;
}

// The results of an operation that was aborted are anything.
void spoil(Group& group) {
  for (const Part& part : group.parts) {
    const std::size_t bytes = part.header.count * size_of(part.header.type);
    if (part.done || part.to == 0 || bytes == 0) continue;
    const Place place = place_of(part.to, bytes);
    if (place.where != Where::kDevice || !place.inside) continue;
    std::memset(reach_locked(part.to, bytes, "an abort"), 0xab, bytes);
  }
}

}  // namespace

bool advance(Group& group) {
  if (group.finished) return true;
  if (group.aborted) {
    spoil(group);
    return group.finished = true;
  }
  if (group.segment->shared().failed.load() != 0) return false;  // waits for an abort
  bool all = true;
  bool earlier_collectives_done = true;
  std::vector<int> busy;  // messages to and from a peer stay in order
  for (Part& part : group.parts) {
    if (part.done) continue;
    if (part.header.kind == Kind::kSend || part.header.kind == Kind::kRecv) {
      const int line = part.peer * 2 + (part.header.kind == Kind::kSend ? 1 : 0);
      if (std::find(busy.begin(), busy.end(), line) != busy.end()) {
        all = false;
        continue;
      }
      part.done =
          part.header.kind == Kind::kSend ? advance_send(group, part) : advance_recv(group, part);
      if (!part.done) busy.push_back(line);
    } else if (earlier_collectives_done) {
      part.done = advance_collective(group, part);
      earlier_collectives_done = part.done;
    }
    all = all && part.done;
  }
  group.finished = all;
  return all;
}

}  // namespace fake
